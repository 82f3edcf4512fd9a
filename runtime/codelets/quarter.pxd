from ipu_runtime.core cimport Group, Scratch


cdef void *prepare_quarter(const Group *g) noexcept
cdef void run_quarter_cast(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void run_quarter_product(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
