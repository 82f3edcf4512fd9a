"""Strided copies: the rows of an exchange, or of a stream between the host and the tiles.

Parameters: number of dimensions, bytes of an element, which columns the offsets are relative to (see `program`).
Columns: source tile, destination tile, source offset, destination offset (elements), then for each dimension count,
destination stride, source stride (elements). The host is a tile 0 with another base address and stride 0.
"""
from libc.string cimport memcpy

from ipu_runtime._vec cimport copy_past_caches, copy_strided, fence_copies, fetch_ends
from ipu_runtime.core cimport Group, cell


DEF MUCH = 4 << 20     # bytes that the caches do not hold until they are read: of a group whose rows are all like this
DEF LONG_RUN = 512     # bytes of a run from which going past the caches pays
DEF AHEAD = 4          # rows: what is asked for now has arrived when that row is copied


cdef inline char *place(const Group *g, int of, long row, long size, char *base, size_t stride) noexcept nogil:
    # Where a row's source (0) or destination (1) begins.
    return base + stride * <size_t>cell(g, of, row) + <size_t>cell(g, 2 + of, row) * size


cdef void run_copy(const Group *g, long lo, long hi, char *src, size_t src_stride, char *dst,
                   size_t dst_stride) noexcept nogil:
    cdef int nd = <int>g.params[0], d
    cdef long size = g.params[1], row, i, inner
    cdef long n[8]
    cdef long ds[8]
    cdef long ss[8]
    cdef long at[8]
    cdef char *a
    cdef char *b
    cdef char *later
    for row in range(lo, hi):
        a = place(g, 0, row, size, src, src_stride)
        b = place(g, 1, row, size, dst, dst_stride)
        if nd == 0:
            if size == 4:
                (<int *>b)[0] = (<int *>a)[0]
            else:
                memcpy(b, a, size)
            continue
        for d in range(nd):
            n[d] = cell(g, 4 + 3 * d, row)
            ds[d] = cell(g, 5 + 3 * d, row) * size
            ss[d] = cell(g, 6 + 3 * d, row) * size
            at[d] = 0
        inner = n[nd - 1]
        while True:
            if ds[nd - 1] == size and ss[nd - 1] == size:
                if size == 4 and inner < 16:
                    for i in range(inner):
                        (<int *>b)[i] = (<int *>a)[i]
                elif inner * size >= LONG_RUN and g.n * inner * size > MUCH:
                    later = a
                    if nd == 1 and row + AHEAD < hi:
                        later = place(g, 0, row + AHEAD, size, src, src_stride)
                        fetch_ends(place(g, 1, row + AHEAD, size, dst, dst_stride), inner * size)
                    copy_past_caches(b, a, inner * size, later)
                else:
                    memcpy(b, a, inner * size)
            else:
                copy_strided(inner, <int>size, b, ds[nd - 1], a, ss[nd - 1])
            d = nd - 2
            while d >= 0:
                at[d] += 1
                a += ss[d]
                b += ds[d]
                if at[d] < n[d]:
                    break
                a -= n[d] * ss[d]
                b -= n[d] * ds[d]
                at[d] = 0
                d -= 1
            if d < 0:
                break
    fence_copies()
