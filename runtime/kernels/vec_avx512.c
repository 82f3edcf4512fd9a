/* The kernels for x86-64 with AVX-512; empty elsewhere. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#endif

#define VEC_LEVEL 2
#define VEC_TABLE vec_table_avx512
#define VEC_TABLE_NAME "avx512"
#include "vec_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int vec_avx512_is_empty;
#endif
