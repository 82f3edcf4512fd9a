from ipu_runtime.core cimport Group


cdef void run_copy(const Group *g, long lo, long hi, char *src, size_t src_stride, char *dst,
                   size_t dst_stride) noexcept nogil
