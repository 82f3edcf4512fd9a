from ipu_runtime.core cimport Group, Scratch


cdef void *prepare_reduce(const Group *g) noexcept
cdef void run_reduce(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void *prepare_variadic(const Group *g) noexcept
cdef void free_variadic(void *aux) noexcept
cdef void run_variadic(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
