"""Sliding windows over a block: reduce-window (pooling) and select-and-scatter (max pooling's gradient).

Parameters: rank, op, dtype, bits of the start value, then for each dimension taps, stride, window dilation, base
dilation; select-and-scatter adds the kernel op that compares (op is how scattered values combine).
Columns: tile, then for each dimension block extent, windows, first (index of window 0's first tap in the dilated
block); offsets: input, output. select-and-scatter's block has a border that its windows also see: its columns are, for
each dimension, block extent, windows, first, where the tile's own part begins and its extent; offsets: input, source,
output (the own part).
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from ipu_runtime._vec cimport VEC_ADD, VEC_MULTIPLY, vec_dtype_size, vec_fn, vec_select, vec_table
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, watch

cdef struct Window:
    vec_fn op
    vec_fn compare
    long size
    bint sums            # results may overflow


cdef void *prepare_window(const Group *g) noexcept:
    cdef const vec_table *table = vec_select(NULL)
    cdef Window *w = <Window *>malloc(sizeof(Window))
    if w == NULL:
        return NULL
    w.op = table.op[g.params[1]][g.params[2]]
    w.size = vec_dtype_size(<int>g.params[2])
    w.compare = NULL
    w.sums = g.params[1] == VEC_ADD or g.params[1] == VEC_MULTIPLY
    return NULL if w.op == NULL else w


cdef void *prepare_select_scatter(const Group *g) noexcept:
    cdef Window *w = <Window *>prepare_window(g)
    if w == NULL:
        return NULL
    w.compare = vec_select(NULL).op[g.params[4 + 4 * g.params[0]]][g.params[2]]
    return NULL if w.compare == NULL else w


cdef inline long source(const int64_t *p, int d, long first, long window, long tap, long ext) noexcept nogil:
    # Index in the block of a window's tap along dimension d, or -1 where there is no element.
    cdef long at = first + window * p[5 + 4 * d] + tap * p[6 + 4 * d]
    if at < 0 or at % p[7 + 4 * d] != 0 or at // p[7 + 4 * d] >= ext:
        return -1
    return at // p[7 + 4 * d]


cdef void run_window(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef Window *w = <Window *>g.aux
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d
    cdef long row, size = w.size, outs, taps, ins, _i, _t, pos, at, run, j
    cdef long ext[8]
    cdef long o[8]
    cdef long first[8]
    cdef long oi[8]
    cdef long ti[8]
    cdef char *x
    cdef char *y
    cdef bint runs
    for row in range(lo, hi):
        begin_row(s, row)
        outs = taps = ins = 1
        for d in range(rank):
            ext[d], o[d], first[d] = cell(g, 1 + 3 * d, row), cell(g, 2 + 3 * d, row), cell(g, 3 + 3 * d, row)
            oi[d] = 0
            outs *= o[d]
            ins *= ext[d]
            taps *= p[4 + 4 * d]
        x = operand(g, 1 + 3 * rank, row, arena, stride)
        y = operand(g, 2 + 3 * rank, row, arena, stride)
        # A last dimension without a window or padding (channels) is one run of elements.
        runs = (p[4 * rank] == 1 and p[1 + 4 * rank] == 1 and p[3 + 4 * rank] == 1
                and first[rank - 1] == 0 and ext[rank - 1] == o[rank - 1])
        run = o[rank - 1] if runs else 1
        if run == 0:
            continue
        for _i in range(outs // run):
            for j in range(run):
                memcpy(y + j * size, &p[3], size)
            for d in range(rank):
                ti[d] = 0
            for _t in range(taps):
                pos = 0
                for d in range(rank):
                    at = source(p, d, first[d], oi[d], ti[d], ext[d])
                    if at < 0:
                        pos = -1
                        break
                    pos = pos * ext[d] + at
                if pos >= 0:
                    w.op(run, y, y, x + pos * size, NULL, &s.fp)
                d = rank - 1
                while d >= 0:
                    ti[d] += 1
                    if ti[d] < p[4 + 4 * d]:
                        break
                    ti[d] = 0
                    d -= 1
            y += run * size
            d = rank - 2 if runs else rank - 1
            while d >= 0:
                oi[d] += 1
                if oi[d] < o[d]:
                    break
                oi[d] = 0
                d -= 1
        if w.sums:
            watch(s, <int>p[2], outs, operand(g, 2 + 3 * rank, row, arena, stride), <int>p[2], ins, x, 0, NULL)


cdef void run_select_scatter(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    """out = start; for each window the element that wins the comparisons gets the source's value added."""
    cdef Window *w = <Window *>g.aux
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d
    cdef long row, size = w.size, outs, taps, mine, i, _i, _t, pos, own, at, best, home
    cdef long ext[8]
    cdef long o[8]
    cdef long first[8]
    cdef long begin[8]
    cdef long part[8]
    cdef long oi[8]
    cdef long ti[8]
    cdef char *x
    cdef char *src
    cdef char *y
    cdef uint8_t keep
    for row in range(lo, hi):
        begin_row(s, row)
        outs = taps = mine = 1
        for d in range(rank):
            ext[d], o[d], first[d] = cell(g, 1 + 5 * d, row), cell(g, 2 + 5 * d, row), cell(g, 3 + 5 * d, row)
            begin[d], part[d] = cell(g, 4 + 5 * d, row), cell(g, 5 + 5 * d, row)
            oi[d] = 0
            outs *= o[d]
            mine *= part[d]
            taps *= p[4 + 4 * d]
        x = operand(g, 1 + 5 * rank, row, arena, stride)
        src = operand(g, 2 + 5 * rank, row, arena, stride)
        y = operand(g, 3 + 5 * rank, row, arena, stride)
        for i in range(mine):
            memcpy(y + i * size, &p[3], size)
        for _i in range(outs):
            best = home = -1
            for d in range(rank):
                ti[d] = 0
            for _t in range(taps):
                pos = own = 0
                for d in range(rank):
                    at = source(p, d, first[d], oi[d], ti[d], ext[d])
                    if at < 0:
                        pos = -1
                        break
                    pos = pos * ext[d] + at
                    if own >= 0:
                        own = own * part[d] + at - begin[d] if begin[d] <= at < begin[d] + part[d] else -1
                if pos >= 0:
                    keep = 0
                    if best >= 0:
                        # select(best, candidate) true: the old one stays.
                        w.compare(1, &keep, x + best * size, x + pos * size, NULL, NULL)
                    if not keep:
                        best, home = pos, own
                d = rank - 1
                while d >= 0:
                    ti[d] += 1
                    if ti[d] < p[4 + 4 * d]:
                        break
                    ti[d] = 0
                    d -= 1
            if home >= 0:
                w.op(1, y + home * size, y + home * size, src, NULL, &s.fp)
            src += size
            d = rank - 1
            while d >= 0:
                oi[d] += 1
                if oi[d] < o[d]:
                    break
                oi[d] = 0
                d -= 1
        if w.sums:
            watch(s, <int>p[2], mine, y, <int>p[2], outs, operand(g, 2 + 5 * rank, row, arena, stride), 0, NULL)
