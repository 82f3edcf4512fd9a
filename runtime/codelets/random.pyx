"""Random bits by counter: each tile makes its own block of the array that the whole chip makes, bit for bit as XLA.

`philox` parameters: rank, 32-bit words of an element, then the whole array's row-major stride of each dimension.
    Columns: tile, then for each dimension first index and extent; offsets of the state (key, counter low, high: u64
    each) and of the output. Element i of the array is words [i w, (i + 1) w) of the counter's sequence.
`philox_next` parameters: blocks of four words that were used. Columns: tile, offsets of the state and the new state.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ipu_runtime._vec cimport vec_select, vec_table
from ipu_runtime.core cimport Group, Scratch, cell, operand, scratch


cdef void run_philox(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = vec_select(NULL)
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d
    cdef int64_t per = p[1]
    cdef long row, _i, outer, words, run
    cdef uint64_t first, block, skip, low, high
    cdef uint64_t *state
    cdef char *out
    cdef uint32_t *bits
    cdef long ext[8]
    cdef long start[8]
    cdef long at[8]
    for row in range(lo, hi):
        outer = 1
        for d in range(rank):
            start[d], ext[d], at[d] = cell(g, 1 + 2 * d, row), cell(g, 2 + 2 * d, row), 0
            if d < rank - 1:
                outer *= ext[d]
        state = <uint64_t *>operand(g, 1 + 2 * rank, row, arena, stride)
        out = operand(g, 2 + 2 * rank, row, arena, stride)
        run = ext[rank - 1]
        words = run * per
        bits = <uint32_t *>scratch(s, (words + 8) * 4)
        if bits == NULL:
            return
        for _i in range(outer):
            first = 0
            for d in range(rank):
                first += <uint64_t>((start[d] + at[d]) * p[2 + d])
            first *= per
            block, skip = first // 4, first % 4
            low = state[1] + block
            high = state[2] + (1 if low < block else 0)
            table.philox((words + <long>skip + 3) // 4, state[0], low, high, bits)
            memcpy(out, bits + skip, words * 4)
            out += words * 4
            d = rank - 2
            while d >= 0:
                at[d] += 1
                if at[d] < ext[d]:
                    break
                at[d] = 0
                d -= 1


cdef void run_philox_next(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef long row
    cdef uint64_t blocks = <uint64_t>g.params[0]
    cdef uint64_t *state
    cdef uint64_t *out
    cdef uint64_t low
    for row in range(lo, hi):
        state = <uint64_t *>operand(g, 1, row, arena, stride)
        out = <uint64_t *>operand(g, 2, row, arena, stride)
        low = state[1] + blocks
        out[2] = state[2] + (1 if low < blocks else 0)
        out[1] = low
        out[0] = state[0]
