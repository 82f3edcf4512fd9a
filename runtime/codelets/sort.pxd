from ipu_runtime.core cimport Group, Scratch


cdef void *prepare_sort(const Group *g) noexcept
cdef void free_sort(void *aux) noexcept
cdef void run_sort(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
