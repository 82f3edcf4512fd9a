from ipu_runtime.core cimport Group

cdef void *FUNCTIONS[21]

# Resolve a group's kernels; False if there is none for its parameters.
cdef bint prepare(Group *g) except? 0

cdef void free_aux(Group *g) noexcept
