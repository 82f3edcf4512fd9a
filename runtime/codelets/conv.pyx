"""Convolution of one tile's blocks: out[g, b, o, n] = sum over k, c of in[g, b, i(o, k), c] w[g, k, c, n].

Input index along a dimension: p = first + o stride + k window_dilation in the dilated input; it is a real element if
p is a multiple of the base dilation and p / base_dilation lies in the block; else it adds nothing.

Parameters: spatial dimensions, dtype, order of the blocks, then for each spatial dimension stride, window dilation,
base dilation, reversed window; at the end the planned method (cycles only) and the dtype of the output.
Columns: tile, g, b, c, n, then for each spatial dimension block extent, outputs, taps, first; offsets of input, weights
and output (partial sums, fp32 or fp16). The order says which memory order the operands come in, so that copies that
bring them stay contiguous:
    0  input [g, b, s.., c], weights [g, k.., c, n], output [g, b, o.., n]
    1  input [g, c, s.., b], weights [g, c, k.., n], output [g, o.., b, n]

A panel of outputs times (taps, channels) is gathered, then multiplied with the weights by the same kernel as in `dot`.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from ipu_runtime._vec cimport DT_F16, DT_F32, vec_fp, vec_select, vec_table
from ipu_runtime.codelets.dot cimport gemm_f16
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch, watch

DEF PANEL = 65536   # floats of a panel: it stays in L2


cdef void *prepare_conv(const Group *g) noexcept:
    return <void *>vec_select(NULL)


cdef struct Shape:
    int nd
    long batch, ic, oc, outs, taps, ins, k, rows
    long ext[4]
    long o[4]
    long kk[4]
    int *index[4]        # [output][tap] -> offset in the block along this dimension, -1: no element
    bint narrow          # partial sums in fp16
    const vec_table *table
    float *wide          # room for a panel's results
    vec_fp *fp


cdef inline void panel_product(const Shape *c, const float *panel, const float *w, char *y, long first, long count,
                               bint turned) noexcept nogil:
    # Results `first` to `first + count` of all rows. A block of input channels does not cross a tap; with the batch
    # last taps follow one another within a channel, and blocks run over both.
    if c.narrow:
        gemm_f16(panel, w, c.wide, y + first * c.oc * 2, <int>count, <int>c.oc, <int>c.k,
                 <int>(c.k if turned or c.ic == 0 else c.ic), turned, False, c.table, c.fp, NULL)
    else:
        c.table.gemm(panel, count if turned else c.k, w, c.oc, <float *>y + first * c.oc, <int>count, <int>c.oc,
                     <int>c.k, turned, False, False, NULL)


cdef inline bint step(long *at, const long *ends, int nd) noexcept nogil:
    # The next index, last dimension fastest; False after the last.
    cdef int d = nd - 1
    while d >= 0:
        at[d] += 1
        if at[d] < ends[d]:
            return True
        at[d] = 0
        d -= 1
    return False


cdef inline long place(const Shape *c, const long *oi, const long *ki) noexcept nogil:
    cdef long pos = 0, at
    cdef int d
    for d in range(c.nd):
        at = c.index[d][oi[d] * c.kk[d] + ki[d]]
        if at < 0:
            return -1
        pos += at
    return pos


cdef void channels_last(const Shape *c, const float *x, const float *w, char *y, float *panel) noexcept nogil:
    cdef long oi[4]
    cdef long ki[4]
    cdef long r = 0, per, _i, _t, pos
    cdef const float *base = x
    cdef float *q
    cdef int d
    for d in range(c.nd):
        oi[d] = 0
    while r < c.rows:
        per = PANEL // c.k if c.k and PANEL // c.k > 1 else 1
        if per > c.rows - r:
            per = c.rows - r
        q = panel
        for _i in range(per):
            for d in range(c.nd):
                ki[d] = 0
            for _t in range(c.taps):
                pos = place(c, oi, ki)
                if pos < 0:
                    memset(q, 0, c.ic * 4)
                elif c.ic == 1:
                    q[0] = base[pos]
                else:
                    memcpy(q, base + pos, c.ic * 4)
                q += c.ic
                step(ki, c.kk, c.nd)
            if not step(oi, c.o, c.nd):
                base += c.ins * c.ic
        panel_product(c, panel, w, y, r, per, False)
        r += per


cdef void batch_last(const Shape *c, const float *x, const float *w, char *y, float *panel) noexcept nogil:
    # The panel is [c, taps][outputs, b]: the batch is the contiguous run, and the product takes it transposed.
    cdef long oi[4]
    cdef long ki[4]
    cdef long first[4]
    cdef long r = 0, per, _i, _t, ch, pos
    cdef float *q
    cdef int d
    for d in range(c.nd):
        first[d] = 0
    while r < c.outs:
        per = PANEL // (c.k * c.batch) if c.k * c.batch and PANEL // (c.k * c.batch) > 1 else 1
        if per > c.outs - r:
            per = c.outs - r
        q = panel
        for ch in range(c.ic):
            for d in range(c.nd):
                ki[d] = 0
            for _t in range(c.taps):
                for d in range(c.nd):
                    oi[d] = first[d]
                for _i in range(per):
                    pos = place(c, oi, ki)
                    if pos < 0:
                        memset(q, 0, c.batch * 4)
                    else:
                        memcpy(q, x + ch * c.ins * c.batch + pos, c.batch * 4)
                    q += c.batch
                    step(oi, c.o, c.nd)
                step(ki, c.kk, c.nd)
        for _i in range(per):
            step(first, c.o, c.nd)
        panel_product(c, panel, w, y, r * c.batch, per * c.batch, True)
        r += per


cdef void batch_last_few(const Shape *c, const float *x, const float *w, float *y) noexcept nogil:
    # With one or two output channels a panel would cost more than the product: the sum is made where it stands.
    cdef long oi[4]
    cdef long ki[4]
    cdef long i, t, ch, b, n, pos
    cdef float *out
    cdef const float *run
    cdef float weight
    cdef int d
    memset(y, 0, c.rows * c.oc * 4)
    for ch in range(c.ic):
        for d in range(c.nd):
            ki[d] = 0
        for t in range(c.taps):
            for d in range(c.nd):
                oi[d] = 0
            for i in range(c.outs):
                pos = place(c, oi, ki)
                if pos >= 0:
                    run = x + ch * c.ins * c.batch + pos
                    out = y + i * c.batch * c.oc
                    if c.oc == 1:
                        weight = w[ch * c.taps + t]
                        for b in range(c.batch):
                            out[b] += weight * run[b]
                    else:
                        for n in range(c.oc):
                            weight = w[(ch * c.taps + t) * c.oc + n]
                            for b in range(c.batch):
                                out[b * c.oc + n] += weight * run[b]
                step(oi, c.o, c.nd)
            step(ki, c.kk, c.nd)


cdef void run_conv(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef const int64_t *p = g.params
    cdef int nd = <int>p[0], d
    cdef bint half = p[1] == DT_F16, swapped = p[2] != 0, direct
    cdef long row, _g, groups, i, t, at, reach, unit
    cdef Shape c
    cdef float *x
    cdef float *w
    cdef char *y
    cdef float *panel
    cdef float *q
    cdef char *work
    cdef size_t ints, wide, size
    c.nd = nd
    c.narrow, c.table, c.fp = p[4 + 4 * nd] == DT_F16, table, &s.fp
    for row in range(lo, hi):
        begin_row(s, row)
        groups, c.batch, c.ic, c.oc = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        c.outs = c.taps = c.ins = 1
        ints = 0
        direct = not swapped
        for d in range(nd):
            c.ext[d], c.o[d], c.kk[d] = cell(g, 5 + 4 * d, row), cell(g, 6 + 4 * d, row), cell(g, 7 + 4 * d, row)
            c.outs *= c.o[d]
            c.taps *= c.kk[d]
            c.ins *= c.ext[d]
            ints += c.o[d] * c.kk[d]
            # With one tap, stride 1 and no border the input block is the panel already.
            direct = direct and c.kk[d] == 1 and c.ext[d] == c.o[d] and cell(g, 8 + 4 * d, row) == 0 \
                and p[3 + 4 * d] == 1 and p[5 + 4 * d] == 1
        c.k = c.taps * c.ic
        c.rows = c.batch * c.outs
        wide = groups * (c.batch * c.ins * c.ic + c.k * c.oc) * 4 if half else 0
        size = c.rows * c.k if c.rows * c.k < PANEL else PANEL + c.k * (c.batch if swapped else 1)
        work = scratch(s, ints * 4 + 64 + wide + (size + (c.rows * c.oc if c.narrow else 0)) * 4 + 64)
        if work == NULL:
            return
        q = <float *>(work + ((ints * 4 + 63) & ~<size_t>63))
        panel = q + wide // 4
        c.wide = panel + size
        x = <float *>operand(g, 5 + 4 * nd, row, arena, stride)
        w = <float *>operand(g, 6 + 4 * nd, row, arena, stride)
        y = operand(g, 7 + 4 * nd, row, arena, stride)
        if half:
            table.convert[DT_F32][DT_F16](groups * c.batch * c.ins * c.ic, q, x, NULL, NULL, NULL)
            table.convert[DT_F32][DT_F16](groups * c.k * c.oc, q + groups * c.batch * c.ins * c.ic, w, NULL, NULL,
                                          NULL)
            x, w = q, q + groups * c.batch * c.ins * c.ic
        at = 0
        for d in range(nd):
            c.index[d] = <int *>work + at
            at += c.o[d] * c.kk[d]
        unit = c.batch if swapped else c.ic
        for d in range(nd - 1, -1, -1):
            for i in range(c.o[d]):
                for t in range(c.kk[d]):
                    reach = cell(g, 8 + 4 * d, row) + i * p[3 + 4 * d] + \
                        ((c.kk[d] - 1 - t) if p[6 + 4 * d] else t) * p[4 + 4 * d]
                    if reach < 0 or reach % p[5 + 4 * d] != 0 or reach // p[5 + 4 * d] >= c.ext[d]:
                        c.index[d][i * c.kk[d] + t] = -1
                    else:
                        c.index[d][i * c.kk[d] + t] = <int>(reach // p[5 + 4 * d] * unit)
            unit *= c.ext[d]
        for _g in range(groups):
            if direct:
                panel_product(&c, x, w, y, 0, c.rows, False)
            elif swapped and c.oc <= 2 and not c.narrow:
                batch_last_few(&c, x, w, <float *>y)
            elif swapped:
                batch_last(&c, x, w, y, panel)
            else:
                channels_last(&c, x, w, y, panel)
            x += c.batch * c.ins * c.ic
            w += c.k * c.oc
            y += c.rows * c.oc * (2 if c.narrow else 4)
        watch(s, <int>p[4 + 4 * nd], groups * c.rows * c.oc, operand(g, 7 + 4 * nd, row, arena, stride),
              <int>p[1], groups * c.batch * c.ins * c.ic, operand(g, 5 + 4 * nd, row, arena, stride),
              groups * c.k * c.oc, operand(g, 6 + 4 * nd, row, arena, stride))
