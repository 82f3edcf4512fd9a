"""A host thread's own state: scratch memory, a worker's registers so to say, and what its vertices have raised.

No tile's data stays in it between vertices.
"""
from libc.stdlib cimport free
from posix.stdlib cimport posix_memalign

from ipu_runtime._vec cimport TRAP_INV, TRAP_OFLO, TRAP_ALL, vec_nonfinite


cdef char *scratch(Scratch *s, size_t need) noexcept nogil:
    cdef void *fresh = NULL
    if s.n < need:
        if posix_memalign(&fresh, 64, need * 2) != 0:
            s.failed = True
            return NULL
        free(s.p)
        s.p = <char *>fresh
        s.n = need * 2
    return s.p


cdef void watch(Scratch *s, int dtype, long n, const void *out, int of, long n_a, const void *a, long n_b,
                const void *b) noexcept nogil:
    cdef int found
    if not s.fp.mode & TRAP_ALL:
        return
    found = vec_nonfinite(dtype, n, out)
    if found & 1:
        s.fp.raised |= TRAP_INV
    if found & 2 and not (vec_nonfinite(of, n_a, a) | vec_nonfinite(of, n_b, b)):
        s.fp.raised |= TRAP_OFLO
