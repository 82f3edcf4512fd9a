"""The inner loops of strict mode (`strict.py`): bytes of memory that are touched, as runs [first, first + n)."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memset


cdef int check(const int64_t[:] first, const int64_t[:] n, Py_ssize_t room) except -1:
    cdef Py_ssize_t i
    if len(first) != len(n):
        raise ValueError(f"{len(first)} runs of {len(n)} lengths")
    for i in range(len(first)):
        if n[i] < 0 or first[i] < 0 or first[i] > room - n[i]:
            raise IndexError(f"bytes {first[i]} to {first[i] + n[i]} of {room}")
    return 0


def paint(uint8_t[::1] memory not None, const int64_t[:] first not None, const int64_t[:] n not None, uint8_t value):
    """Set the bytes of all runs."""
    cdef Py_ssize_t i
    check(first, n, len(memory))
    with nogil:
        for i in range(first.shape[0]):
            if n[i]:
                memset(&memory[first[i]], value, n[i])


def first_zero(const uint8_t[::1] memory not None, const int64_t[:] first not None, const int64_t[:] n not None):
    """The first byte of the runs that is 0, or -1."""
    cdef Py_ssize_t i
    cdef const uint8_t *found
    check(first, n, len(memory))
    with nogil:
        for i in range(first.shape[0]):
            if n[i]:
                found = <const uint8_t *>memchr(&memory[first[i]], 0, n[i])
                if found != NULL:
                    with gil:
                        return found - &memory[0]
    return -1


def claim(int32_t[::1] owner not None, const int64_t[:] first not None, const int64_t[:] n not None, int32_t number):
    """Give the bytes of the runs, which nobody may have, to an owner.

    Returns:
        the first byte that somebody has, or that two of the runs hold; -1 where there is none.
    """
    cdef Py_ssize_t i
    cdef int64_t at
    check(first, n, len(owner))
    with nogil:
        for i in range(first.shape[0]):
            for at in range(first[i], first[i] + n[i]):
                if owner[at]:
                    with gil:
                        return at
                owner[at] = number
    return -1


def of_another(const int32_t[::1] owner not None, const int64_t[:] first not None, const int64_t[:] n not None,
               int32_t number):
    """The first byte of the runs that another has, or -1."""
    cdef Py_ssize_t i
    cdef int64_t at
    check(first, n, len(owner))
    with nogil:
        for i in range(first.shape[0]):
            for at in range(first[i], first[i] + n[i]):
                if owner[at] and owner[at] != number:
                    with gil:
                        return at
    return -1


def give_back(int32_t[::1] owner not None, const int64_t[:] first not None, const int64_t[:] n not None):
    """Nobody has the bytes of the runs any more."""
    cdef Py_ssize_t i
    check(first, n, len(owner))
    with nogil:
        for i in range(first.shape[0]):
            if n[i]:
                memset(&owner[first[i]], 0, n[i] * sizeof(int32_t))


def damaged(const uint8_t[::1] memory not None, const uint8_t[::1] allocated not None, uint8_t pattern):
    """How many bytes that are not allocated have lost their pattern, and the first of them."""
    cdef Py_ssize_t i, count = 0, first = -1
    if len(memory) != len(allocated):
        raise ValueError(f"{len(allocated)} marks of {len(memory)} bytes")
    with nogil:
        for i in range(memory.shape[0]):
            count += memory[i] != pattern and not allocated[i]
        if count:
            for i in range(memory.shape[0]):
                if memory[i] != pattern and not allocated[i]:
                    first = i
                    break
    return count, first


cdef class Cells:
    """All allocations of a program, by tile and place.

    Args:
        tile, offset, nbytes: of each, sorted by tile and offset; none without bytes.
        born, dies: the first and the last step that it lives in.
        tiles: how many there are.
    """

    cdef const int64_t[:] offset, nbytes, born, dies
    cdef list kept
    cdef int64_t[:] edges

    def __init__(self, tile, offset, nbytes, born, dies, Py_ssize_t tiles):
        import numpy as np

        columns = [np.ascontiguousarray(each, np.int64) for each in (offset, nbytes, born, dies)]
        self.offset, self.nbytes, self.born, self.dies = columns
        self.edges = np.searchsorted(tile, np.arange(tiles + 1)).astype(np.int64)

    def outside(self, const int64_t[:] tile not None, const int64_t[:] offset not None,
                const int64_t[:] nbytes not None, int64_t step):
        """The first operand that is in no allocation that lives at a step, or -1.

        Args:
            tile, offset, nbytes: of each operand; tiles are those of the program.
            step: number of the step.
        """
        cdef Py_ssize_t i
        cdef int64_t low, high, middle, begin
        if not (len(tile) == len(offset) == len(nbytes)):
            raise ValueError("columns of different lengths")
        with nogil:
            for i in range(tile.shape[0]):
                if nbytes[i] <= 0:
                    continue
                if not 0 <= tile[i] < self.edges.shape[0] - 1:
                    with gil:
                        return i
                begin = low = self.edges[tile[i]]
                high = self.edges[tile[i] + 1]
                while low < high:
                    middle = (low + high) >> 1
                    if self.offset[middle] <= offset[i]:
                        low = middle + 1
                    else:
                        high = middle
                # The nearest below it that lives: no two that live at a time share a byte.
                low -= 1
                while low >= begin and not self.born[low] <= step <= self.dies[low]:
                    low -= 1
                if low < begin or offset[i] + nbytes[i] > self.offset[low] + self.nbytes[low]:
                    with gil:
                        return i
        return -1
