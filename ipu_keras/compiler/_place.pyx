"""First-fit placement of variables in a tile's memory: the inner loop of `memory`.

A variable only competes with those that live at the same time; a function's live once in each of its calls. Most live
for a few steps, so they are kept by time, in the order of their places: a short-lived variable looks at those of its
own stretch of the program, from the lowest up.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

import numpy as np

cdef enum:
    STRETCHES = 32  # parts of the program that variables are kept by


cdef struct Placed:
    int64_t offset
    int64_t end
    int32_t first
    int32_t last


cdef struct Stretch:
    int32_t *items
    Py_ssize_t count
    Py_ssize_t room


cdef Py_ssize_t above(const Stretch *stretch, const Placed *placed, int64_t offset) noexcept nogil:
    """How many of a stretch's items lie at this offset or below it."""
    cdef Py_ssize_t low = 0, high = stretch.count, middle
    while low < high:
        middle = (low + high) >> 1
        if placed[stretch.items[middle]].offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef int keep(Stretch *stretch, const Placed *placed, int32_t item) noexcept nogil:
    """Put an item among the others, which are in the order of their offsets; -1 without memory."""
    cdef int32_t *grown
    cdef Py_ssize_t at
    if stretch.count == stretch.room:
        stretch.room = 2 * stretch.room + 16
        grown = <int32_t *>realloc(stretch.items, stretch.room * sizeof(int32_t))
        if grown == NULL:
            return -1
        stretch.items = grown
    at = above(stretch, placed, placed[item].offset)
    memmove(stretch.items + at + 1, stretch.items + at, (stretch.count - at) * sizeof(int32_t))
    stretch.items[at] = item
    stretch.count += 1
    return 0


cdef int64_t lowest(const Stretch *one, const Stretch *other, const Placed *placed, int32_t first, int32_t last,
                    int64_t size, int64_t base) noexcept nogil:
    """The lowest place from `base` on with room for `size` bytes beside what lives between two steps.

    The items of both stretches are taken in the order of their offsets, so the first gap that is wide enough is it.
    One that is in both is looked at twice, which changes nothing.
    """
    cdef Py_ssize_t i = 0, j = 0
    cdef int64_t cursor = base
    cdef const Placed *item
    while i < one.count or j < other.count:
        if j >= other.count or (
            i < one.count and placed[one.items[i]].offset <= placed[other.items[j]].offset
        ):
            item = &placed[one.items[i]]
            i += 1
        else:
            item = &placed[other.items[j]]
            j += 1
        if item.first <= last and first <= item.last:
            if item.offset >= cursor + size:
                break
            if item.end > cursor:
                cursor = item.end
    return cursor


cdef int place_all(const int64_t[::1] sizes, const int64_t[::1] ends, const int32_t[::1] first,
                   const int32_t[::1] last, int64_t guard, int64_t[::1] out, Placed *placed, Stretch *stretches,
                   int64_t *end) noexcept nogil:
    """See `first_fit`. Returns -1 without memory."""
    cdef Py_ssize_t n = sizes.shape[0], i, k, count = 0, s, begin = 0
    cdef int32_t steps = 0, width, low, high
    cdef int64_t size, base = 0, before
    cdef Stretch *everything = &stretches[STRETCHES + 1]
    cdef Stretch *nothing = &stretches[STRETCHES + 2]
    for k in range(first.shape[0]):
        steps = max(steps, last[k] + 1)
    width = steps // STRETCHES + 1
    end[0] = 0
    for i in range(n):
        begin = ends[i - 1] if i else 0
        if sizes[i] == 0:
            continue
        size = sizes[i] + guard
        if first[begin] == 0 and last[begin] == steps - 1 and count == 0:
            # What lives always comes first, without gaps: nothing else can lie there.
            out[i], base = base, base + size
            end[0] = base
            continue
        # The lowest place for one life may be taken in another: from there on it looks again.
        out[i], before = base, -1
        while out[i] != before:
            before = out[i]
            for k in range(begin, ends[i]):
                low, high = first[k] // width, last[k] // width
                if high - low > 1:
                    out[i] = lowest(everything, nothing, placed, first[k], last[k], size, out[i])
                else:
                    out[i] = lowest(&stretches[low], &stretches[high] if high > low else nothing, placed, first[k],
                                    last[k], size, out[i])
            if ends[i] == begin + 1:
                break
        for k in range(begin, ends[i]):
            placed[count].offset, placed[count].end = out[i], out[i] + size
            placed[count].first, placed[count].last = first[k], last[k]
            if keep(everything, placed, <int32_t>count) < 0:
                return -1
            for s in range(first[k] // width, last[k] // width + 1):
                if keep(&stretches[s], placed, <int32_t>count) < 0:
                    return -1
            count += 1
        end[0] = max(end[0], out[i] + size)
    return 0


def first_fit(const int64_t[::1] sizes, const int64_t[::1] ends, const int32_t[::1] first,
              const int32_t[::1] last, int64_t guard):
    """Offsets of one tile's variables, in the order given, each at the lowest place free during its lives.

    Args:
        sizes: bytes.
        ends: number of lives of all variables up to each: those of variable i are from ends[i - 1] to ends[i].
        first: first step of each life.
        last: last step.
        guard: bytes left free behind each.

    Returns:
        (offsets, end): int64 offsets, and the bytes that the whole needs.
    """
    cdef Py_ssize_t n = sizes.shape[0], lives = first.shape[0], s
    cdef Stretch stretches[STRETCHES + 3]
    cdef int64_t end = 0
    cdef int failed = -1
    if len(ends) != n or len(last) != lives or (n and ends[n - 1] != lives):
        raise ValueError(f"{lives} lives of {n} variables do not belong together")
    offsets = np.zeros(n, np.int64)
    cdef int64_t[::1] out = offsets
    cdef Placed *placed = <Placed *>malloc((lives + 1) * sizeof(Placed))
    for s in range(STRETCHES + 3):
        stretches[s].items, stretches[s].count, stretches[s].room = NULL, 0, 0
    if placed != NULL:
        with nogil:
            failed = place_all(sizes, ends, first, last, guard, out, placed, stretches, &end)
    for s in range(STRETCHES + 3):
        free(stretches[s].items)
    free(placed)
    if failed:
        raise MemoryError(f"placing {n} variables")
    return offsets, int(end)
