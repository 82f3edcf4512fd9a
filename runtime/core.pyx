"""Scratch memory of a host thread; it stands for a worker's registers and never holds a tile's data between vertices."""
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
