"""A window of a block at a place known only at run time: dynamic-slice, and its inverse dynamic-update-slice.

Parameters: rank, bytes of an element, bytes of a start, starts are signed, update, number of starts, then for each
dimension which start moves it (-1: none, the window begins at 0).
Columns: tile, then for each dimension extent of the block and of the window; offsets of the block, of the window and of
each start. A start is clamped so that the window stays inside, as HLO says. An update writes the window into the block.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from libc.string cimport memcpy

from ipu_runtime.core cimport Group, Scratch, cell, operand


cdef inline int64_t start_at(const char *p, int64_t size, bint is_signed) noexcept nogil:
    if size == 8:
        return (<const int64_t *>p)[0]
    if size == 4:
        return (<const int32_t *>p)[0] if is_signed else <int64_t>(<const uint32_t *>p)[0]
    return (<const uint8_t *>p)[0]


cdef void run_dynamic(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d
    cdef long size = p[1], row, _i, outer, pos, run, step
    cdef int64_t at
    cdef long ext[8]
    cdef long win[8]
    cdef long steps[8]
    cdef long index[8]
    cdef char *block
    cdef char *window
    for row in range(lo, hi):
        block = operand(g, 1 + 2 * rank, row, arena, stride)
        window = operand(g, 2 + 2 * rank, row, arena, stride)
        outer, pos, step = 1, 0, size
        for d in range(rank - 1, -1, -1):
            ext[d], win[d] = cell(g, 1 + 2 * d, row), cell(g, 2 + 2 * d, row)
            steps[d] = step
            step *= ext[d]
            index[d] = 0
            if d < rank - 1:
                outer *= win[d]
            if p[6 + d] >= 0:
                at = start_at(operand(g, <int>(3 + 2 * rank + p[6 + d]), row, arena, stride), p[2], p[3] != 0)
                at = 0 if at < 0 else (ext[d] - win[d] if at > ext[d] - win[d] else at)
                pos += at * steps[d]
        run = win[rank - 1] * size
        if run == 0:
            continue
        for _i in range(outer):
            if p[4]:
                memcpy(block + pos, window, run)
            else:
                memcpy(window, block + pos, run)
            window += run
            d = rank - 2
            while d >= 0:
                index[d] += 1
                pos += steps[d]
                if index[d] < win[d]:
                    break
                pos -= win[d] * steps[d]
                index[d] = 0
                d -= 1
