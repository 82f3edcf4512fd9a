"""Scratch memory of a host thread: a worker's registers, so to say; no tile's data stays in it between vertices."""
from libc.stdlib cimport free
from posix.stdlib cimport posix_memalign


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
