/* The kernels for x86-64 with AVX2; empty elsewhere. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi2,lzcnt,popcnt")
#endif

#define VEC_LEVEL 1
#define VEC_TABLE vec_table_avx2
#define VEC_TABLE_NAME "avx2"
#include "vec_impl.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int vec_avx2_is_empty;
#endif
