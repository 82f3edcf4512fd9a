"""Rows of a table by index: multiSlice (gather) and multiUpdate (scatter) of one tile's part of the table.

gather parameters: bytes of an element, bytes of an index, signed index, entries of the whole table.
    Columns: tile, indices, elements of a row, first entry, entries here, offsets of table, indices, output.
    out[i] = table[clamp(index[i])] where that entry is here, else zero bits (the other parts of the table have it).
scatter parameters: dtype, bytes of an index, op (copy: overwrite), signed index, entries of the whole table.
    Columns: tile, indices, elements, first entry, entries here, offsets of indices, updates, table (changed in place).
    table[index[i]] = op(table[index[i]], update[i]) in the order of i; an index outside the whole table does nothing.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t
from libc.string cimport memcpy, memset

from ipu_runtime._vec cimport VEC_ADD, VEC_MULTIPLY, vec_dtype_size, vec_fn, vec_select
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, watch


cdef inline int64_t index_at(const char *p, long i, int64_t size, bint is_signed) noexcept nogil:
    if size == 8:
        return (<const int64_t *>p)[i]
    if size == 4:
        return (<const int32_t *>p)[i] if is_signed else <int64_t>(<const uint32_t *>p)[i]
    return (<const uint8_t *>p)[i]


cdef void run_gather(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef long row, i, n, first, here
    cdef int64_t at, size = g.params[0], width = g.params[1], last = g.params[3] - 1
    cdef long bytes_
    cdef char *table
    cdef char *index
    cdef char *out
    for row in range(lo, hi):
        n, bytes_, first, here = cell(g, 1, row), cell(g, 2, row) * size, cell(g, 3, row), cell(g, 4, row)
        table, index, out = (operand(g, 5, row, arena, stride), operand(g, 6, row, arena, stride),
                             operand(g, 7, row, arena, stride))
        for i in range(n):
            at = index_at(index, i, width, g.params[2] != 0)
            at = 0 if at < 0 else (last if at > last else at)
            at -= first
            if 0 <= at < here:
                memcpy(out + i * bytes_, table + at * bytes_, bytes_)
            else:
                memset(out + i * bytes_, 0, bytes_)


cdef void *prepare_scatter(const Group *g) noexcept:
    return <void *>vec_select(NULL).op[g.params[2]][g.params[0]]


cdef void run_scatter(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef vec_fn op = <vec_fn>g.aux
    cdef long row, i, n, e, first, here, size = vec_dtype_size(<int>g.params[0])
    cdef int64_t at, width = g.params[1]
    cdef char *table
    cdef char *index
    cdef char *update
    cdef char *entry
    cdef bint overwrite = g.params[2] == 0
    for row in range(lo, hi):
        n, e, first, here = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        index, update, table = (operand(g, 5, row, arena, stride), operand(g, 6, row, arena, stride),
                                operand(g, 7, row, arena, stride))
        begin_row(s, row)
        for i in range(n):
            at = index_at(index, i, width, g.params[3] != 0) - first
            if 0 <= at < here:
                entry = table + at * e * size
                if overwrite:
                    memcpy(entry, update + i * e * size, e * size)
                else:
                    op(e, entry, entry, update + i * e * size, NULL, &s.fp)
        if g.params[2] == VEC_ADD or g.params[2] == VEC_MULTIPLY:
            watch(s, <int>g.params[0], here * e, table, <int>g.params[0], n * e, update, 0, NULL)
