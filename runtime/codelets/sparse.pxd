from ipu_runtime.core cimport Group, Scratch


cdef void run_sparse(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void *prepare_sparse(const Group *g) noexcept
