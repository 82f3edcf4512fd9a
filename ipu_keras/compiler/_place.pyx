"""First-fit placement of variables in a tile's memory: the inner loop of `memory`.

A variable only competes with those that live at the same time. Most live for a few steps, so they are kept by time: a
short-lived variable looks at those of its own stretch of the program, in the order of their places.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc

import numpy as np

cdef enum:
    STRETCHES = 64  # parts of the program that variables are kept by


cdef struct Placed:
    int64_t offset
    int64_t end
    int32_t first
    int32_t last


cdef struct Stretch:
    int32_t *items
    Py_ssize_t count
    Py_ssize_t room


cdef int keep(Stretch *stretch, int32_t item) noexcept nogil:
    """Add an item; -1 without memory."""
    cdef int32_t *grown
    if stretch.count == stretch.room:
        stretch.room = 2 * stretch.room + 16
        grown = <int32_t *>realloc(stretch.items, stretch.room * sizeof(int32_t))
        if grown == NULL:
            return -1
        stretch.items = grown
    stretch.items[stretch.count] = item
    stretch.count += 1
    return 0


cdef inline void insert(int32_t *order, Py_ssize_t count, const Placed *placed, int32_t item) noexcept nogil:
    """Put an item among `count` others that are in the order of their offsets."""
    cdef Py_ssize_t at = count
    while at > 0 and placed[order[at - 1]].offset > placed[item].offset:
        order[at] = order[at - 1]
        at -= 1
    order[at] = item


cdef int place_all(const int64_t[::1] sizes, const int32_t[::1] first, const int32_t[::1] last, int64_t guard,
                   int64_t[::1] out, Placed *placed, int32_t *everything, int32_t *near, int32_t *seen,
                   Stretch *stretches, int64_t *end) noexcept nogil:
    """See `first_fit`. Returns -1 without memory."""
    cdef Py_ssize_t n = sizes.shape[0], i, j, count = 0, candidates, s
    cdef int32_t steps = 0, width, low, high, item
    cdef int64_t cursor, size, base = 0
    cdef int32_t *order
    for i in range(n):
        steps = max(steps, last[i] + 1)
    width = steps // STRETCHES + 1
    end[0] = 0
    for i in range(n):
        if sizes[i] == 0:
            continue
        size = sizes[i] + guard
        if first[i] == 0 and last[i] == steps - 1 and count == 0:
            # What lives always comes first, without gaps: nothing else can lie there.
            out[i], base = base, base + size
            end[0] = base
            continue
        low, high = first[i] // width, last[i] // width
        if high - low <= 1:
            candidates, order = 0, near
            for s in range(low, high + 1):
                for j in range(stretches[s].count):
                    item = stretches[s].items[j]
                    if seen[item] != i + 1 and placed[item].first <= last[i] and first[i] <= placed[item].last:
                        seen[item] = <int32_t>(i + 1)
                        insert(near, candidates, placed, item)
                        candidates += 1
        else:
            candidates, order = count, everything
        cursor = base
        # In the order of their offsets, so the first gap that is wide enough is the lowest.
        for j in range(candidates):
            item = order[j]
            if placed[item].first <= last[i] and first[i] <= placed[item].last:
                if placed[item].offset >= cursor + size:
                    break
                if placed[item].end > cursor:
                    cursor = placed[item].end
        out[i] = cursor
        item = <int32_t>count
        placed[item].offset, placed[item].end = cursor, cursor + size
        placed[item].first, placed[item].last = first[i], last[i]
        insert(everything, count, placed, item)
        count += 1
        for s in range(low, high + 1):
            if keep(&stretches[s], item) < 0:
                return -1
        end[0] = max(end[0], cursor + size)
    return 0


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
    cdef Py_ssize_t n = sizes.shape[0], s
    cdef Stretch stretches[STRETCHES + 1]
    cdef int64_t end = 0
    cdef int failed = -1
    offsets = np.zeros(n, np.int64)
    cdef int64_t[::1] out = offsets
    cdef int32_t[::1] seen = np.zeros(n + 1, np.int32)
    cdef Placed *placed = <Placed *>malloc((n + 1) * sizeof(Placed))
    cdef int32_t *everything = <int32_t *>malloc((n + 1) * sizeof(int32_t))
    cdef int32_t *near = <int32_t *>malloc((n + 1) * sizeof(int32_t))
    for s in range(STRETCHES + 1):
        stretches[s].items, stretches[s].count, stretches[s].room = NULL, 0, 0
    if placed != NULL and everything != NULL and near != NULL:
        with nogil:
            failed = place_all(sizes, first, last, guard, out, placed, everything, near, &seen[0], stretches, &end)
    for s in range(STRETCHES + 1):
        free(stretches[s].items)
    free(near)
    free(everything)
    free(placed)
    if failed:
        raise MemoryError(f"placing {n} variables")
    return offsets, int(end)
