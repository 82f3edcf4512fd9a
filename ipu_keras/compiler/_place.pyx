"""First-fit placement of variables in a tile's memory: the inner loop of `memory`."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

import numpy as np

cdef struct Placed:
    int64_t offset
    int64_t end
    int32_t first
    int32_t last


def first_fit(const int64_t[::1] sizes, const int32_t[::1] first, const int32_t[::1] last, int64_t guard):
    """Offsets of one tile's variables, in the order given, each at the lowest place free during its life.

    Args:
        sizes: bytes.
        first: first step at which each is live.
        last: last step.
        guard: bytes left free behind each.

    Returns:
        (offsets, end): int64 offsets, and the bytes that the whole needs.
    """
    cdef Py_ssize_t n = sizes.shape[0], i, j, count = 0, at
    offsets = np.zeros(n, np.int64)
    cdef int64_t[::1] out = offsets
    cdef Placed *placed = <Placed *>malloc((n + 1) * sizeof(Placed))
    cdef int64_t cursor, top = 0, size
    if placed == NULL:
        raise MemoryError(f"placing {n} variables")
    with nogil:
        for i in range(n):
            size = sizes[i]
            if size == 0:
                continue
            size += guard
            cursor = 0
            at = count
            # `placed` is sorted by offset, so the first gap that is wide enough is the lowest.
            for j in range(count):
                if placed[j].first <= last[i] and first[i] <= placed[j].last:
                    if placed[j].offset >= cursor + size:
                        break
                    if placed[j].end > cursor:
                        cursor = placed[j].end
            out[i] = cursor
            at = 0
            while at < count and placed[at].offset < cursor:
                at += 1
            memmove(&placed[at + 1], &placed[at], (count - at) * sizeof(Placed))
            placed[at].offset, placed[at].end = cursor, cursor + size
            placed[at].first, placed[at].last = first[i], last[i]
            count += 1
            if cursor + size > top:
                top = cursor + size
    free(placed)
    return offsets, int(top)
