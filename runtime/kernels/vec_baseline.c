/* The kernels for any CPU of the architecture. */
#define VEC_LEVEL 0
#define VEC_TABLE vec_table_baseline
#define VEC_TABLE_NAME "baseline"
#include "vec_impl.h"
