/* f16 kernels: convert to f32, run the f32 kernel, round once; part of vec_impl.h. */

#define F16_BLOCK 256

/* An fp32 infinity that finite operands gave where the function has no pole: too large for fp16 in any case, so it is
 * made finite for the rounding to see an overflow. */
static inline void grown(long m, float *f, const uint16_t *a, const uint16_t *b)
{
    for (long i = 0; i < m; i++) {
        int finite = (a[i] & 0x7c00) != 0x7c00 && (!b || ((b[i] & 0x7c00) != 0x7c00 && (a[i] & 0x7fff)));
        f[i] = finite && (bits32(f[i]) & 0x7fffffffu) == 0x7f800000u ? copysignf(0x1p127f, f[i]) : f[i];
    }
}
static inline void f16_through_f32(vec_fn fn, int operands, int grows, long n, void *out_, const void *a_,
                                   const void *b_, const void *c_, vec_fp *fp)
{
    uint16_t *out = out_;
    const uint16_t *a = a_, *b = b_, *c = c_;
    float fa[F16_BLOCK], fb[F16_BLOCK], fc[F16_BLOCK];
    for (long i = 0; i < n; i += F16_BLOCK) {
        long m = n - i < F16_BLOCK ? n - i : F16_BLOCK;
        f32_from_f16(m, fa, a + i, 0, 0, 0);
        if (operands > 1)
            f32_from_f16(m, fb, b + i, 0, 0, 0);
        if (operands > 2)
            f32_from_f16(m, fc, c + i, 0, 0, 0);
        fn(m, fa, fa, fb, fc, 0);
        if (grows && fp && fp->mode)
            grown(m, fa, a + i, operands > 1 ? b + i : 0);
        f16_from_f32(m, out + i, fa, 0, 0, fp);
    }
}
static inline void f16_compare(vec_fn fn, long n, void *out_, const void *a_, const void *b_)
{
    pred_t *out = out_;
    const uint16_t *a = a_, *b = b_;
    float fa[F16_BLOCK], fb[F16_BLOCK];
    for (long i = 0; i < n; i += F16_BLOCK) {
        long m = n - i < F16_BLOCK ? n - i : F16_BLOCK;
        f32_from_f16(m, fa, a + i, 0, 0, 0);
        f32_from_f16(m, fb, b + i, 0, 0, 0);
        fn(m, out + i, fa, fb, 0, 0);
    }
}
#define F16(op, operands)                                                     \
    static void op##_f16(ARGS) { f16_through_f32(op##_f32, operands, 0, n, PASS); }
F16(log, 1) F16(sqrt, 1) F16(cbrt, 1) F16(sin, 1) F16(cos, 1) F16(tan, 1) F16(tanh, 1) F16(logistic, 1) F16(erf, 1)
F16(rsqrt, 1) F16(add, 2) F16(sub, 2) F16(mul, 2) F16(div, 2) F16(rem, 2) F16(atan2, 2)
static void log1p_f16(ARGS) { f16_through_f32(log_plus_one_f32, 1, 0, n, PASS); }
#undef F16

#define F16(op, operands)                                                     \
    static void op##_f16(ARGS) { f16_through_f32(op##_f32, operands, 1, n, PASS); }
F16(exp, 1) F16(expm1, 1) F16(pow, 2)
#undef F16

/* Results that are fp16 numbers before any rounding. */
#define F16(op, operands)                                                     \
    static void op##_f16(ARGS) { (void)fp_, f16_through_f32(op##_f32, operands, 0, n, out_, a_, b_, c_, 0); }
F16(sgn, 1) F16(ceil, 1) F16(floor, 1) F16(afz, 1) F16(rne, 1) F16(max, 2) F16(min, 2) F16(clamp, 3)
#undef F16

#define F16(op)                                                               \
    static void op##_f16(ARGS)                                                \
    {                                                                         \
        (void)c_, (void)fp_;                                                  \
        f16_compare(op##_f32, n, out_, a_, b_);                               \
    }
F16(eq) F16(ne) F16(lt) F16(le) F16(gt) F16(ge)
#undef F16

UNARY(abs_f16, uint16_t, uint16_t, x & 0x7fff)
UNARY(neg_f16, uint16_t, uint16_t, x ^ 0x8000)
UNARY(isfinite_f16, pred_t, uint16_t, (x & 0x7c00) != 0x7c00)

/* ---- conversions through f32, exact or rounded once: an integer that f32 rounds is beyond the largest f16 ---- */

#define FROM_F16(to, T)                                                       \
    static void to##_from_f16(ARGS)                                           \
    {                                                                         \
        T *out = out_;                                                        \
        const uint16_t *a = a_;                                               \
        float fa[F16_BLOCK];                                                  \
        (void)b_, (void)c_, (void)fp_;                                        \
        for (long i = 0; i < n; i += F16_BLOCK) {                             \
            long m = n - i < F16_BLOCK ? n - i : F16_BLOCK;                   \
            f32_from_f16(m, fa, a + i, 0, 0, 0);                              \
            to##_from_f32(m, out + i, fa, 0, 0, 0);                           \
        }                                                                     \
    }
#define TO_F16(from, F)                                                       \
    static void f16_from_##from(ARGS)                                         \
    {                                                                         \
        uint16_t *out = out_;                                                 \
        const F *a = a_;                                                      \
        float fa[F16_BLOCK];                                                  \
        (void)b_, (void)c_, (void)fp_;                                        \
        for (long i = 0; i < n; i += F16_BLOCK) {                             \
            long m = n - i < F16_BLOCK ? n - i : F16_BLOCK;                   \
            f32_from_##from(m, fa, a + i, 0, 0, 0);                           \
            f16_from_f32(m, out + i, fa, 0, 0, fp_);                          \
        }                                                                     \
    }
#define BOTH(t, T, U, W) FROM_F16(t, T) TO_F16(t, T)
INTS(BOTH)
FROM_F16(pred, pred_t)
TO_F16(pred, pred_t)
#undef BOTH
#undef FROM_F16
#undef TO_F16
