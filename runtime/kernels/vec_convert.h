/* Conversions between all dtypes; part of vec_impl.h.
 *
 * Integer to integer wraps, to pred is "not zero"; float to integer truncates and saturates, NaN gives 0. */

/* ---- half precision ---- */

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h & 0x7c00, mantissa = h & 0x3ff;
    uint32_t normal = ((uint32_t)(h & 0x7fff) << 13) + (112u << 23);
    uint32_t small = bits32((float)(int32_t)mantissa * 0x1p-24f);
    uint32_t special = 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0);
    uint32_t r = exponent == 0 ? small : exponent == 0x7c00 ? special : normal;
    return float32(r | sign);
}
/* Round to nearest even; a NaN keeps the top of its payload and becomes quiet, as the hardware does it. */
static inline uint16_t float_to_half(float x)
{
    uint32_t u = bits32(x), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    uint32_t small = bits32(float32(u) + 0.5f) - 0x3f000000u; /* the addition rounds at 2^-24 */
    uint32_t normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
    uint32_t special = u > 0x7f800000u ? 0x7e00u | ((u >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t r = u < 0x38800000u ? small : u >= 0x47800000u ? special : normal;
    return (uint16_t)(r | sign);
}

#if VEC_LEVEL == 0
UNARY(f32_from_f16, float, uint16_t, half_to_float(x))
UNARY(f16_nearest, uint16_t, float, float_to_half(x))
#else
static void f32_from_f16(ARGS)
{
    float *out = out_;
    const uint16_t *a = a_;
    long i = 0;
    (void)b_, (void)c_, (void)fp_;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i))));
    for (; i < n; i++)
        out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(a[i])));
}
static void f16_nearest(ARGS)
{
    uint16_t *out = out_;
    const float *a = a_;
    long i = 0;
    (void)b_, (void)c_, (void)fp_;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        out[i] = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(a[i]), _MM_FROUND_TO_NEAREST_INT));
}
#endif

/* A mixing function for 32 bits (C. Wellons, "Prospecting for hash functions": the constants of lowbias32), with the
 * second half of a key put in between. */
#define DRAW_STEP 0x9e3779b9u
#define DRAW_FIRST 0x7feb352du
#define DRAW_SECOND 0x846ca68bu
static inline uint32_t draw(uint32_t number, uint32_t key_low, uint32_t key_high)
{
    uint32_t x = number * DRAW_STEP + key_low;
    x = (x ^ (x >> 16)) * DRAW_FIRST;
    x = (x ^ (x >> 15) ^ key_high) * DRAW_SECOND;
    return x ^ (x >> 16);
}
/* Round |x| up with the probability of what is cut off. Random bits are added below the last place that stays, as the
 * chip's unit is described (hardware.md 1.2); subnormal results are in units of 2^-24, with 16 random bits. */
static inline uint16_t half_at_random(float x, uint32_t random)
{
    uint32_t u = bits32(x), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    uint32_t normal = (u - (112u << 23) + (random & 0x1fffu)) >> 13;
    uint32_t is_small = -(uint32_t)(u < 0x38800000u), is_special = -(uint32_t)(u >= 0x47800000u);
    uint32_t small = ((uint32_t)(int32_t)(float32(u & is_small) * 0x1p40f) + (random & 0xffffu)) >> 16;
    uint32_t special = 0x7c00u | (-(uint32_t)(u > 0x7f800000u) & (0x200u | ((u >> 13) & 0x3ffu)));
    uint32_t r = (small & is_small) | (special & is_special) | (normal & ~(is_small | is_special));
    return (uint16_t)(r | sign);
}

#define FP_BLOCK 256

#if VEC_LEVEL > 0
#define ALL(x) _mm256_set1_epi32((int)(x))
/* Eight of them by the CPU's conversion that cuts off: right for zero and for normal results. Returns which numbers are
 * neither, or so large that they need more thought. */
static inline __m256i eight_at_random(uint16_t *y, const float *x, __m256i random)
{
    const __m256i u = _mm256_loadu_si256((const __m256i *)x);
    const __m256i less_one = _mm256_add_epi32(_mm256_and_si256(u, ALL(0x7fffffff)), ALL(-1));
    const __m256i sum = _mm256_add_epi32(u, _mm256_and_si256(random, ALL(0x1fff)));
    /* less_one of zero is the largest number without a sign, and the least with one */
    const __m256i small = _mm256_cmpeq_epi32(_mm256_min_epu32(less_one, ALL(0x387ffffe)), less_one);
    const __m256i large = _mm256_cmpgt_epi32(less_one, ALL(0x47800000 - 0x2001));
    _mm_storeu_si128((__m128i *)y, _mm256_cvtps_ph(_mm256_castsi256_ps(sum), _MM_FROUND_TO_ZERO));
    return _mm256_or_si256(small, large);
}
/* Subnormal results among them, in units of 2^-24. Returns whether there are large ones. */
static inline int small_at_random(uint16_t *y, const float *x, __m256i random)
{
    const __m256i u = _mm256_loadu_si256((const __m256i *)x), size = _mm256_and_si256(u, ALL(0x7fffffff));
    const __m256i small = _mm256_cmpgt_epi32(ALL(0x38800000), size);
    const __m256 units = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(size, small)), _mm256_set1_ps(0x1p40f));
    const __m256i sum = _mm256_add_epi32(_mm256_cvttps_epi32(units), _mm256_and_si256(random, ALL(0xffff)));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 16), ALL(0x8000));
    const __m256i code = _mm256_or_si256(_mm256_srli_epi32(sum, 16), sign);
    const __m128i few = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    const __m128i which = _mm_packs_epi32(_mm256_castsi256_si128(small), _mm256_extracti128_si256(small, 1));
    _mm_storeu_si128((__m128i *)y, _mm_blendv_epi8(_mm_loadu_si128((const __m128i *)y), few, which));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(size, ALL(0x47800000 - 0x2000)));
}
/* Numbers i and i + half for the first multiple of 8 values of i, which is returned. */
static inline int pairs_at_random(int half, uint16_t *y, const float *x, const vec_fp *fp, int *rare)
{
    const __m256i high = ALL(fp->key >> 32), lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i number = _mm256_add_epi32(lanes, ALL(fp->drawn));
    int i = 0;
    number = _mm256_mullo_epi32(number, ALL(DRAW_STEP));
    number = _mm256_add_epi32(number, ALL((uint32_t)fp->key));
    for (; i + 8 <= half; i += 8) {
        __m256i r = _mm256_xor_si256(number, _mm256_srli_epi32(number, 16));
        r = _mm256_mullo_epi32(r, ALL(DRAW_FIRST));
        r = _mm256_xor_si256(_mm256_xor_si256(r, _mm256_srli_epi32(r, 15)), high);
        r = _mm256_mullo_epi32(r, ALL(DRAW_SECOND));
        r = _mm256_xor_si256(r, _mm256_srli_epi32(r, 16));
        const __m256i second = _mm256_srli_epi32(r, 16);
        const __m256i others = _mm256_or_si256(eight_at_random(y + i, x + i, r),
                                               eight_at_random(y + i + half, x + i + half, second));
        if (!_mm256_testz_si256(others, others) &&
            (small_at_random(y + i, x + i, r) | small_at_random(y + i + half, x + i + half, second))) {
            uint32_t random[8];
            _mm256_storeu_si256((__m256i *)random, r);
            for (int q = 0; q < 8; q++) {
                y[i + q] = half_at_random(x[i + q], random[q]);
                y[i + half + q] = half_at_random(x[i + half + q], random[q] >> 16);
            }
            *rare = 1;
        }
        number = _mm256_add_epi32(number, ALL(8 * DRAW_STEP));
    }
    return i;
}
#undef ALL
#endif
/* A block of `m`: one draw serves numbers i and i + m / 2. Returns 0 if none of the results can be infinite. */
static inline int block_at_random(int m, uint16_t *y, const float *x, vec_fp *fp)
{
    const uint32_t low = (uint32_t)fp->key, high = (uint32_t)(fp->key >> 32), drawn = fp->drawn;
    const int half = m / 2;
    int done = 0, rare = 0;
#if VEC_LEVEL > 0
    done = pairs_at_random(half, y, x, fp, &rare);
#endif
    rare |= 2 * done < m;
    IVDEP for (int i = done; i < half; i++)
    {
        uint32_t random = draw(drawn + (uint32_t)i, low, high);
        y[i] = half_at_random(x[i], random);
        y[i + half] = half_at_random(x[i + half], random >> 16);
    }
    if (m & 1)
        y[m - 1] = half_at_random(x[m - 1], draw(drawn + (uint32_t)half, low, high));
    fp->drawn = drawn + (uint32_t)(m + 1) / 2;
    return rare;
}
/* As `fp` says. A number that is infinite already has not overflowed. */
static void f16_rounded(long n, uint16_t *out, const float *a, vec_fp *fp)
{
    const uint16_t limit = fp->mode & ROUND_NAN ? 0x7e00 : fp->mode & ROUND_CLIP ? 0x7bff : 0x7c00;
    for (long first = 0; first < n; first += FP_BLOCK) {
        const int m = n - first < FP_BLOCK ? (int)(n - first) : FP_BLOCK;
        const float *x = a + first;
        uint16_t *y = out + first, infinite = 0;
        if (!(fp->mode & ROUND_STOCHASTIC))
            f16_nearest(m, y, x, 0, 0, 0);
        else if (!block_at_random(m, y, x, fp))
            continue;
        for (int i = 0; i < m; i++)
            infinite |= (uint16_t)((y[i] & 0x7fffu) == 0x7c00u);
        for (int i = 0; infinite && i < m; i++)
            if ((y[i] & 0x7fffu) == 0x7c00u && (bits32(x[i]) & 0x7fffffffu) < 0x7f800000u) {
                y[i] = (uint16_t)(limit | (y[i] & 0x8000u));
                fp->raised |= fp->mode & ROUND_NAN ? TRAP_OFLO | TRAP_INV : TRAP_OFLO;
            }
    }
}
static void f16_from_f32(ARGS)
{
    if (fp_ && fp_->mode)
        f16_rounded(n, out_, a_, fp_);
    else
        f16_nearest(n, out_, a_, b_, c_, 0);
}

/* ---- float to integer: the bounds are the least float that is too large, and the least that fits ---- */

#define SATURATED(T, x, LO, OVER, MIN, MAX) ((x) >= OVER ? MAX : (x) >= LO ? (T)(x) : (x) < LO ? MIN : 0)

/* Narrow types go through int32, which the vector units convert to. */
static inline int32_t f32_to_s32(float x)
{
    /* comparisons are arranged so that the conversion itself never sees a value out of range */
    float safe = x >= -0x1p31f ? x : -0x1p31f; /* NaN too */
    safe = safe < 0x1p31f ? safe : 0.0f;
    int32_t r = (int32_t)safe;
    r = x >= 0x1p31f ? INT32_MAX : r;
    return x != x ? 0 : r;
}
static inline int32_t f32_to_range(float x, float lo, float hi)
{
    x = x < lo ? lo : x;
    x = x > hi ? hi : x;
    return x != x ? 0 : (int32_t)(x == x ? x : 0.0f);
}
static inline uint32_t f32_to_u32(float x)
{
    float safe = x >= 0.0f ? x : 0.0f;
    int high = safe >= 0x1p31f;
    int32_t low = (int32_t)(high ? (safe < 0x1p32f ? safe - 0x1p31f : 0.0f) : safe);
    uint32_t r = (uint32_t)low + (high ? 0x80000000u : 0u);
    return x >= 0x1p32f ? UINT32_MAX : r;
}
static inline int64_t f32_to_s64(float x)
{
    float safe = x >= -0x1p63f ? x : -0x1p63f;
    safe = safe < 0x1p63f ? safe : 0.0f;
    int64_t r = (int64_t)safe;
    r = x >= 0x1p63f ? INT64_MAX : r;
    return x != x ? 0 : r;
}
static inline uint64_t f32_to_u64(float x)
{
    float safe = x >= 0.0f ? x : 0.0f;
    int high = safe >= 0x1p63f;
    int64_t low = (int64_t)(high ? (safe < 0x1p64f ? safe - 0x1p63f : 0.0f) : safe);
    uint64_t r = (uint64_t)low + (high ? 0x8000000000000000u : 0u);
    return x >= 0x1p64f ? UINT64_MAX : r;
}
#undef SATURATED
UNARY(pred_from_f32, pred_t, float, x != 0)
UNARY(s8_from_f32, int8_t, float, f32_to_range(x, -128.0f, 127.0f))
UNARY(u8_from_f32, uint8_t, float, f32_to_range(x, 0.0f, 255.0f))
UNARY(s16_from_f32, int16_t, float, f32_to_range(x, -32768.0f, 32767.0f))
UNARY(u16_from_f32, uint16_t, float, f32_to_range(x, 0.0f, 65535.0f))
UNARY(s32_from_f32, int32_t, float, f32_to_s32(x))
UNARY(u32_from_f32, uint32_t, float, f32_to_u32(x))
UNARY(s64_from_f32, int64_t, float, f32_to_s64(x))
UNARY(u64_from_f32, uint64_t, float, f32_to_u64(x))

/* ---- integers and pred ---- */

#define FROM(t, T, U, W)                                                      \
    UNARY(pred_from_##t, pred_t, T, x != 0)                                   \
    UNARY(cast8_from_##t, uint8_t, T, x)                                      \
    UNARY(cast16_from_##t, uint16_t, T, x)                                    \
    UNARY(cast32_from_##t, uint32_t, T, x)                                    \
    UNARY(cast64_from_##t, uint64_t, T, x)                                    \
    UNARY(f32_from_##t, float, T, x)
INTS(FROM)
#undef FROM
#define pred_from_pred copy_u8
#define s8_from_pred copy_u8
#define u8_from_pred copy_u8
#define s16_from_pred cast16_from_u8
#define u16_from_pred cast16_from_u8
#define s32_from_pred cast32_from_u8
#define u32_from_pred cast32_from_u8
#define s64_from_pred cast64_from_u8
#define u64_from_pred cast64_from_u8
#define f32_from_pred f32_from_u8
#define f32_from_f32 copy_u32
#define f16_from_f16 copy_u16

#define TO(to, from, W)                                                       \
    static inline void to##_from_##from(ARGS) { cast##W##_from_##from(n, PASS); }
#define TO_ALL(from, F, FU, FW)                                               \
    TO(s8, from, 8) TO(u8, from, 8) TO(s16, from, 16) TO(u16, from, 16)       \
    TO(s32, from, 32) TO(u32, from, 32) TO(s64, from, 64) TO(u64, from, 64)
INTS(TO_ALL)
#undef TO_ALL
#undef TO
