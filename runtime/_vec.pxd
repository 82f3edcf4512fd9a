# The vector kernels' C interface (kernels/vec.h), for engines that cimport it.
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "vec.h" nogil:
    enum:
        DT_PRED
        DT_S8
        DT_U8
        DT_S16
        DT_U16
        DT_S32
        DT_U32
        DT_S64
        DT_U64
        DT_F16
        DT_F32
        DT_COUNT

    enum:
        VEC_COPY
        VEC_ABS
        VEC_NEGATE
        VEC_SIGN
        VEC_CEIL
        VEC_FLOOR
        VEC_ROUND_NEAREST_AFZ
        VEC_ROUND_NEAREST_EVEN
        VEC_EXPONENTIAL
        VEC_EXPONENTIAL_MINUS_ONE
        VEC_LOG
        VEC_LOG_PLUS_ONE
        VEC_SQRT
        VEC_RSQRT
        VEC_CBRT
        VEC_SINE
        VEC_COSINE
        VEC_TAN
        VEC_TANH
        VEC_LOGISTIC
        VEC_ERF
        VEC_IS_FINITE
        VEC_NOT
        VEC_POPCNT
        VEC_COUNT_LEADING_ZEROS
        VEC_ADD
        VEC_SUBTRACT
        VEC_MULTIPLY
        VEC_DIVIDE
        VEC_REMAINDER
        VEC_MAXIMUM
        VEC_MINIMUM
        VEC_POWER
        VEC_ATAN2
        VEC_AND
        VEC_OR
        VEC_XOR
        VEC_SHIFT_LEFT
        VEC_SHIFT_RIGHT_ARITHMETIC
        VEC_SHIFT_RIGHT_LOGICAL
        VEC_COMPARE_EQ
        VEC_COMPARE_NE
        VEC_COMPARE_LT
        VEC_COMPARE_LE
        VEC_COMPARE_GT
        VEC_COMPARE_GE
        VEC_SELECT
        VEC_CLAMP
        VEC_OP_COUNT

    enum:
        ROUND_STOCHASTIC
        ROUND_CLIP
        ROUND_NAN
        TRAP_INV
        TRAP_DIV0
        TRAP_OFLO
        TRAP_ALL

    ctypedef struct vec_fp:
        uint32_t mode
        uint32_t raised
        uint64_t key
        uint32_t drawn

    ctypedef void (*vec_fn)(long n, void *out, const void *a, const void *b, const void *c, vec_fp *fp) noexcept nogil
    ctypedef void (*reduce_fn)(long n, void *acc, const void *x) noexcept nogil

    ctypedef struct vec_ahead:
        const char *at
        const char *end
        const char *next
        const char *next_end
        long products

    ctypedef struct vec_table:
        const char *name
        # Arrays of [VEC_OP_COUNT][DT_COUNT], [DT_COUNT][DT_COUNT], [VEC_OP_COUNT][DT_COUNT]; index both dimensions.
        vec_fn op[1][1]
        vec_fn convert[1][1]
        reduce_fn reduce[1][1]
        void (*philox)(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out) noexcept nogil
        void (*gemm)(const float *a, long lda, const float *b, long ldb, float *c, int m, int n, int k, int ta, int tb,
                     int more, vec_ahead *ahead) noexcept nogil
        void (*gemm_f64)(const double *a, long lda, const double *b, long ldb, double *c, int m, int n, int k, int ta,
                         int tb, int more, vec_ahead *ahead) noexcept nogil

    const vec_table *vec_select(const char *isa)
    uint32_t vec_raised(int op, int dtype, long n, const void *out, const void *a, const void *b)
    int vec_nonfinite(int dtype, long n, const void *x)
    const char *vec_op_name(int op)
    int vec_op_arity(int op)
    int vec_dtype_size(int dtype)
    void copy_strided(long n, int elem_size, void *dst, long dst_stride_bytes,
                      const void *src, long src_stride_bytes)
    void copy_past_caches(void *dst, const void *src, size_t n, const void *later)
    void fetch_ends(const void *dst, size_t n)
    void fence_copies()
    void philox4x32(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out)
