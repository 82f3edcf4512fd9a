/* The kernels themselves, compiled once for each instruction set (vec_baseline.c, vec_avx2.c, vec_avx512.c).
 *
 * Loops are plain C that the compiler vectorises. `ivdep` is true by the contract of vec.h: an output is either the
 * same array as an operand or apart from it. The .c files are compiled with -ffp-contract=off, so every instruction
 * set rounds alike. VEC_LEVEL: 0 baseline, 1 AVX2, 2 AVX-512. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if VEC_LEVEL > 0
#include <immintrin.h>
#endif

#include "vec.h"

typedef uint8_t pred_t;

#if defined(__clang__)
#define IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define IVDEP _Pragma("GCC ivdep")
#endif

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NEVER_INLINE __attribute__((noinline))
#else
#define ALWAYS_INLINE inline
#define NEVER_INLINE
#endif

#define ARGS long n, void *out_, const void *a_, const void *b_, const void *c_, vec_fp *fp_
#define PASS out_, a_, b_, c_, fp_

/* Define kernel NAME: R out[i] = EXPR of x (and y, z), operands of types A, B, C. */
#define UNARY(NAME, R, A, EXPR)                 \
    static void NAME(ARGS)                      \
    {                                           \
        R *out = out_;                          \
        const A *a = a_;                        \
        (void)b_, (void)c_, (void)fp_;                     \
        IVDEP for (long i = 0; i < n; i++)      \
        {                                       \
            const A x = a[i];                   \
            out[i] = (R)(EXPR);                 \
        }                                       \
    }
#define BINARY(NAME, R, A, EXPR)                \
    static void NAME(ARGS)                      \
    {                                           \
        R *out = out_;                          \
        const A *a = a_, *b = b_;               \
        (void)c_, (void)fp_;                    \
        IVDEP for (long i = 0; i < n; i++)      \
        {                                       \
            const A x = a[i], y = b[i];         \
            out[i] = (R)(EXPR);                 \
        }                                       \
    }
#define TERNARY(NAME, R, A, B, EXPR)            \
    static void NAME(ARGS)                      \
    {                                           \
        R *out = out_;                          \
        const A *a = a_;                        \
        const B *b = b_, *c = c_;               \
        (void)fp_;                              \
        IVDEP for (long i = 0; i < n; i++)      \
        {                                       \
            const A x = a[i];                   \
            const B y = b[i], z = c[i];         \
            out[i] = (R)(EXPR);                 \
        }                                       \
    }

#define INTS(X)                                 \
    X(s8, int8_t, uint8_t, 8)                   \
    X(u8, uint8_t, uint8_t, 8)                  \
    X(s16, int16_t, uint16_t, 16)               \
    X(u16, uint16_t, uint16_t, 16)              \
    X(s32, int32_t, uint32_t, 32)               \
    X(u32, uint32_t, uint32_t, 32)              \
    X(s64, int64_t, uint64_t, 64)               \
    X(u64, uint64_t, uint64_t, 64)
#define UINTS(X)                                \
    X(u8, uint8_t, uint8_t, 8)                  \
    X(u16, uint16_t, uint16_t, 16)              \
    X(u32, uint32_t, uint32_t, 32)              \
    X(u64, uint64_t, uint64_t, 64)
#define SINTS(X)                                \
    X(s8, int8_t, uint8_t, 8)                   \
    X(s16, int16_t, uint16_t, 16)               \
    X(s32, int32_t, uint32_t, 32)               \
    X(s64, int64_t, uint64_t, 64)

/* ---- Integers. What is equal for both signs exists once, for the unsigned type. ---- */

/* Integers narrower than int are promoted, so wrap-around is computed in an unsigned type of 32 bits or more. */
#define WIDE(x) ((x) + 0u)

#define K(t, T, U, W)                                                         \
    UNARY(copy_##t, T, T, x)                                                  \
    UNARY(neg_##t, T, T, 0u - WIDE(x))                                        \
    UNARY(not_##t, T, T, ~x)                                                  \
    UNARY(sgn_##t, T, T, x != 0)                                              \
    BINARY(add_##t, T, T, WIDE(x) + y)                                        \
    BINARY(sub_##t, T, T, WIDE(x) - y)                                        \
    BINARY(mul_##t, T, T, WIDE(x) * y)                                        \
    BINARY(and_##t, T, T, x & y)                                              \
    BINARY(or_##t, T, T, x | y)                                               \
    BINARY(xor_##t, T, T, x ^ y)                                              \
    BINARY(shl_##t, T, T, y < W ? WIDE(x) << (y & (W - 1)) : 0)               \
    BINARY(shr_##t, T, T, y < W ? x >> (y & (W - 1)) : 0)                     \
    BINARY(eq_##t, pred_t, T, x == y)                                         \
    BINARY(ne_##t, pred_t, T, x != y)                                         \
    TERNARY(sel_##t, T, pred_t, T, x ? y : z)
UINTS(K)
#undef K

/* Number of one bits of a W-bit number, by halving: vectorises on every instruction set. */
#define POPCOUNT(T, W)                                                        \
    static inline T ones_##T(T x)                                             \
    {                                                                         \
        x = (T)(x - ((x >> 1) & (T)0x5555555555555555u));                     \
        x = (T)((x & (T)0x3333333333333333u) + ((x >> 2) & (T)0x3333333333333333u)); \
        x = (T)((x + (x >> 4)) & (T)0x0f0f0f0f0f0f0f0fu);                     \
        for (int s = 8; s < W; s *= 2)                                        \
            x = (T)(x + (x >> (s < W ? s : 0)));                              \
        return (T)(x & 0x7f);                                                 \
    }                                                                         \
    static inline T zeros_##T(T x)                                            \
    {                                                                         \
        for (int s = 1; s < W; s *= 2)                                        \
            x = (T)(x | (x >> (s < W ? s : 0)));                              \
        return ones_##T((T)~x);                                               \
    }
POPCOUNT(uint8_t, 8)
POPCOUNT(uint16_t, 16)
POPCOUNT(uint32_t, 32)
POPCOUNT(uint64_t, 64)
#undef POPCOUNT

#define K(t, T, U, W)                                                         \
    UNARY(popcnt_##t, T, T, ones_##T(x))                                      \
    UNARY(clz_##t, T, T, zeros_##T(x))                                        \
    BINARY(div_##t, T, T, y ? x / y : (T)-1)                                  \
    BINARY(rem_##t, T, T, y ? x % y : x)
UINTS(K)
#undef K

#define K(t, T, U, W)                                                         \
    UNARY(abs_##t, T, T, x < 0 ? 0u - WIDE((U)x) : (U)x)                      \
    UNARY(sgn_##t, T, T, (x > 0) - (x < 0))                                   \
    BINARY(div_##t, T, T, y == 0 ? -1 : y == -1 ? (T)(0u - WIDE((U)x)) : x / y) \
    BINARY(rem_##t, T, T, y == 0 ? x : y == -1 ? 0 : x % y)                   \
    BINARY(sra_##t, T, T, x >> ((U)y < W ? (U)y : W - 1))
SINTS(K)
#undef K
#define K(t, T, U, W)                                                         \
    static void sra_##t(ARGS) { sra_s##W(n, PASS); }
UINTS(K)
#undef K

/* XLA on the CPU looks at the low six bits of the exponent only; a negative one gives the integer part of 1/x^|y|. */
#define K(t, T, U, W)                                                         \
    static inline T ipow_##t(T x, T y)                                        \
    {                                                                         \
        if ((T)-1 < (T)1 && y < (T)1 && y != 0) /* negative; false for unsigned T */ \
            return x == 1 ? 1 : x == (T)-1 ? (y & 1 ? x : 1) : 0;             \
        U r = 1, p = (U)x;                                                    \
        for (unsigned e = (unsigned)(y & 63); e; e >>= 1) {                   \
            if (e & 1)                                                        \
                r = (U)(WIDE(r) * p);                                         \
            p = (U)(WIDE(p) * p);                                             \
        }                                                                     \
        return (T)r;                                                          \
    }                                                                         \
    BINARY(pow_##t, T, T, ipow_##t(x, y))                                     \
    BINARY(max_##t, T, T, x > y ? x : y)                                      \
    BINARY(min_##t, T, T, x < y ? x : y)                                      \
    BINARY(lt_##t, pred_t, T, x < y)                                          \
    BINARY(le_##t, pred_t, T, x <= y)                                         \
    TERNARY(clamp_##t, T, T, T, z < (y > x ? y : x) ? z : (y > x ? y : x))
INTS(K)
#undef K

/* a > b is b < a */
#define K(t, T, U, W)                                                         \
    static void gt_##t(ARGS) { lt_##t(n, out_, b_, a_, c_, fp_); }                 \
    static void ge_##t(ARGS) { le_##t(n, out_, b_, a_, c_, fp_); }
INTS(K)
#undef K

UNARY(not_pred, pred_t, pred_t, x ^ 1)

#include "vec_f32.h"
#include "vec_convert.h"
#include "vec_f16.h"
#include "vec_reduce.h"
#include "vec_philox.h"

#if defined(__GNUC__)
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#else
#define FETCH(p) (void)(p)
#endif

/* A few lines at a time: they arrive while the block is computed, and all at once would stop it. */
static inline void fetch_ahead(vec_ahead *ahead)
{
    for (long i = 0; i < ahead->lines; i++, ahead->at += 64) {
        if (ahead->at >= ahead->end) {
            if (ahead->next >= ahead->next_end)
                return;
            ahead->at = ahead->next, ahead->end = ahead->next_end;
            ahead->next = ahead->next_end;
        }
        FETCH(ahead->at);
    }
}

#define GEMM_REAL float
#define GEMM_SUFFIX f32
#define GEMM_INTEL ps
#include "vec_gemm.h"
#define GEMM_REAL double
#define GEMM_SUFFIX f64
#define GEMM_INTEL pd
#include "vec_gemm.h"

/* ---- The table ---- */

#define SAME_FOR_SIGNS(op)                                                    \
    {                                                                         \
        [DT_S8] = op##_u8, [DT_U8] = op##_u8, [DT_S16] = op##_u16, [DT_U16] = op##_u16, [DT_S32] = op##_u32, \
        [DT_U32] = op##_u32, [DT_S64] = op##_u64, [DT_U64] = op##_u64
#define BY_SIGN(op)                                                           \
    {                                                                         \
        [DT_S8] = op##_s8, [DT_U8] = op##_u8, [DT_S16] = op##_s16, [DT_U16] = op##_u16, [DT_S32] = op##_s32, \
        [DT_U32] = op##_u32, [DT_S64] = op##_s64, [DT_U64] = op##_u64
#define FLOATS(op) [DT_F32] = op##_f32, [DT_F16] = op##_f16

const vec_table VEC_TABLE = {
    .name = VEC_TABLE_NAME,
    .philox = philox,
    .gemm = gemm_f32,
    .gemm_f64 = gemm_f64,
    .op = {
        [VEC_COPY] = SAME_FOR_SIGNS(copy), [DT_PRED] = copy_u8, [DT_F16] = copy_u16, [DT_F32] = copy_u32},
        [VEC_ABS] = {[DT_S8] = abs_s8, [DT_U8] = copy_u8, [DT_S16] = abs_s16, [DT_U16] = copy_u16, [DT_S32] = abs_s32,
                     [DT_U32] = copy_u32, [DT_S64] = abs_s64, [DT_U64] = copy_u64, FLOATS(abs)},
        [VEC_NEGATE] = SAME_FOR_SIGNS(neg), FLOATS(neg)},
        [VEC_SIGN] = BY_SIGN(sgn), FLOATS(sgn)},
        [VEC_CEIL] = {FLOATS(ceil)},
        [VEC_FLOOR] = {FLOATS(floor)},
        [VEC_ROUND_NEAREST_AFZ] = {FLOATS(afz)},
        [VEC_ROUND_NEAREST_EVEN] = {FLOATS(rne)},
        [VEC_EXPONENTIAL] = {FLOATS(exp)},
        [VEC_EXPONENTIAL_MINUS_ONE] = {FLOATS(expm1)},
        [VEC_LOG] = {FLOATS(log)},
        [VEC_LOG_PLUS_ONE] = {FLOATS(log1p)},
        [VEC_SQRT] = {FLOATS(sqrt)},
        [VEC_RSQRT] = {FLOATS(rsqrt)},
        [VEC_CBRT] = {FLOATS(cbrt)},
        [VEC_SINE] = {FLOATS(sin)},
        [VEC_COSINE] = {FLOATS(cos)},
        [VEC_TAN] = {FLOATS(tan)},
        [VEC_TANH] = {FLOATS(tanh)},
        [VEC_LOGISTIC] = {FLOATS(logistic)},
        [VEC_ERF] = {FLOATS(erf)},
        [VEC_IS_FINITE] = {FLOATS(isfinite)},
        [VEC_NOT] = SAME_FOR_SIGNS(not), [DT_PRED] = not_pred},
        [VEC_POPCNT] = SAME_FOR_SIGNS(popcnt)},
        [VEC_COUNT_LEADING_ZEROS] = SAME_FOR_SIGNS(clz)},
        [VEC_ADD] = SAME_FOR_SIGNS(add), [DT_PRED] = or_u8, FLOATS(add)},
        [VEC_SUBTRACT] = SAME_FOR_SIGNS(sub), FLOATS(sub)},
        [VEC_MULTIPLY] = SAME_FOR_SIGNS(mul), [DT_PRED] = and_u8, FLOATS(mul)},
        [VEC_DIVIDE] = BY_SIGN(div), FLOATS(div)},
        [VEC_REMAINDER] = BY_SIGN(rem), FLOATS(rem)},
        [VEC_MAXIMUM] = BY_SIGN(max), [DT_PRED] = or_u8, FLOATS(max)},
        [VEC_MINIMUM] = BY_SIGN(min), [DT_PRED] = and_u8, FLOATS(min)},
        [VEC_POWER] = BY_SIGN(pow), FLOATS(pow)},
        [VEC_ATAN2] = {FLOATS(atan2)},
        [VEC_AND] = SAME_FOR_SIGNS(and), [DT_PRED] = and_u8},
        [VEC_OR] = SAME_FOR_SIGNS(or), [DT_PRED] = or_u8},
        [VEC_XOR] = SAME_FOR_SIGNS(xor), [DT_PRED] = xor_u8},
        [VEC_SHIFT_LEFT] = SAME_FOR_SIGNS(shl)},
        [VEC_SHIFT_RIGHT_ARITHMETIC] = BY_SIGN(sra)},
        [VEC_SHIFT_RIGHT_LOGICAL] = SAME_FOR_SIGNS(shr)},
        [VEC_COMPARE_EQ] = SAME_FOR_SIGNS(eq), [DT_PRED] = eq_u8, FLOATS(eq)},
        [VEC_COMPARE_NE] = SAME_FOR_SIGNS(ne), [DT_PRED] = ne_u8, FLOATS(ne)},
        [VEC_COMPARE_LT] = BY_SIGN(lt), [DT_PRED] = lt_u8, FLOATS(lt)},
        [VEC_COMPARE_LE] = BY_SIGN(le), [DT_PRED] = le_u8, FLOATS(le)},
        [VEC_COMPARE_GT] = BY_SIGN(gt), [DT_PRED] = gt_u8, FLOATS(gt)},
        [VEC_COMPARE_GE] = BY_SIGN(ge), [DT_PRED] = ge_u8, FLOATS(ge)},
        [VEC_SELECT] = SAME_FOR_SIGNS(sel), [DT_PRED] = sel_u8, [DT_F16] = sel_u16, [DT_F32] = sel_u32},
        [VEC_CLAMP] = BY_SIGN(clamp), FLOATS(clamp)},
    },
#define ROW(to)                                                               \
    {                                                                         \
        [DT_PRED] = to##_from_pred, [DT_S8] = to##_from_s8, [DT_U8] = to##_from_u8, [DT_S16] = to##_from_s16, \
        [DT_U16] = to##_from_u16, [DT_S32] = to##_from_s32, [DT_U32] = to##_from_u32, [DT_S64] = to##_from_s64, \
        [DT_U64] = to##_from_u64, [DT_F16] = to##_from_f16, [DT_F32] = to##_from_f32                             \
    }
    .convert = {[DT_PRED] = ROW(pred), [DT_S8] = ROW(s8), [DT_U8] = ROW(u8), [DT_S16] = ROW(s16), [DT_U16] = ROW(u16),
                [DT_S32] = ROW(s32), [DT_U32] = ROW(u32), [DT_S64] = ROW(s64), [DT_U64] = ROW(u64),
                [DT_F16] = ROW(f16), [DT_F32] = ROW(f32)},
    .reduce = {
        [VEC_ADD] = SAME_FOR_SIGNS(radd), [DT_PRED] = ror_u8, FLOATS(radd)},
        [VEC_MULTIPLY] = SAME_FOR_SIGNS(rmul), [DT_PRED] = rand_u8, FLOATS(rmul)},
        [VEC_MAXIMUM] = BY_SIGN(rmax), [DT_PRED] = ror_u8, FLOATS(rmax)},
        [VEC_MINIMUM] = BY_SIGN(rmin), [DT_PRED] = rand_u8, FLOATS(rmin)},
        [VEC_AND] = SAME_FOR_SIGNS(rand), [DT_PRED] = rand_u8},
        [VEC_OR] = SAME_FOR_SIGNS(ror), [DT_PRED] = ror_u8},
        [VEC_XOR] = SAME_FOR_SIGNS(rxor), [DT_PRED] = rxor_u8},
    },
};
