/* f32 kernels; part of vec_impl.h.
 *
 * Transcendental functions are computed in double and rounded once, by branch-free polynomials: the 29 spare bits of
 * a double replace the care that single-precision code needs, and every instruction set gives the same bits. */

static inline uint32_t bits32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float float32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static inline uint64_t bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline double float64(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- Arithmetic and rounding ---- */

UNARY(abs_f32, uint32_t, uint32_t, x & 0x7fffffffu)
UNARY(neg_f32, uint32_t, uint32_t, x ^ 0x80000000u)
UNARY(sgn_f32, float, float, x > 0 ? 1.0f : x < 0 ? -1.0f : x)
UNARY(isfinite_f32, pred_t, uint32_t, (x & 0x7f800000u) != 0x7f800000u)
UNARY(sqrt_f32, float, float, sqrtf(x))
UNARY(rsqrt_f32, float, float, 1.0f / sqrtf(x))
BINARY(add_f32, float, float, x + y)
BINARY(sub_f32, float, float, x - y)
BINARY(mul_f32, float, float, x * y)
BINARY(div_f32, float, float, x / y)
BINARY(rem_f32, float, float, fmodf(x, y))
BINARY(atan2_f32, float, float, atan2f(x, y))
UNARY(cbrt_f32, float, float, cbrtf(x))

/* NaN of either operand propagates; of two zeros the first. */
static inline float max1(float x, float y)
{
    return ((x >= y) | (x != x)) ? x : y;
}
static inline float min1(float x, float y)
{
    return ((x <= y) | (x != x)) ? x : y;
}
BINARY(max_f32, float, float, max1(x, y))
BINARY(min_f32, float, float, min1(x, y))

/* y if take_y else z, by masks: nested choices of floats would become branches, which are not vectorised. */
static inline float pick(int take_y, float y, float z)
{
    uint32_t mask = 0u - (uint32_t)take_y;
    return float32((bits32(y) & mask) | (bits32(z) & ~mask));
}
static inline float clamp1(float lo, float x, float hi)
{
    x = pick((x >= lo) | (x != x), x, lo);
    return pick((x <= hi) | (x != x), x, hi);
}
TERNARY(clamp_f32, float, float, float, clamp1(x, y, z))

BINARY(eq_f32, pred_t, float, x == y)
BINARY(ne_f32, pred_t, float, x != y)
BINARY(lt_f32, pred_t, float, x < y)
BINARY(le_f32, pred_t, float, x <= y)
BINARY(gt_f32, pred_t, float, x > y)
BINARY(ge_f32, pred_t, float, x >= y)

/* Round to the nearest integer, ties to even: adding 2^23 to a smaller number leaves no room for a fraction. */
static inline float rne1(float x)
{
    uint32_t sign = bits32(x) & 0x80000000u;
    float magnitude = float32(bits32(x) ^ sign);
    float rounded = (magnitude + 0x1p23f) - 0x1p23f;
    return float32(bits32(magnitude < 0x1p23f ? rounded : magnitude) | sign);
}
static inline float floor1(float x)
{
    float r = rne1(x);
    float down = r - (r > x ? 1.0f : 0.0f);
    return float32(bits32(down) | (bits32(x) & 0x80000000u));
}
static inline float ceil1(float x)
{
    return float32(bits32(floor1(float32(bits32(x) ^ 0x80000000u))) ^ 0x80000000u);
}
static inline float afz1(float x)
{
    uint32_t sign = bits32(x) & 0x80000000u;
    float magnitude = float32(bits32(x) ^ sign);
    float whole = floor1(magnitude);
    float up = whole + (magnitude - whole >= 0.5f ? 1.0f : 0.0f);
    return float32(bits32(magnitude < 0x1p23f ? up : magnitude) | sign);
}
UNARY(rne_f32, float, float, rne1(x))
UNARY(floor_f32, float, float, floor1(x))
UNARY(ceil_f32, float, float, ceil1(x))
UNARY(afz_f32, float, float, afz1(x))

/* ---- Exponential family ---- */

#define LN2 0.69314718055994530942
#define TO_INTEGER 0x1.8p52 /* x + TO_INTEGER has the nearest integer to x in its low bits */

typedef struct {
    double q;     /* e^r - 1, exact to a relative 1e-11 for |r| <= ln(2)/2 */
    double scale; /* 2^k; e^x = (1 + q) scale */
} exp_parts;

/* |x| < 700 */
static inline exp_parts exp_split(double x)
{
    double t = x * (1 / LN2) + TO_INTEGER;
    double k = t - TO_INTEGER;
    double r = x - k * LN2;
    double p = 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    return (exp_parts){p * r, float64((bits64(t) << 52) + 0x3ff0000000000000u)};
}
/* NaN stays NaN through both comparisons */
static inline double bounded(double x, double lo, double hi)
{
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}
static inline float exp1(float x)
{
    exp_parts e = exp_split(bounded(x, -150.0, 150.0));
    float r = (float)(e.q * e.scale + e.scale);
    return x != x ? x : r;
}
static inline float expm11(float x)
{
    exp_parts e = exp_split(bounded(x, -150.0, 150.0));
    float r = (float)(e.q * e.scale + (e.scale - 1.0));
    r = float32((bits32(r) & 0x7fffffffu) | (bits32(x) & 0x80000000u));
    return x != x ? x : r;
}
static inline float tanh1(float x)
{
    double magnitude = float32(bits32(x) & 0x7fffffffu);
    exp_parts e = exp_split(bounded(2.0 * magnitude, 0.0, 40.0));
    double m = e.q * e.scale + (e.scale - 1.0); /* e^2|x| - 1 */
    float r = (float)(m / (m + 2.0));
    r = float32((bits32(r) & 0x7fffffffu) | (bits32(x) & 0x80000000u));
    return x != x ? x : r;
}
static inline float logistic1(float x)
{
    exp_parts e = exp_split(bounded(-(double)x, -150.0, 150.0));
    float r = (float)(1.0 / (1.0 + (e.q * e.scale + e.scale)));
    return x != x ? x : r;
}
UNARY(exp_f32, float, float, exp1(x))
UNARY(expm1_f32, float, float, expm11(x))
UNARY(tanh_f32, float, float, tanh1(x))
UNARY(logistic_f32, float, float, logistic1(x))

/* erf(x) / x as a quotient of polynomials in x^2 on [0, 4]; relative error below 2.1e-9. Beyond 4, erf rounds to 1. */
static inline float erf1(float x)
{
    double magnitude = bounded(float32(bits32(x) & 0x7fffffffu), 0.0, 4.0);
    double z = magnitude * magnitude;
    double p = -1.320085235603851e-08;
    p = p * z + 4.684482494896281e-06;
    p = p * z + 0.00037959986829843613;
    p = p * z + 0.0038496707198672838;
    p = p * z + 0.054316962036848375;
    p = p * z + 0.18520543456792202;
    p = p * z + 1.1283791693640577;
    double q = 6.31078043733888e-05;
    q = q * z + 0.0013075698805350704;
    q = q * z + 0.015462177179386255;
    q = q * z + 0.11395911570291957;
    q = q * z + 0.49746745647075047;
    q = q * z + 1.0;
    float r = (float)(magnitude * p / q);
    r = r > 1.0f ? 1.0f : r;
    r = float32((bits32(r) & 0x7fffffffu) | (bits32(x) & 0x80000000u));
    return x != x ? x : r;
}
UNARY(erf_f32, float, float, erf1(x))

/* ---- Logarithm ---- */

/* Natural logarithm of a positive normal double, to a relative 2e-12. */
static inline double log_core(double x)
{
    /* x = 2^k m with m in [sqrt(1/2), sqrt(2)); the exponent field of `shifted` is k + 1024, never negative */
    uint64_t shifted = bits64(x) - 0x3fe6a09e667f3bcdu + (1024ull << 52);
    double k = float64((shifted >> 52) | 0x4330000000000000u) - (0x1p52 + 1024.0);
    double m = float64(bits64(x) - ((shifted & 0xfff0000000000000u) - (1024ull << 52)));
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double p = 2.0 / 15;
    p = p * z + 2.0 / 13;
    p = p * z + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    p = p * z + 2.0;
    return k * LN2 + s * p;
}
static inline float log_special(float x, float r)
{
    r = x < 0 ? NAN : r;
    r = x == 0 ? -INFINITY : r;
    r = x == INFINITY ? INFINITY : r;
    return x != x ? x : r;
}
static inline float log1(float x)
{
    return log_special(x, (float)log_core(x));
}
static inline float log1p1(float x)
{
    double y = 1.0 + x;
    double lost = x - (y - 1.0);
    float r = (float)(log_core(y) + lost / y);
    r = x < -1.0f ? NAN : r;
    r = x == -1.0f ? -INFINITY : r;
    r = x == INFINITY ? INFINITY : r;
    r = x == 0 ? x : r;
    return x != x ? x : r;
}
UNARY(log_f32, float, float, log1(x))
UNARY(log_plus_one_f32, float, float, log1p1(x))
#define log1p_f32 log_plus_one_f32

/* x > 0 and finite, y finite: e^(y log x). All else (rare) by the C library, lane by lane. */
static inline float pow_core(float x, float y)
{
    exp_parts e = exp_split(bounded(y * log_core(x), -150.0, 150.0));
    return (float)(e.q * e.scale + e.scale);
}
static inline int pow_plain(float x, float y)
{
    return (bits32(x) - 1u < 0x7f7fffffu) & ((bits32(y) & 0x7fffffffu) < 0x7f800000u);
}
static void pow_f32(ARGS)
{
    float *out = out_;
    const float *a = a_, *b = b_;
    int plain = 1;
    (void)c_, (void)fp_;
    for (long i = 0; i < n; i++)
        plain &= pow_plain(a[i], b[i]);
    if (plain) {
        IVDEP for (long i = 0; i < n; i++) out[i] = pow_core(a[i], b[i]);
    } else {
        for (long i = 0; i < n; i++)
            out[i] = pow_plain(a[i], b[i]) ? pow_core(a[i], b[i]) : powf(a[i], b[i]);
    }
}

/* ---- Trigonometry ---- */

/* Arguments up to this have an exact product of quadrant number and the leading 33 bits of pi/2. */
#define TRIG_LIMIT 1048576.0f

typedef struct {
    double sine, cosine;
    uint64_t quadrant;
} trig_parts;

static inline trig_parts trig_split(float x)
{
    double t = x * 0.63661977236758134308 + TO_INTEGER;
    double k = t - TO_INTEGER;
    double r = (x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a6p-34; /* pi/2 in three parts */
    r = r - k * 0x1.3198a2e037073p-69;
    double z = r * r;
    double s = -1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = s * z * r + r;
    double c = 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 0.5;
    c = c * z + 1.0;
    return (trig_parts){s, c, bits64(t)};
}
static inline float sin_core(float x)
{
    trig_parts t = trig_split(x);
    double r = t.quadrant & 1 ? t.cosine : t.sine;
    r = float64(bits64(r) ^ ((t.quadrant & 2) << 62));
    return x == 0 ? x : (float)r;
}
static inline float cos_core(float x)
{
    trig_parts t = trig_split(x);
    double r = t.quadrant & 1 ? t.sine : t.cosine;
    return (float)float64(bits64(r) ^ (((t.quadrant + 1) & 2) << 62));
}
static inline float tan_core(float x)
{
    trig_parts t = trig_split(x);
    double num = t.quadrant & 1 ? -t.cosine : t.sine;
    double den = t.quadrant & 1 ? t.sine : t.cosine;
    return x == 0 ? x : (float)(num / den);
}
#define TRIG(NAME, CORE, LIBM)                                                \
    static void NAME(ARGS)                                                    \
    {                                                                         \
        float *out = out_;                                                    \
        const float *a = a_;                                                  \
        int large = 0;                                                        \
        (void)b_, (void)c_, (void)fp_;                                        \
        for (long i = 0; i < n; i++)                                          \
            large |= !(fabsf(a[i]) <= TRIG_LIMIT);                            \
        if (!large) {                                                         \
            IVDEP for (long i = 0; i < n; i++) out[i] = CORE(a[i]);           \
        } else {                                                              \
            for (long i = 0; i < n; i++)                                      \
                out[i] = fabsf(a[i]) <= TRIG_LIMIT ? CORE(a[i]) : (float)LIBM((double)a[i]); \
        }                                                                     \
    }
TRIG(sin_f32, sin_core, sin)
TRIG(cos_f32, cos_core, cos)
TRIG(tan_f32, tan_core, tan)
#undef TRIG
