"""The inner loops of the copies' model: how each copy crosses the exchange, and which copies carry the same bytes.

What is computed, and from which source, is said in `copy_model`; here it is one pass over the rows. Planning a program
asks these questions for every exchange that might be, of tens of thousands of rows each.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

import numpy as np

from ipu_runtime.codelets.model import TOO_LARGE

DEF DIMS = 16

cdef int64_t LIMIT = TOO_LARGE


cdef struct Column:
    const char *at
    Py_ssize_t step


cdef int columns(list arrays, Py_ssize_t rows, Column *into, list keep) except -1:
    """Pointers to columns of one value or of `rows`; `keep` holds what they point into."""
    cdef Py_ssize_t i
    if len(arrays) > DIMS:
        raise ValueError(f"a copy of {len(arrays)} dimensions; there may be {DIMS}")
    for i, values in enumerate(arrays):
        values = np.asarray(values, np.int64)
        if values.ndim != 1 or len(values) not in (1, rows):
            raise ValueError(f"a column of shape {values.shape} for {rows} copies")
        keep.append(values)
        into[i].at = <const char *><size_t>values.ctypes.data
        into[i].step = values.strides[0] if len(values) > 1 else 0
    return 0


cdef inline int64_t value(const Column *column, Py_ssize_t row) noexcept nogil:
    return (<const int64_t *>(column.at + row * column.step))[0]


cdef inline int64_t times(int64_t a, int64_t b) noexcept nogil:
    # As `model.product`: what is too large must not wrap to something small.
    return LIMIT if <double>a * <double>b > <double>LIMIT else a * b


cdef inline int64_t side_runs(const int64_t *count, const Column *strides, int dims, Py_ssize_t row,
                              int64_t total) noexcept nogil:
    # Contiguous pieces on one side: dimensions in the order of their strides, as long as each goes on where the last
    # one ends. Those of one element come first.
    cdef int64_t key[DIMS]
    cdef int order[DIMS]
    cdef int i, j
    cdef int64_t k, run = 1
    for i in range(dims):
        k = value(&strides[i], row)
        k = 0 if count[i] == 1 else (k if k >= 0 else -k)
        j = i
        while j > 0 and key[j - 1] > k:
            key[j], order[j] = key[j - 1], order[j - 1]
            j -= 1
        key[j], order[j] = k, i
    for i in range(dims):
        if count[order[i]] != 1:
            if key[i] != run:
                break
            run = times(run, count[order[i]])
    return total // (run if run > 1 else 1)


def crossings(far, list counts, list dst_strides, list src_strides, int64_t itemsize, double price):
    """See `copy_model.crossing`, whose arguments these are.

    Returns:
        Four int64 arrays over the copies, as `copy_model.Crossing` names them.
    """
    cdef Py_ssize_t rows = len(far), row
    cdef int dims = <int>len(counts), d
    cdef Column n[DIMS]
    cdef Column to[DIMS]
    cdef Column of[DIMS]
    cdef list keep = []
    columns(counts, rows, n, keep)
    columns(dst_strides, rows, to, keep)
    columns(src_strides, rows, of, keep)
    cdef const unsigned char[:] crosses = np.ascontiguousarray(far).view(np.uint8)
    cdef int64_t[:, ::1] found = np.zeros((4, rows), np.int64)
    cdef int64_t count[DIMS]
    cdef int64_t outer, total, nbytes, direct, out, into, words, fewer, narrow = itemsize if itemsize < 8 else 8
    cdef double order, best, one
    with nogil:
        for row in range(rows):
            outer = total = 1
            for d in range(dims):
                count[d] = value(&n[d], row)
                outer = total
                total = times(total, count[d])
            nbytes = total * itemsize
            direct = outer
            if dims and not (value(&to[dims - 1], row) == 1 and value(&of[dims - 1], row) == 1):
                direct = total
            if not crosses[row]:
                if direct > 1:
                    found[3, row] = nbytes
                continue
            out = side_runs(count, of, dims, row, total)
            into = side_runs(count, to, dims, row, total)
            # Words are the unit of the wire: a fragment is a run of at least one word.
            words = (nbytes + 3) // 4
            if direct > words:
                direct = words
            fewer = out if out < into else into
            if fewer > words:
                fewer = words
            # Three ways: as they lie; as the side with fewer runs has them, put in order on the other; as one run, put
            # in order on both.
            order = <double>(nbytes * 5) / 4 / narrow
            best, one = price * direct, price * fewer + order
            found[0, row] = direct
            if one < best:
                best, found[0, row] = one, fewer
                found[1 if into < out else 2, row] = nbytes
            if price + 2 * order < best:
                found[0, row] = 1 if words > 1 else words
                found[1, row] = found[2, row] = nbytes
    return tuple(np.asarray(found))


cdef class Groups:
    """Equal keys, found by hashing: the number of each key's group, groups numbered as they appear."""

    cdef Py_ssize_t *slots      # of the table: group number + 1
    cdef uint64_t *keys         # of the groups
    cdef uint64_t mask
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t n):
        cdef uint64_t size = 16
        while size < 2 * <uint64_t>n:
            size *= 2
        self.mask, self.count = size - 1, 0
        self.slots = <Py_ssize_t *>calloc(size, sizeof(Py_ssize_t))
        self.keys = <uint64_t *>malloc((n + 1) * sizeof(uint64_t))
        if self.slots == NULL or self.keys == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)
        free(self.keys)

    cdef inline Py_ssize_t group(self, uint64_t key) noexcept nogil:
        cdef uint64_t at = (key ^ (key >> 32)) * <uint64_t>0x9E3779B97F4A7C15
        at = (at >> 32) & self.mask
        while self.slots[at]:
            if self.keys[self.slots[at] - 1] == key:
                return self.slots[at] - 1
            at = (at + 1) & self.mask
        self.keys[self.count] = key
        self.count += 1
        self.slots[at] = self.count
        return self.count - 1


def grouped(const uint64_t[::1] keys):
    """The first place of each key that occurs, in the order of appearance, and for each place the number of its key."""
    cdef Py_ssize_t n = len(keys), i, g
    cdef Groups groups = Groups(n)
    cdef int64_t[::1] first = np.empty(n, np.int64), which = np.empty(n, np.int64)
    with nogil:
        for i in range(n):
            g = groups.count
            which[i] = groups.group(keys[i])
            if which[i] == g:
                first[g] = i
    return np.asarray(first)[: groups.count], np.asarray(which)


def shares_of_pairs(const uint64_t[::1] keys, const int64_t[:] dst):
    """1 for each copy, or 0.5 where one of the same key, next to it in order, goes to another tile."""
    cdef Py_ssize_t n = len(keys), i, g, count
    cdef Groups groups = Groups(n)
    cdef int64_t[::1] last = np.empty(n, np.int64)
    cdef double[::1] share = np.ones(n)
    with nogil:
        for i in range(n):
            count = groups.count
            g = groups.group(keys[i])
            if g < count and dst[last[g]] != dst[i]:
                share[last[g]] = share[i] = 0.5
            last[g] = i
    return np.asarray(share)
