from ipu_runtime.core cimport Group, Scratch


cdef void *prepare_window(const Group *g) noexcept
cdef void run_window(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
cdef void *prepare_select_scatter(const Group *g) noexcept
cdef void run_select_scatter(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
