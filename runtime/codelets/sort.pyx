"""Stable sort of a block's lines by a comparator region, several operands moved together.

Parameters: operands, constants, temporaries, operations of the body, register of the result, bytes of an element of
each operand, constants (dtype, bits), body. Registers: for each operand its left and right element, constants,
temporaries.
Columns: tile, lines, elements of a line; offsets of the operands, then of the results.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ipu_runtime._vec cimport vec_dtype_size
from ipu_runtime.codelets.elementwise cimport Body, Op, free_body, make_body
from ipu_runtime.core cimport Group, Scratch, cell, operand, scratch

cdef struct Sort:
    Body *body
    char *consts


cdef void free_sort(void *aux) noexcept:
    cdef Sort *mine = <Sort *>aux
    free(mine.consts)
    free_body(mine.body)
    free(mine)


cdef void *prepare_sort(const Group *g) noexcept:
    cdef const int64_t *p = g.params
    cdef long n_ops = p[0], n_const = p[1], i
    cdef const int64_t *q = p + 5 + n_ops
    cdef Sort *s = <Sort *>malloc(sizeof(Sort))
    if s == NULL:
        return NULL
    s.consts = <char *>malloc(n_const * 8 + 8)
    if s.consts == NULL:
        return NULL
    for i in range(n_const):
        memcpy(s.consts + 8 * i, &q[1], vec_dtype_size(<int>q[0]))
        q += 2
    s.body = make_body(q, <int>p[3])
    return NULL if s.body == NULL else s


cdef inline bint before(const Sort *s, char **reg, char **base, const int64_t *sizes, int n_ops, long a, long b,
                        int result) noexcept nogil:
    # Whether element a must stand before element b.
    cdef int k
    cdef Op *op = s.body.ops
    cdef Op *end = op + s.body.n
    for k in range(n_ops):
        reg[2 * k] = base[k] + a * sizes[k]
        reg[2 * k + 1] = base[k] + b * sizes[k]
    while op < end:
        op.fn(1, reg[op.dst], reg[op.a], reg[op.b], reg[op.c], NULL)
        op += 1
    return (<uint8_t *>reg[result])[0] != 0


cdef void run_sort(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef Sort *me = <Sort *>g.aux
    cdef const int64_t *p = g.params
    cdef const int64_t *sizes = p + 5
    cdef int n_ops = <int>p[0], n_const = <int>p[1], n_tmp = <int>p[2], result = <int>p[4], k
    cdef char *reg[128]
    cdef char *base[16]
    cdef char *work
    cdef char *out
    cdef int *index
    cdef int *other
    cdef long row, line, lines, n, width, i, j, at, mid, end, first
    for row in range(lo, hi):
        lines, n = cell(g, 1, row), cell(g, 2, row)
        work = scratch(s, n * 8 + n_tmp * 8 + 64)
        if work == NULL:
            return
        for k in range(n_const):
            reg[2 * n_ops + k] = me.consts + 8 * k
        for k in range(n_tmp):
            reg[2 * n_ops + n_const + k] = work + 8 * k
        for line in range(lines):
            index = <int *>(work + 8 * n_tmp)
            other = index + n
            for k in range(n_ops):
                base[k] = operand(g, 3 + k, row, arena, stride) + line * n * sizes[k]
            for i in range(n):
                index[i] = <int>i
            width = 1
            while width < n:  # merge sort, bottom up: equal elements keep their order
                first = 0
                while first < n:
                    mid = first + width if first + width < n else n
                    end = first + 2 * width if first + 2 * width < n else n
                    i, j, at = first, mid, first
                    while i < mid and j < end:
                        if before(me, reg, base, sizes, n_ops, index[j], index[i], result):
                            other[at] = index[j]
                            j += 1
                        else:
                            other[at] = index[i]
                            i += 1
                        at += 1
                    while i < mid:
                        other[at] = index[i]
                        i += 1
                        at += 1
                    while j < end:
                        other[at] = index[j]
                        j += 1
                        at += 1
                    first = end
                index, other = other, index
                width *= 2
            for k in range(n_ops):
                out = operand(g, 3 + n_ops + k, row, arena, stride) + line * n * sizes[k]
                for i in range(n):
                    memcpy(out + i * sizes[k], base[k] + index[i] * sizes[k], sizes[k])
