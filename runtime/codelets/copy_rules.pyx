"""The inner loops of the copies' model: how each copy crosses the exchange, and which copies carry the same bytes.

What is computed, and from which source, is said in `copy_model`; here it is one pass over the rows. Planning a program
asks these questions for every exchange that might be, of tens of thousands of rows each.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

from ipu_runtime.codelets.model import TOO_LARGE
from ipu_runtime.core cimport mixed

DEF DIMS = 16

cdef int64_t LIMIT = TOO_LARGE


cdef struct Column:
    const char *at
    Py_ssize_t step


cdef int columns(list arrays, Py_ssize_t rows, Column *into, list keep) except -1:
    """Pointers to columns of one value or of `rows`; `keep` holds what they point into."""
    cdef Py_ssize_t i
    if len(arrays) > DIMS:
        raise ValueError(f"{len(arrays)} columns of copies; there may be {DIMS}")
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


def crossings(far, list counts, list dst_strides, list src_strides, int64_t itemsize, double price, double rate):
    """See `copy_model.crossing`, whose arguments these are; `rate`: cycles to put a byte in order.

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
    cdef int64_t outer, total, nbytes, direct, out, into, words, fewer
    cdef double order, best, one
    cdef Py_ssize_t like[2]     # a row inside a tile, one between tiles
    cdef bint alike = True
    for d in range(dims):
        alike = alike and n[d].step == 0 and to[d].step == 0 and of[d].step == 0
    like[0] = like[1] = -1
    with nogil:
        for row in range(rows):
            if alike and like[crosses[row] != 0] >= 0:
                for d in range(4):
                    found[d, row] = found[d, like[crosses[row] != 0]]
                continue
            like[crosses[row] != 0] = row
            outer = total = 1
            for d in range(dims):
                count[d] = value(&n[d], row)
                outer = total
                total = times(total, count[d])
            nbytes = total * itemsize
            # Words are the unit of the wire: a fragment is a run of at least one word.
            words = (nbytes + 3) // 4
            direct = outer
            if dims and not (value(&to[dims - 1], row) == 1 and value(&of[dims - 1], row) == 1):
                direct = total
            if direct > words:
                direct = words
            if not crosses[row]:
                if direct > 1:
                    found[3, row] = nbytes
                continue
            out = side_runs(count, of, dims, row, total)
            into = side_runs(count, to, dims, row, total)
            fewer = out if out < into else into
            if fewer > words:
                fewer = words
            # Three ways: as they lie; as the side with fewer runs has them, put in order on the other; as one run, put
            # in order on both.
            order = nbytes * rate
            best, one = price * direct, price * fewer + order
            found[0, row] = direct
            if one < best:
                best, found[0, row] = one, fewer
                found[1 if into < out else 2, row] = nbytes
            if price + 2 * order < best:
                found[0, row] = 1 if words > 1 else words
                found[1, row] = found[2, row] = nbytes
    return tuple(np.asarray(found))


cdef struct Group:
    uint64_t key
    Py_ssize_t last      # row
    int64_t most         # of the rows' bytes


cdef class Groups:
    """Rows by a key, found by hashing; groups are numbered as they appear.

    A table outlives its call: memory that was just used is in the caches, and fresh memory comes page by page.
    """

    cdef int32_t *slots         # of the table: group number + 1
    cdef Group *at
    cdef uint64_t mask
    cdef Py_ssize_t count, room

    def __dealloc__(self):
        free(self.slots)
        free(self.at)

    cdef int clear(self, Py_ssize_t n) except -1:
        """No group, and room for n."""
        cdef uint64_t size = 16
        if n > INT32_MAX:
            raise ValueError(f"{n} copies in one exchange")
        while size < 2 * <uint64_t>n:
            size *= 2
        if n > self.room or self.slots == NULL:
            free(self.slots)
            free(self.at)
            self.room = 0
            self.slots = <int32_t *>malloc(size * sizeof(int32_t))
            self.at = <Group *>malloc((n + 1) * sizeof(Group))
            if self.slots == NULL or self.at == NULL:
                raise MemoryError
            self.room = n
        memset(self.slots, 0, size * sizeof(int32_t))
        self.mask, self.count = size - 1, 0
        return 0

    cdef inline Group *add(self, uint64_t key, bint *is_new) noexcept nogil:
        cdef uint64_t slot = mixed(key, 0) & self.mask
        is_new[0] = False
        while self.slots[slot]:
            if self.at[self.slots[slot] - 1].key == key:
                return &self.at[self.slots[slot] - 1]
            slot = (slot + 1) & self.mask
        is_new[0] = True
        self.at[self.count].key = key
        self.count += 1
        self.slots[slot] = <int32_t>self.count
        return &self.at[self.count - 1]


cdef list SPARE = []
cdef Py_ssize_t SPARED = 1 << 18    # groups that a table which is kept has room for at most: 10 MB


cdef Groups table(Py_ssize_t n):
    """A table with room for n groups; it goes back to SPARE."""
    cdef Groups found
    try:
        found = SPARE.pop()
    except IndexError:
        found = Groups()
    found.clear(n)
    return found


def tally(const int64_t[:] src, const int64_t[:] dst, const int64_t[:] origin, list shape, const int64_t[:] nbytes,
          const int64_t[:] fragments, const int64_t[:] before, const int64_t[:] after, const int64_t[:] local,
          double rate, Py_ssize_t tiles, double memcpy):
    """See `copy_model.traffic`, whose arguments these are; `fragments` to `local` say how the copies cross, `rate`:
    cycles to put a byte in order.

    Returns:
        Seven float64 arrays over the tiles, as `copy_model.Traffic` names them. Sums below 2^53 are exact.
    """
    cdef Py_ssize_t rows = len(src), row, to, of
    cdef int dims = <int>len(shape), d
    cdef Column column[DIMS]
    cdef list keep = []
    if not (len(dst) == len(origin) == len(nbytes) == rows
            and len(fragments) == len(before) == len(after) == len(local) == rows):
        raise ValueError(f"columns that are not all of {rows} copies")
    columns(shape, rows, column, keep)
    cdef Groups streams = table(rows), pairs = table(rows)
    cdef Group *group
    cdef bint is_new
    cdef uint64_t key
    cdef int64_t n, wide = -1
    cdef double[::1] share = np.ones(rows)
    cdef double[:, ::1] found = np.zeros((7, tiles))
    with nogil:
        for row in range(rows):
            if not (0 <= src[row] < tiles and 0 <= dst[row] < tiles):
                wide = row
                break
            of, to, n = src[row], dst[row], nbytes[row]
            found[2, to] += fragments[row]
            found[5, of] += before[row] * rate
            found[6, to] += (after[row] + local[row]) * rate
            if of == to:
                # hardware.md 3.8: an on-tile copy of one run at 8 B a cycle.
                if not local[row]:
                    found[6, to] += n / memcpy
                continue
            found[1, to] += n
            key = <uint64_t>of << 32 | <uint64_t>origin[row]
            for d in range(dims):
                if column[d].step:
                    key = mixed(key, <uint64_t>value(&column[d], row))
            group = streams.add(key, &is_new)
            if is_new:
                group.last, group.most = row, 0
            # Whoever wants only the beginning of a stream listens to the same one.
            group.most = n if n > group.most else group.most
            group = pairs.add(mixed(mixed(key, <uint64_t>n), <uint64_t>to >> 1), &is_new)
            if not is_new and dst[group.last] != to:
                share[group.last] = share[row] = 0.5
            group.last = row
        for row in range(rows):
            if wide < 0 and src[row] != dst[row]:
                found[0, dst[row]] += nbytes[row] * share[row]
        for row in range(streams.count):
            group = &streams.at[row]
            found[3, src[group.last]] += group.most
            found[4, src[group.last]] += (group.most + 255) // 256
    SPARE.extend([each for each in (streams, pairs) if (<Groups>each).room <= SPARED])
    if wide >= 0:
        raise ValueError(f"a copy from tile {src[wide]} to tile {dst[wide]} of {tiles}")
    return tuple(np.asarray(found))
