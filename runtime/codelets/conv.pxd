from ipu_runtime.core cimport Group, Scratch


cdef void *prepare_conv(const Group *g) noexcept
cdef void run_conv(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
