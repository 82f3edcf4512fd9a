"""A group's column as the program keeps it: 32-bit numbers, one where all are equal. The inner loop of `assemble`."""
from libc.stdint cimport INT32_MAX, int32_t, int64_t

import numpy as np


def packed(const int64_t[:] values not None):
    """A column of numbers.

    Returns:
        int32 array of the values, or of one value where all are equal; None if 31 bits cannot hold them.
    """
    cdef Py_ssize_t n = len(values), i
    cdef bint alike = True, fits = True
    cdef int64_t one
    cdef int32_t[::1] found
    out = np.empty(n, np.int32)
    found = out
    with nogil:
        for i in range(n):
            one = values[i]
            alike = alike and one == values[0]
            fits = fits and -INT32_MAX <= one <= INT32_MAX
            found[i] = <int32_t>one
    return _result(out, alike, fits)


def packed_offsets(const int64_t[:] offsets not None, const int64_t[:] tiles not None, const int64_t[:] delta not None,
                   int64_t unit):
    """A column of places in a variable: (offset on the tile + delta) / unit.

    Args:
        offsets: of the variable, by tile.
        tiles: of each row.
        delta: of each row, or one for all.
        unit: divides both.

    Returns:
        As `packed`.
    """
    cdef Py_ssize_t n = len(tiles), i, step = 1 if len(delta) > 1 else 0
    cdef bint alike = True, fits = True
    cdef int64_t one, first = 0
    cdef int32_t[::1] found
    if len(delta) not in (1, n):
        raise ValueError(f"{len(delta)} places for {n} rows")
    out = np.empty(n, np.int32)
    found = out
    with nogil:
        for i in range(n):
            if not 0 <= tiles[i] < offsets.shape[0]:
                with gil:
                    raise IndexError(f"tile {tiles[i]} of {offsets.shape[0]}")
            one = (offsets[tiles[i]] + delta[i * step]) // unit
            if i == 0:
                first = one
            alike = alike and one == first
            fits = fits and -INT32_MAX <= one <= INT32_MAX
            found[i] = <int32_t>one
    return _result(out, alike, fits)


cdef _result(out, bint alike, bint fits):
    if not fits:
        return None
    return out[:1] if alike else out
