/* Element-wise kernels on contiguous chunks, one table of function pointers for each instruction set.
 *
 * All tables give the same bits, NaN payloads and matrix products (fused with AVX2) aside. No kernel allocates,
 * locks or keeps state but in its caller's `vec_fp`, so any number of threads may call them. Kernels expect the default
 * floating-point environment: round to nearest, no flush to zero. */
#ifndef IPU_VEC_H
#define IPU_VEC_H

#include <stddef.h>
#include <stdint.h>

#include "vec_ops.h"

enum { DT_PRED, DT_S8, DT_U8, DT_S16, DT_U16, DT_S32, DT_U32, DT_S64, DT_U64, DT_F16, DT_F32, DT_COUNT };

enum {
#define VEC_ENUM(id, name, arity) VEC_##id,
    VEC_OPS(VEC_ENUM)
#undef VEC_ENUM
    VEC_OP_COUNT
};

/* How results become fp16, and what has gone wrong. Bits of `mode`; those of traps are also bits of `raised`. */
enum {
    ROUND_STOCHASTIC = 1,    /* up or down at random, in proportion to what is cut off; else to nearest even */
    ROUND_CLIP = 2,          /* a finite result beyond the largest fp16 number becomes that number, */
    ROUND_NAN = 4,           /* or not a number; with neither it becomes infinity, as IEEE 754 says */
    TRAP_INV = 8,           /* invalid operation: a result that is not a number */
    TRAP_DIV0 = 16,         /* an infinite result of finite operands at a pole: x / 0, log 0 */
    TRAP_OFLO = 32,         /* overflow: a result too large for its type */
    TRAP_ALL = TRAP_INV | TRAP_DIV0 | TRAP_OFLO
};

typedef struct {
    uint32_t mode, raised;
    uint64_t key;         /* of the random bits */
    uint32_t drawn;       /* how many were drawn with this key: draw number i depends on (key, i) alone */
} vec_fp;

/* out may be the same pointer as an operand of equal width; there is no other overlap. Unused operands are ignored.
 * Only kernels with fp16 results look at `fp`; NULL: to nearest even, and to infinity. */
typedef void (*vec_fn)(long n, void *out, const void *a, const void *b, const void *c, vec_fp *fp);

/* acc[0] = op(acc[0], x[0], ..., x[n-1]), in an order that depends on n only. */
typedef void (*reduce_fn)(long n, void *acc, const void *x);

/* What matrix products fetch into the cache while they compute, for the next one: two ranges of memory, spread evenly
 * over the blocks of `products` products. */
typedef struct {
    const char *at, *end, *next, *next_end;
    long products;
    long lines;           /* of 64 bytes with each block: worked out at the start of a product */
} vec_ahead;

typedef struct {
    const char *name;
    vec_fn op[VEC_OP_COUNT][DT_COUNT];         /* [op][operand dtype]; select: dtype of b and c. NULL: does not apply */
    vec_fn convert[DT_COUNT][DT_COUNT];        /* [to][from] */
    reduce_fn reduce[VEC_OP_COUNT][DT_COUNT];  /* add, multiply, maximum, minimum, and, or, xor */
    void (*philox)(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out);
    /* C[m, n] = A[m, k] B[k, n], added to C if `more`; rows of A and B are `lda` and `ldb` elements apart. `ta`: A is
     * stored [k, m], `tb`: B is stored [n, k]. `ahead` may be NULL. */
    void (*gemm)(const float *a, long lda, const float *b, long ldb, float *c, int m, int n, int k, int ta, int tb,
                 int more, vec_ahead *ahead);
    void (*gemm_f64)(const double *a, long lda, const double *b, long ldb, double *c, int m, int n, int k, int ta,
                     int tb, int more, vec_ahead *ahead);
} vec_table;

/* NULL: what IPU_RUNTIME_ISA names, else the best that the CPU has. "baseline", "avx2", "avx512": that one.
 * Returns NULL if the name is unknown or the CPU lacks the instructions. */
const vec_table *vec_select(const char *isa);

/* What an element-wise operation has done wrong, as bits of TRAP_ALL; operands must not have been overwritten. fp16
 * results that overflowed are not seen here: their rounding has raised the bit. `dtype` is that of a (select: of b). */
uint32_t vec_raised(int op, int dtype, long n, const void *out, const void *a, const void *b);

/* Whether there is a NaN (bit 0) or an infinity (bit 1) among n numbers; 0 for dtypes that have none. */
int vec_nonfinite(int dtype, long n, const void *x);

const char *vec_op_name(int op);
int vec_op_arity(int op);
int vec_dtype_size(int dtype);

/* n elements of elem_size bytes (any size; 1, 2, 4, 8 are fast); strides in bytes, may be 0 or negative. */
void copy_strided(long n, int elem_size, void *dst, long dst_stride_bytes, const void *src, long src_stride_bytes);

/* memcpy for what will not be read before the caches have seen much else: it does not bring the destination's lines in
 * first, which is a third of the traffic. Other threads see the data after `fence_copies`. As it goes it asks for as many
 * bytes of `later`, the source of a copy still to come. Only whole lines go past the caches: `fetch_ends` asks for the
 * lines that a later destination shares with its neighbours, whose stores would wait and hold up all behind them. */
void copy_past_caches(void *dst, const void *src, size_t n, const void *later);
void fetch_ends(const void *dst, size_t n);
void fence_copies(void);

/* n_blocks times four words of Philox 4x32-10. Block i has counter ctr + i (128 bits), key words low then high. */
void philox4x32(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out);

#endif
