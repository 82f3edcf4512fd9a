from ipu_runtime._vec cimport vec_ahead, vec_fp, vec_table
from ipu_runtime.core cimport Group, Scratch


cdef void gemm_f16(const float *a, const float *b, float *wide, char *c, int m, int n, int k, int run, bint ta, bint tb,
                   const vec_table *table, vec_fp *fp, vec_ahead *ahead) noexcept nogil
cdef void run_dot(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void *prepare_dot(const Group *g) noexcept
