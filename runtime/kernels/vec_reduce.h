/* Reductions of a contiguous chunk into one element; part of vec_impl.h.
 *
 * A float chunk of 16 or more is dealt to 16 lanes (element i to lane i mod 16), then the lanes are folded in halves.
 * The order depends on n alone, so all instruction sets agree. */

#define LANES 16
#define PART (4 << VEC_LEVEL) /* lanes in a register */
#define PARTS (LANES / PART)
typedef float part_f32 __attribute__((vector_size(4 * PART)));
typedef int32_t part_s32 __attribute__((vector_size(4 * PART)));

#define ADD(x, y) ((x) + (y))
#define MUL(x, y) ((x) * (y))
#define PICK(mask, x, y) ((part_f32)(((part_s32)(x) & (mask)) | ((part_s32)(y) & ~(mask))))
#define VMAX(x, y) PICK(((x) >= (y)) | ((x) != (x)), x, y)
#define VMIN(x, y) PICK(((x) <= (y)) | ((x) != (x)), x, y)

#define REDUCE_F32(NAME, VOP, OP)                                             \
    static inline float NAME##_lanes(long n, float acc, const float *x)       \
    {                                                                         \
        long i = 0;                                                           \
        if (n >= LANES) {                                                     \
            float lane[LANES];                                                \
            part_f32 sum[PARTS], next;                                        \
            memcpy(sum, x, sizeof sum);                                       \
            for (i = LANES; i + LANES <= n; i += LANES)                       \
                for (int p = 0; p < PARTS; p++) {                             \
                    memcpy(&next, x + i + p * PART, sizeof next);             \
                    sum[p] = VOP(sum[p], next);                               \
                }                                                             \
            memcpy(lane, sum, sizeof sum);                                    \
            for (long j = 0; i < n; i++, j++)                                 \
                lane[j] = OP(lane[j], x[i]);                                  \
            for (int half = LANES / 2; half; half /= 2)                       \
                for (int j = 0; j < half; j++)                                \
                    lane[j] = OP(lane[j], lane[j + half]);                    \
            acc = OP(acc, lane[0]);                                           \
        }                                                                     \
        for (; i < n; i++)                                                    \
            acc = OP(acc, x[i]);                                              \
        return acc;                                                           \
    }                                                                         \
    static void NAME##_f32(long n, void *acc, const void *x)                  \
    {                                                                         \
        *(float *)acc = NAME##_lanes(n, *(float *)acc, x);                    \
    }                                                                         \
    static void NAME##_f16(long n, void *acc, const void *x_)                 \
    {                                                                         \
        const uint16_t *x = x_;                                               \
        float sum = half_to_float(*(uint16_t *)acc), fx[F16_BLOCK];           \
        for (long i = 0; i < n; i += F16_BLOCK) {                             \
            long m = n - i < F16_BLOCK ? n - i : F16_BLOCK;                   \
            f32_from_f16(m, fx, x + i, 0, 0, 0);                              \
            sum = NAME##_lanes(m, sum, fx);                                   \
        }                                                                     \
        *(uint16_t *)acc = float_to_half(sum);                                \
    }
REDUCE_F32(radd, ADD, ADD)
REDUCE_F32(rmul, MUL, MUL)
REDUCE_F32(rmax, VMAX, max1)
REDUCE_F32(rmin, VMIN, min1)

#define REDUCE_INT(NAME, T, EXPR)                                             \
    static void NAME(long n, void *acc, const void *x_)                       \
    {                                                                         \
        const T *a = x_;                                                      \
        T x = *(T *)acc;                                                      \
        for (long i = 0; i < n; i++) {                                        \
            const T y = a[i];                                                 \
            x = (T)(EXPR);                                                    \
        }                                                                     \
        *(T *)acc = x;                                                        \
    }
#define K(t, T, U, W)                                                         \
    REDUCE_INT(radd_##t, T, WIDE(x) + y)                                      \
    REDUCE_INT(rmul_##t, T, WIDE(x) * y)                                      \
    REDUCE_INT(rand_##t, T, x & y)                                            \
    REDUCE_INT(ror_##t, T, x | y)                                             \
    REDUCE_INT(rxor_##t, T, x ^ y)
UINTS(K)
#undef K
#define K(t, T, U, W)                                                         \
    REDUCE_INT(rmax_##t, T, x > y ? x : y)                                    \
    REDUCE_INT(rmin_##t, T, x < y ? x : y)
INTS(K)
#undef K
