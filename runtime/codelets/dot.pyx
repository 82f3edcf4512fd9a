"""Matrix product of one tile's blocks: C[b] = A[b] B[b], partial sums in fp32, fp16 (of fp16) or int32.

Parameters: dtype of A and B, A is stored [k, m], B is stored [n, k], the planned method (cycles only), dtype of C.
Columns: tile, batch, m, n, k, offset of A, of B, of C.

fp32 goes to the product of kernels/vec_gemm.h. Measured against a library's packed one (OpenBLAS 0.3, one core with
AVX2): 1.2 to 2.5 times as fast on operands in memory, 1.1 to 4 times on those in cache.

With fp16 partial sums the AMP takes 16 input channels at a time: exact within a block of them, one rounding to fp16 a
block [unvalidated: no source says where the chip rounds].
"""
from libc.stdint cimport int8_t, int32_t, uint8_t
from libc.string cimport memset

from ipu_runtime._vec cimport DT_F16, DT_F32, DT_S8, DT_U8, vec_ahead, vec_dtype_size, vec_fp, vec_select, vec_table
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch, watch


DEF BLOCK = 16   # input channels of an fp16 AMP block


cdef void gemm_f16(const float *a, const float *b, float *wide, char *c, int m, int n, int k, int run, bint ta, bint tb,
                   const vec_table *table, vec_fp *fp, vec_ahead *ahead) noexcept nogil:
    """Row-major C[m, n] = A[m, k] B[k, n] with partial sums in fp16, rounded after each block of input channels.

    `ta`: A is stored [k, m], `tb`: B is stored [n, k].

    `wide` has room for C in fp32. Blocks do not cross the ends of runs of `run` channels (the taps of a convolution).
    """
    cdef int first = 0, lda = m if ta else k, ldb = k if tb else n, depth, left
    if k == 0:
        memset(c, 0, <size_t>m * n * 2)
    while first < k:
        left = run - first % run
        depth = BLOCK if left > BLOCK else left
        table.gemm(a + (first * lda if ta else first), lda, b + (first if tb else first * ldb), ldb, wide, m, n, depth,
                   ta, tb, first > 0, ahead)
        table.convert[DT_F16][DT_F32](<long>m * n, c, wide, NULL, NULL, fp)
        first += depth
        if first < k:
            table.convert[DT_F32][DT_F16](<long>m * n, wide, c, NULL, NULL, NULL)


ctypedef fused integer:
    int8_t
    uint8_t
    int32_t


cdef void integer_dot(const integer *a, const integer *b, int32_t *c, int m, int n, int k, bint ta,
                      bint tb) noexcept nogil:
    """The same for integers: sums in int32, wrapping."""
    cdef int i, j, d
    cdef unsigned int x
    for i in range(m):
        for j in range(n):
            c[i * n + j] = 0
        for d in range(k):
            x = <unsigned int><int32_t>(a[d * m + i] if ta else a[i * k + d])
            for j in range(n):
                c[i * n + j] = <int32_t>(<unsigned int>c[i * n + j] + x * <unsigned int><int32_t>(
                    b[j * k + d] if tb else b[d * n + j]))


cdef void *prepare_dot(const Group *g) noexcept:
    return <void *>vec_select(NULL)


cdef inline void next_operands(const Group *g, long row, bint there, int size, char *arena, size_t stride,
                               vec_ahead *ahead) noexcept nogil:
    cdef long batch, m, n, k
    ahead.at = ahead.end = ahead.next = ahead.next_end = arena
    if there:
        batch, m, n, k = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        ahead.at, ahead.next = operand(g, 5, row, arena, stride), operand(g, 6, row, arena, stride)
        ahead.end, ahead.next_end = ahead.at + batch * m * k * size, ahead.next + batch * k * n * size


cdef void run_dot(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef int dtype = <int>g.params[0]
    cdef bint ta = g.params[1] != 0, tb = g.params[2] != 0, narrow = g.params[4] == DT_F16
    cdef long row, i, batch, ia, ib, ic
    cdef int m, n, k
    cdef char *a
    cdef char *b
    cdef char *c
    cdef float *wide
    cdef vec_ahead ahead
    cdef int size = vec_dtype_size(dtype)
    for row in range(lo, hi):
        begin_row(s, row)
        batch, m, n, k = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        # Each tile's operands come from memory: those of the next tile while this one's are multiplied.
        next_operands(g, row + 1, row + 1 < hi, size, arena, stride, &ahead)
        ahead.products = batch * ((k + BLOCK - 1) // BLOCK if narrow else 1)
        a, b = operand(g, 5, row, arena, stride), operand(g, 6, row, arena, stride)
        c = operand(g, 7, row, arena, stride)
        if dtype == DT_F16:
            wide = <float *>scratch(s, (<size_t>batch * (m + n) * k + m * n) * 4 + 64)
            if wide == NULL:
                return
            table.convert[DT_F32][DT_F16](batch * m * k, wide, a, NULL, NULL, NULL)
            table.convert[DT_F32][DT_F16](batch * n * k, wide + batch * m * k, b, NULL, NULL, NULL)
            a, b = <char *>wide, <char *>(wide + batch * m * k)
            wide += batch * (m + n) * k
        for i in range(batch):
            ia, ib, ic = i * m * k, i * k * n, i * m * n
            if narrow:
                gemm_f16(<float *>a + ia, <float *>b + ib, wide, c + ic * 2, m, n, k, k, ta, tb, table, &s.fp,
                         &ahead)
            elif dtype == DT_F32 or dtype == DT_F16:
                table.gemm(<float *>a + ia, m if ta else k, <float *>b + ib, k if tb else n, <float *>c + ic, m, n, k,
                           ta, tb, False, &ahead)
            elif dtype == DT_S8:
                integer_dot[int8_t](<int8_t *>a + ia, <int8_t *>b + ib, <int32_t *>c + ic, m, n, k, ta, tb)
            elif dtype == DT_U8:
                integer_dot[uint8_t](<uint8_t *>a + ia, <uint8_t *>b + ib, <int32_t *>c + ic, m, n, k, ta, tb)
            else:
                integer_dot[int32_t](<int32_t *>a + ia, <int32_t *>b + ib, <int32_t *>c + ic, m, n, k, ta, tb)
        watch(s, <int>g.params[4], batch * m * n, c, dtype, batch * m * k, operand(g, 5, row, arena, stride),
              batch * n * k, operand(g, 6, row, arena, stride))
