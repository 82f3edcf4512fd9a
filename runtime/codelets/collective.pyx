"""Values of all replicas combined, and the result given to each: all-reduce or all-gather over groups of replicas.

Parameters: op (or GATHER: on tile t the value of replica t mod R is right), dtype, replicas R of a group.
Columns: tile, elements, offsets of the value and of the result, which may be the same.
A tile's memory is that of the same tile of every replica: `replica` bytes apart. The sum is formed in the order of the
replicas, so every replica gets the same bits.
"""
from libc.string cimport memcpy, memmove

from ipu_runtime._vec cimport VEC_ADD, vec_dtype_size, vec_fn, vec_select
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch, watch


DEF GATHER = -1   # as in opcodes.py


cdef void *prepare_collective(const Group *g) noexcept:
    if g.params[0] == GATHER:
        return <void *>g   # needs nothing
    return <void *>vec_select(NULL).op[g.params[0]][g.params[1]]


cdef void run_collective(const Group *g, long lo, long hi, char *arenas, size_t stride, size_t replica, long replicas,
                         Scratch *s) noexcept nogil:
    cdef vec_fn op = <vec_fn>g.aux
    cdef long row, n, size = vec_dtype_size(<int>g.params[1]), group = g.params[2], first, owner, r
    cdef char *total
    cdef char *value
    cdef char *out
    for row in range(lo, hi):
        begin_row(s, row)
        n = cell(g, 1, row)
        total = scratch(s, n * size)
        if total == NULL:
            return
        value, out = operand(g, 2, row, arenas, stride), operand(g, 3, row, arenas, stride)
        first = 0
        while g.params[0] == GATHER and first < replicas:
            owner = first + cell(g, 0, row) % group
            for r in range(first, first + group):
                if r != owner or out != value:
                    memmove(out + r * replica, value + owner * replica, n * size)
            first += group
        while first < replicas:
            memcpy(total, value + first * replica, n * size)
            for r in range(first + 1, first + group):
                op(n, total, total, value + r * replica, NULL, &s.fp)
            if g.params[0] == VEC_ADD:
                watch(s, <int>g.params[1], n, total, <int>g.params[1], n, value + first * replica, n,
                      value + (first + group - 1) * replica)
            for r in range(first, first + group):
                memcpy(out + r * replica, total, n * size)
            first += group
