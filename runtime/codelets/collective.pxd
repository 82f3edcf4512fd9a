from ipu_runtime.core cimport Group, Scratch

cdef void run_collective(const Group *g, long lo, long hi, char *arenas, size_t stride, size_t replica, long replicas,
                         Scratch *s) noexcept nogil
cdef void *prepare_collective(const Group *g) noexcept
