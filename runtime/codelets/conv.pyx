"""Convolution of one tile's blocks: out[g, b, o, n] = sum over k, c of in[g, b, i(o, k), c] w[g, k, c, n].

Input index along a dimension: p = first + o stride + k window_dilation in the dilated input; it is a real element if
p is a multiple of the base dilation and p / base_dilation lies in the block; else it adds nothing.

Parameters: spatial dimensions, dtype, then for each stride, window dilation, base dilation, reversed window.
Columns: tile, g, b, c, n, then for each spatial dimension block extent, outputs, taps, first; offsets of input
[g, b, s.., c], weights [g, k.., c, n], output [g, b, o.., n] (fp32 partial sums).

The rows of a panel (outputs) times taps x channels go to the same BLAS as `dot`.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from ipu_runtime._vec cimport DT_F16, DT_F32, vec_select, vec_table
from ipu_runtime.codelets.dot cimport gemm
from ipu_runtime.core cimport Group, Scratch, cell, operand, scratch

DEF PANEL = 65536   # floats of a panel: it stays in L2


cdef void *prepare_conv(const Group *g) noexcept:
    return <void *>vec_select(NULL)


cdef void run_conv(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef const int64_t *p = g.params
    cdef int nd = <int>p[0], d
    cdef bint half = p[1] == DT_F16
    cdef long row, gg, groups, batch, ic, oc, outs, taps, ins, rows, r, per, i, t, k, at, pos, base_in, reach
    cdef long ext[4]
    cdef long o[4]
    cdef long kk[4]
    cdef long step[4]
    cdef int *index[4]
    cdef long oi[4]
    cdef long ki[4]
    cdef float *x
    cdef float *w
    cdef float *y
    cdef float *panel
    cdef float *q
    cdef char *work
    cdef size_t table_ints, wide
    cdef bint direct
    for row in range(lo, hi):
        groups, batch, ic, oc = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        outs = taps = ins = 1
        table_ints = 0
        direct = True
        for d in range(nd):
            ext[d], o[d], kk[d] = cell(g, 5 + 4 * d, row), cell(g, 6 + 4 * d, row), cell(g, 7 + 4 * d, row)
            outs *= o[d]
            taps *= kk[d]
            ins *= ext[d]
            table_ints += o[d] * kk[d]
            # With one tap, stride 1 and no border the input block is the panel already.
            direct = direct and kk[d] == 1 and ext[d] == o[d] and cell(g, 8 + 4 * d, row) == 0 and p[2 + 4 * d] == 1 \
                and p[4 + 4 * d] == 1
        k = taps * ic
        rows = batch * outs
        per = PANEL // (k if k else 1)
        if per < 1:
            per = 1
        if per > rows:
            per = rows
        wide = (groups * (batch * ins * ic + k * oc)) * 4 if half else 0
        work = scratch(s, table_ints * 4 + 64 + wide + per * k * 4 + 64)
        q = <float *>(work + ((table_ints * 4 + 63) & ~<size_t>63))
        panel = q + wide // 4
        x = <float *>operand(g, 5 + 4 * nd, row, arena, stride)
        w = <float *>operand(g, 6 + 4 * nd, row, arena, stride)
        y = <float *>operand(g, 7 + 4 * nd, row, arena, stride)
        if half:
            table.convert[DT_F32][DT_F16](groups * batch * ins * ic, q, x, NULL, NULL)
            table.convert[DT_F32][DT_F16](groups * k * oc, q + groups * batch * ins * ic, w, NULL, NULL)
            x, w = q, q + groups * batch * ins * ic
        at = 0
        pos = ic
        for d in range(nd - 1, -1, -1):
            step[d] = pos
            pos *= ext[d]
        for d in range(nd):
            index[d] = <int *>work + at
            at += o[d] * kk[d]
            for i in range(o[d]):
                for t in range(kk[d]):
                    # A reversed window meets its taps from the far end; `first` already says where that is.
                    reach = cell(g, 8 + 4 * d, row) + i * p[2 + 4 * d] + \
                        ((kk[d] - 1 - t) if p[5 + 4 * d] else t) * p[3 + 4 * d]
                    if reach < 0 or reach % p[4 + 4 * d] != 0 or reach // p[4 + 4 * d] >= ext[d]:
                        index[d][i * kk[d] + t] = -1
                    else:
                        index[d][i * kk[d] + t] = <int>(reach // p[4 + 4 * d] * step[d])
        for gg in range(groups):
            if direct:
                gemm(x, w, y, <int>rows, <int>oc, <int>k, False, False, 0)
            else:
                r = 0
                for d in range(nd):
                    oi[d] = 0
                base_in = 0
                while r < rows:
                    per = PANEL // k if k and PANEL // k > 1 else 1
                    if per > rows - r:
                        per = rows - r
                    q = panel
                    for i in range(per):
                        for d in range(nd):
                            ki[d] = 0
                        for t in range(taps):
                            pos = base_in
                            for d in range(nd):
                                at = index[d][oi[d] * kk[d] + ki[d]]
                                if at < 0:
                                    pos = -1
                                    break
                                pos += at
                            if pos < 0:
                                memset(q, 0, ic * 4)
                            elif ic == 1:
                                q[0] = x[pos]
                            else:
                                memcpy(q, x + pos, ic * 4)
                            q += ic
                            d = nd - 1
                            while d >= 0:
                                ki[d] += 1
                                if ki[d] < kk[d]:
                                    break
                                ki[d] = 0
                                d -= 1
                        d = nd - 1
                        while d >= 0:
                            oi[d] += 1
                            if oi[d] < o[d]:
                                break
                            oi[d] = 0
                            d -= 1
                        if d < 0:
                            base_in += ins * ic
                    gemm(panel, w, y + r * oc, <int>per, <int>oc, <int>k, False, False, 0)
                    r += per
            x += batch * ins * ic
            w += k * oc
            y += rows * oc
