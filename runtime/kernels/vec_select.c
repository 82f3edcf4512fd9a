/* Chooses the table of kernels, and the few routines that need no choice. */
#include "vec.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) || defined(_M_X64)
#define VEC_X86 1
#include <emmintrin.h>
#else
#define VEC_X86 0
#endif

extern const vec_table vec_table_baseline;
#if VEC_X86
extern const vec_table vec_table_avx2;
extern const vec_table vec_table_avx512;

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const vec_table *vec_select(const char *isa)
{
    if (!isa)
        isa = getenv("IPU_RUNTIME_ISA");
#if VEC_X86
    __builtin_cpu_init();
    if (!isa || !*isa)
        return has_avx512() ? &vec_table_avx512 : has_avx2() ? &vec_table_avx2 : &vec_table_baseline;
    if (!strcmp(isa, "avx512"))
        return has_avx512() ? &vec_table_avx512 : NULL;
    if (!strcmp(isa, "avx2"))
        return has_avx2() ? &vec_table_avx2 : NULL;
#endif
    return !isa || !*isa || !strcmp(isa, "baseline") ? &vec_table_baseline : NULL;
}

const char *vec_op_name(int op)
{
    static const char *const names[] = {
#define VEC_NAME(id, name, arity) name,
        VEC_OPS(VEC_NAME)
#undef VEC_NAME
    };
    return op >= 0 && op < VEC_OP_COUNT ? names[op] : NULL;
}

int vec_op_arity(int op)
{
    static const signed char arities[] = {
#define VEC_ARITY(id, name, arity) arity,
        VEC_OPS(VEC_ARITY)
#undef VEC_ARITY
    };
    return op >= 0 && op < VEC_OP_COUNT ? arities[op] : 0;
}

int vec_dtype_size(int dtype)
{
    static const signed char sizes[DT_COUNT] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 4};
    return dtype >= 0 && dtype < DT_COUNT ? sizes[dtype] : 0;
}

#define STRIDED(T)                                                          \
    do {                                                                    \
        for (long i = 0; i < n; i++, d += dst_stride_bytes, s += src_stride_bytes) { \
            T t;                                                            \
            memcpy(&t, s, sizeof t);                                        \
            memcpy(d, &t, sizeof t);                                        \
        }                                                                   \
    } while (0)

void copy_strided(long n, int elem_size, void *dst, long dst_stride_bytes, const void *src, long src_stride_bytes)
{
    char *d = dst;
    const char *s = src;
    if (dst_stride_bytes == elem_size && src_stride_bytes == elem_size) {
        if (n > 0)
            memcpy(d, s, (size_t)n * (size_t)elem_size);
        return;
    }
    switch (elem_size) {
    case 1: STRIDED(uint8_t); break;
    case 2: STRIDED(uint16_t); break;
    case 4: STRIDED(uint32_t); break;
    case 8: STRIDED(uint64_t); break;
    default:
        for (long i = 0; i < n; i++, d += dst_stride_bytes, s += src_stride_bytes)
            memcpy(d, s, (size_t)elem_size);
    }
}

void fetch_ends(const void *dst, size_t n)
{
    __builtin_prefetch(dst, 1, 3);
    __builtin_prefetch((const char *)dst + n, 1, 3);
}

#if VEC_X86
void copy_past_caches(void *dst, const void *src, size_t n, const void *later)
{
    char *d = dst;
    const char *s = src, *f = later;
    const size_t before = (0 - (uintptr_t)d) & 63, first = before < n ? before : n;
    memcpy(d, s, first); /* only whole lines may go past the caches: parts of one would cost a transfer each */
    d += first, s += first, n -= first;
    for (; n >= 64; n -= 64, d += 64, s += 64, f += 64) {
        __m128i x[4];
        __builtin_prefetch(f, 0, 3);
        for (int i = 0; i < 4; i++)
            x[i] = _mm_loadu_si128((const __m128i *)s + i);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)d + i, x[i]);
    }
    memcpy(d, s, n);
}

void fence_copies(void)
{
    _mm_sfence();
}
#else
void copy_past_caches(void *dst, const void *src, size_t n, const void *later)
{
    (void)later;
    memcpy(dst, src, n);
}

void fence_copies(void)
{
}
#endif

void philox4x32(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out)
{
    static const vec_table *volatile table; /* every thread would store the same pointer */
    const vec_table *t = table;
    if (!t) {
        t = vec_select(NULL);
        table = t = t ? t : &vec_table_baseline;
    }
    t->philox(n_blocks, key, ctr_lo, ctr_hi, out);
}
