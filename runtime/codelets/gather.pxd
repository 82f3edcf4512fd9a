from ipu_runtime.core cimport Group, Scratch


cdef void run_gather(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void *prepare_scatter(const Group *g) noexcept
cdef void run_scatter(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
