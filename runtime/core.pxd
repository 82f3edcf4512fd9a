# The tables that a program is made of, as the kernels see them. No objects: kernels run without the GIL.
#
# Threads: a Group is read-only while a program runs; each thread has its own Scratch; rows of a group write to
# disjoint bytes, so any split of the rows over threads gives the same result.
from libc.stdint cimport int32_t, int64_t


cdef struct Col:
    const int32_t *p     # values
    long s               # 1: one for each row; 0: the same for all rows


cdef struct Scratch:
    char *p              # at least n bytes, 64-byte aligned
    size_t n
    bint failed          # the host had no memory; the engine raises when the run is over


cdef struct Group:
    int codelet
    long n               # rows, one for each vertex
    int ncols
    Col *cols            # columns of the codelet's table; column 0 is the tile
    const int64_t *params
    long nparams
    void *aux            # what `prepare` made of the parameters


ctypedef void (*codelet_fn)(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil


cdef inline int32_t cell(const Group *g, int col, long row) noexcept nogil:
    return g.cols[col].p[row * g.cols[col].s]


cdef inline char *operand(const Group *g, int col, long row, char *arena, size_t stride) noexcept nogil:
    # Address of an operand: its byte offset in the memory of the row's own tile, never another's.
    return arena + stride * <size_t>cell(g, 0, row) + <size_t>cell(g, col, row)


# NULL if the host has no memory; the kernel then leaves its rows undone.
cdef char *scratch(Scratch *s, size_t need) noexcept nogil
