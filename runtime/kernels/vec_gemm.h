/* Products of the small matrices that a tile holds, of GEMM_REAL; part of vec_impl.h, once for float and for double.
 *
 * C[m, n] = A[m, k] B[k, n], or C += A B. Each element of C is one chain of additions over k from first to last,
 * whatever m, n and the blocks are: a product has the same bits alone and as part of a larger one. (With AVX2 and
 * AVX-512 the chain is of fused multiply-adds, on the baseline of rounded products.)
 *
 * A library packs both operands into panels first, which for blocks of 16 to 128 costs as much as the product.
 * Here rows of B are read where they lie, GEMM_COLUMNS at a time, and only what does not fit that (a transposed B, the
 * last columns) is copied into a panel. A transposed A is copied as it is: read in columns, its rows would come from
 * memory a few bytes at a time. */

#define GEMM_JOIN_(a, b) a##_##b
#define GEMM_JOIN(a, b) GEMM_JOIN_(a, b)
#define GEMM(name) GEMM_JOIN(name, GEMM_SUFFIX)
#if VEC_LEVEL > 0
#if VEC_LEVEL == 2
#define GEMM_BYTES 64
#define GEMM_ROWS 12
#define GEMM_MM(name) GEMM_JOIN(_mm512_##name, GEMM_INTEL)
#else
#define GEMM_BYTES 32
#define GEMM_ROWS 6
#define GEMM_MM(name) GEMM_JOIN(_mm256_##name, GEMM_INTEL)
#endif
#define GEMM_LOAD(p) GEMM_MM(loadu)(p)
#define GEMM_STORE(p, x) GEMM_MM(storeu)(p, x)
#define GEMM_ALL(x) GEMM_MM(set1)(x)
#define GEMM_ADD_PRODUCT(a, b, c) GEMM_MM(fmadd)(a, b, c)
typedef __typeof__(GEMM_ALL(0)) GEMM(vector);
#elif defined(__GNUC__)
#define GEMM_BYTES 16
#define GEMM_ROWS 6
typedef GEMM_REAL GEMM(vector) __attribute__((vector_size(16)));
typedef GEMM_REAL GEMM(unaligned) __attribute__((vector_size(16), aligned(4), may_alias));
#define GEMM_LOAD(p) ((GEMM(vector))(*(const GEMM(unaligned) *)(p)))
#define GEMM_STORE(p, x) (*(GEMM(unaligned) *)(p) = (x))
#define GEMM_ALL(x) ((x) - (GEMM(vector)){0})
#define GEMM_ADD_PRODUCT(a, b, c) ((a) * (b) + (c))
#else
#define GEMM_BYTES sizeof(GEMM_REAL)
#define GEMM_ROWS 6
typedef GEMM_REAL GEMM(vector);
#define GEMM_LOAD(p) (*(p))
#define GEMM_STORE(p, x) (*(p) = (x))
#define GEMM_ALL(x) (x)
#define GEMM_ADD_PRODUCT(a, b, c) ((a) * (b) + (c))
#endif
#define GEMM_WIDTH ((int)(GEMM_BYTES / sizeof(GEMM_REAL)))
#define GEMM_COLUMNS (2 * GEMM_WIDTH)
#define GEMM_DEPTH 256 /* of a panel: its 16 or 32 KiB stay in the first cache */
#define GEMM_HEIGHT (int)(384 / sizeof(GEMM_REAL)) /* rows of a transposed A that are copied at a time: 96 KiB */

/* `rows` x (`vectors` * GEMM_WIDTH) elements of C, which stay in registers: both counts are constants where it is used.
 * Element (i, d) of A is a[i * row_step + d * step]. */
static ALWAYS_INLINE void GEMM(gemm_block)(
    const int rows, const int vectors, const GEMM_REAL *a, long row_step, long step, const GEMM_REAL *b, long ldb,
    GEMM_REAL *c, long ldc, int k, int more, vec_ahead *ahead)
{
    GEMM(vector) sum[GEMM_ROWS][2];
    if (ahead)
        fetch_ahead(ahead);
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            sum[i][v] = more ? GEMM_LOAD(c + i * ldc + v * GEMM_WIDTH) : GEMM_ALL(0);
    for (int d = 0; d < k; d++) {
        GEMM(vector) x[2];
        for (int v = 0; v < vectors; v++)
            x[v] = GEMM_LOAD(b + d * ldb + v * GEMM_WIDTH);
        for (int i = 0; i < rows; i++) {
            const GEMM(vector) y = GEMM_ALL(a[i * row_step + d * step]);
            for (int v = 0; v < vectors; v++)
                sum[i][v] = GEMM_ADD_PRODUCT(y, x[v], sum[i][v]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            GEMM_STORE(c + i * ldc + v * GEMM_WIDTH, sum[i][v]);
}

/* All rows of C for GEMM_WIDTH or two times GEMM_WIDTH of its columns. */
static ALWAYS_INLINE void GEMM(gemm_columns)(
    const int vectors, int m, const GEMM_REAL *a, long row_step, long step, const GEMM_REAL *b, long ldb, GEMM_REAL *c,
    long ldc, int k, int more, vec_ahead *ahead)
{
    int i = 0;
    for (; i + GEMM_ROWS <= m; i += GEMM_ROWS)
        GEMM(gemm_block)(GEMM_ROWS, vectors, a + i * row_step, row_step, step, b, ldb, c + i * ldc, ldc, k, more,
                         ahead);
    a += i * row_step, c += i * ldc;
#define LAST(rows)                                                            \
    case rows: GEMM(gemm_block)(rows, vectors, a, row_step, step, b, ldb, c, ldc, k, more, ahead); break;
    switch (m - i) {
        LAST(1) LAST(2) LAST(3) LAST(4) LAST(5)
#if GEMM_ROWS > 6
        LAST(6) LAST(7) LAST(8) LAST(9) LAST(10) LAST(11)
#endif
    }
#undef LAST
}

/* Rows d of B for `columns` of its columns, GEMM_COLUMNS apart and filled up with zeros. */
static void GEMM(gemm_panel)(GEMM_REAL *panel, const GEMM_REAL *b, long row_step, long step, int depth, int columns)
{
    int by_four = 0, d_by_four = 0;
#if VEC_LEVEL > 0
    if (row_step == 1 && sizeof *b == sizeof(float)) { /* squares of four, transposed in registers */
        by_four = columns & ~3, d_by_four = depth & ~3;
        for (int j = 0; j < by_four; j += 4)
            for (int d = 0; d < d_by_four; d += 4) {
                __m128 x[4];
                for (int q = 0; q < 4; q++)
                    x[q] = _mm_loadu_ps((const float *)(b + d + (j + q) * step));
                _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
                for (int q = 0; q < 4; q++)
                    _mm_storeu_ps((float *)(panel + (d + q) * GEMM_COLUMNS + j), x[q]);
            }
    }
#endif
    for (int d = 0; d < depth; d++) {
        GEMM_REAL *row = panel + d * GEMM_COLUMNS;
        for (int j = d < d_by_four ? by_four : 0; j < columns; j++)
            row[j] = b[d * row_step + j * step];
        for (int j = columns; j < GEMM_COLUMNS; j++)
            row[j] = 0;
    }
}

/* The same as gemm_columns for fewer columns, or for elements of C that are not side by side: by way of a copy. */
static void GEMM(gemm_edge)(int columns, int m, const GEMM_REAL *a, long row_step, long step, const GEMM_REAL *b,
                            long ldb, GEMM_REAL *c, long c_row_step, long c_step, int k, int more, vec_ahead *ahead)
{
    GEMM_REAL block[GEMM_ROWS * GEMM_COLUMNS] = {0};
    for (int i = 0; i < m; i += GEMM_ROWS, a += GEMM_ROWS * row_step, c += GEMM_ROWS * c_row_step) {
        const int rows = m - i < GEMM_ROWS ? m - i : GEMM_ROWS;
        for (int r = 0; more && r < rows; r++)
            for (int j = 0; j < columns; j++)
                block[r * GEMM_COLUMNS + j] = c[r * c_row_step + j * c_step];
        if (columns > GEMM_WIDTH)
            GEMM(gemm_columns)(2, rows, a, row_step, step, b, ldb, block, GEMM_COLUMNS, k, more, ahead);
        else
            GEMM(gemm_columns)(1, rows, a, row_step, step, b, ldb, block, GEMM_COLUMNS, k, more, ahead);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < columns; j++)
                c[r * c_row_step + j * c_step] = block[r * GEMM_COLUMNS + j];
    }
}

/* Element (i, d) of A is a[i * a_row_step + d * a_step], and likewise of B and C. */
static void GEMM(gemm_strided)(const GEMM_REAL *a, long a_row_step, long a_step, const GEMM_REAL *b, long b_row_step,
                               long b_step, GEMM_REAL *c, long c_row_step, long c_step, int m, int n, int k, int more,
                               vec_ahead *ahead)
{
    GEMM_REAL panel[GEMM_DEPTH * GEMM_COLUMNS];
    for (int j = 0; j < n; j += GEMM_COLUMNS, b += GEMM_COLUMNS * b_step, c += GEMM_COLUMNS * c_step) {
        const int columns = n - j < GEMM_COLUMNS ? n - j : GEMM_COLUMNS;
        const int whole = columns == GEMM_COLUMNS || columns == GEMM_WIDTH;
        const GEMM_REAL *rows = b;
        long ldb = b_row_step;
        if (b_step != 1 || !whole) {
            GEMM(gemm_panel)(panel, b, b_row_step, b_step, k, columns);
            rows = panel, ldb = GEMM_COLUMNS;
        }
        if (c_step != 1 || !whole)
            GEMM(gemm_edge)(columns, m, a, a_row_step, a_step, rows, ldb, c, c_row_step, c_step, k, more, ahead);
        else if (columns == GEMM_COLUMNS)
            GEMM(gemm_columns)(2, m, a, a_row_step, a_step, rows, ldb, c, c_row_step, k, more, ahead);
        else
            GEMM(gemm_columns)(1, m, a, a_row_step, a_step, rows, ldb, c, c_row_step, k, more, ahead);
    }
}

/* The same for an A that is stored [k, m], by way of copies of its rows: apart, as they need much of the stack. */
static NEVER_INLINE void GEMM(gemm_turned)(const GEMM_REAL *a, long lda, const GEMM_REAL *b, long b_row_step,
                                           long b_step, GEMM_REAL *c, int m, int n, int k, int more, vec_ahead *ahead)
{
    GEMM_REAL turned[GEMM_DEPTH * GEMM_HEIGHT];
    for (int i = 0; i < m; i += GEMM_HEIGHT) {
        const int height = m - i < GEMM_HEIGHT ? m - i : GEMM_HEIGHT;
        for (int d = 0; d < k; d++)
            memcpy(turned + d * height, a + d * lda + i, (size_t)height * sizeof *turned);
        GEMM(gemm_strided)(turned, 1, height, b, b_row_step, b_step, c + (long)i * n, n, 1, height, n, k, more, ahead);
    }
}

/* Rows of A and B are `lda` and `ldb` elements apart, those of C `n`. `ta`: A is stored [k, m], `tb`: B is stored
 * [n, k]. `more`: add to C. */
static void GEMM(gemm)(const GEMM_REAL *a, long lda, const GEMM_REAL *b, long ldb, GEMM_REAL *c, int m, int n, int k,
                       int ta, int tb, int more, vec_ahead *ahead)
{
    const long a_row = ta ? 1 : lda, a_step = ta ? lda : 1, b_row = tb ? 1 : ldb, b_step = tb ? ldb : 1;
    const int swap = n < GEMM_WIDTH && m > n; /* vectors of columns would be mostly empty */
    int first = 0;
    if (ahead) {
        const long rows = swap ? n : m, columns = swap ? m : n;
        const long left = ahead->end - ahead->at + ahead->next_end - ahead->next;
        const long blocks = (rows / GEMM_ROWS + 1) * (columns / GEMM_COLUMNS + 1) * (k / GEMM_DEPTH + 1);
        ahead->lines = ahead->products > 0 ? left / (64 * blocks * ahead->products--) + 1 : 0;
    }
    do {
        const int depth = k - first < GEMM_DEPTH ? k - first : GEMM_DEPTH;
        const GEMM_REAL *x = a + first * a_step, *y = b + first * b_row;
        if (swap) /* the transposed product of the operands in turn */
            GEMM(gemm_strided)(y, b_step, b_row, x, a_step, a_row, c, 1, n, n, m, depth, more, ahead);
        else if (!ta || m <= 2 * GEMM_ROWS)
            GEMM(gemm_strided)(x, a_row, a_step, y, b_row, b_step, c, n, 1, m, n, depth, more, ahead);
        else
            GEMM(gemm_turned)(x, lda, y, b_row, b_step, c, m, n, depth, more, ahead);
        first += GEMM_DEPTH, more = 1;
    } while (first < k);
}

#undef GEMM_JOIN_
#undef GEMM_JOIN
#undef GEMM
#undef GEMM_MM
#undef GEMM_BYTES
#undef GEMM_ROWS
#undef GEMM_LOAD
#undef GEMM_STORE
#undef GEMM_ALL
#undef GEMM_ADD_PRODUCT
#undef GEMM_WIDTH
#undef GEMM_COLUMNS
#undef GEMM_DEPTH
#undef GEMM_HEIGHT
#undef GEMM_REAL
#undef GEMM_SUFFIX
#undef GEMM_INTEL
