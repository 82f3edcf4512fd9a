"""Products with a block-sparse matrix S, of which a tile has some blocks: V[i] stands at block (k[i], m[i]).

Dense operands lie in slots of one block each, [slot, row, block]: X in those of the block rows of S, Y in those of its
block columns. Positions name slots; a block whose position names none is left out, whatever a program says.
    forward      Y[m] = sum over i of X[k] V[i]
    transposed   X[k] = sum over i of Y[m] V[i]^T
    sampled      V[i] = X[k]^T Y[m]
Parameters: mode, dtype, dtype of the sums, edge of a block, bytes of a position (2 unsigned, 4 signed), whether the
    pattern is static (cycles only).
Columns: tile, blocks, rows of the dense operands, slots of X, slots of Y, offsets of positions, V, X, Y.

Sums are in fp32, in the order of the blocks. With fp16 sums a block's product is rounded as it is added; for blocks of
one element, which no AMP multiplies, the sum is rounded at its end [unvalidated: no source says where the chip rounds].
"""
from libc.stdint cimport int32_t, uint16_t
from libc.string cimport memset

from ipu_runtime._vec cimport DT_F16, DT_F32, vec_select, vec_table
from ipu_runtime.codelets.dot cimport gemm_f16
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch, watch


cdef enum:
    FORWARD = 0
    TRANSPOSED = 1
    SAMPLED = 2


cdef inline long position(const char *p, long i, int width) noexcept nogil:
    if width == 2:
        return (<const uint16_t *>p)[i]
    return (<const int32_t *>p)[i]


cdef void *prepare_sparse(const Group *g) noexcept:
    return <void *>vec_select(NULL)


cdef inline void scaled_add(float *out, const float *x, float by, long n) noexcept nogil:
    cdef long i
    for i in range(n):
        out[i] += by * x[i]


cdef inline float dot(const float *x, const float *y, long n) noexcept nogil:
    cdef long i
    cdef float total = 0
    for i in range(n):
        total += x[i] * y[i]
    return total


cdef void block(const vec_table *table, int mode, float *v, float *x, float *y, int n, int b) noexcept nogil:
    """One block's product; forward and transposed add to what is there."""
    if b == 1:
        if mode == FORWARD:
            scaled_add(y, x, v[0], n)
        elif mode == TRANSPOSED:
            scaled_add(x, y, v[0], n)
        else:
            v[0] = dot(x, y, n)
    elif mode == FORWARD:
        table.gemm(x, b, v, b, y, n, b, b, False, False, True, NULL)
    elif mode == TRANSPOSED:
        table.gemm(y, b, v, b, x, n, b, b, False, True, True, NULL)
    else:
        table.gemm(x, b, y, b, v, b, b, n, True, False, False, NULL)


cdef void run_sparse(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef int mode = <int>g.params[0], b = <int>g.params[3], width = <int>g.params[4], n, part
    cdef bint half = g.params[1] == DT_F16, narrow = g.params[2] == DT_F16
    cdef long row, i, blocks, k, m, slots_x, slots_y, slice_, first
    cdef long sizes[3]
    cdef int written = 2 - mode     # of V, X, Y: which one is the result
    cdef char *at
    cdef char *stored[3]
    cdef float *wide[3]
    cdef float *spare
    for row in range(lo, hi):
        begin_row(s, row)
        blocks, n, slots_x, slots_y = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        at = operand(g, 5, row, arena, stride)
        sizes[0], sizes[1], sizes[2] = blocks * b * b, slots_x * n * b, slots_y * n * b
        slice_ = <long>n * b
        for part in range(3):
            stored[part] = operand(g, 6 + part, row, arena, stride)
            wide[part] = <float *>stored[part]
        if half:
            spare = <float *>scratch(s, <size_t>(sizes[0] + sizes[1] + sizes[2]) * 4 + 64)
            if spare == NULL:
                return
            for part in range(3):
                if part != written:
                    table.convert[DT_F32][DT_F16](sizes[part], spare, stored[part], NULL, NULL, NULL)
                    wide[part] = spare
                    spare += sizes[part]
                elif narrow:
                    wide[part] = spare
                    spare += sizes[part]
        memset(wide[written], 0, <size_t>sizes[written] * 4)
        for i in range(blocks):
            k, m = position(at, 2 * i, width), position(at, 2 * i + 1, width)
            if k < 0 or k >= slots_x or m < 0 or m >= slots_y:
                continue
            if mode == SAMPLED and narrow and b > 1:
                # The rows are the input channels: a rounding for each AMP block of them.
                gemm_f16(wide[1] + k * slice_, wide[2] + m * slice_, wide[0] + i * b * b, stored[0] + i * b * b * 2,
                         b, b, n, n, True, False, table, &s.fp, NULL)
                table.convert[DT_F32][DT_F16](b * b, wide[0] + i * b * b, stored[0] + i * b * b * 2, NULL, NULL, NULL)
                continue
            block(table, mode, wide[0] + i * b * b, wide[1] + k * slice_, wide[2] + m * slice_, n, b)
            if narrow and b > 1:
                first = (k if mode == TRANSPOSED else m) * slice_
                table.convert[DT_F16][DT_F32](slice_, stored[written] + first * 2, wide[written] + first, NULL, NULL,
                                              &s.fp)
                table.convert[DT_F32][DT_F16](slice_, wide[written] + first, stored[written] + first * 2, NULL, NULL,
                                              NULL)
        if narrow:
            table.convert[DT_F16][DT_F32](sizes[written], stored[written], wide[written], NULL, NULL, &s.fp)
        watch(s, <int>g.params[2], sizes[written], stored[written], <int>g.params[1], sizes[0] if written else sizes[1],
              stored[0 if written else 1], sizes[1] if written == 2 else sizes[2], stored[1 if written == 2 else 2])
