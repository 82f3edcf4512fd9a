# The tables that a program is made of, as the kernels see them. No objects: kernels run without the GIL.
#
# Threads: a Group is read-only while a program runs; each thread has its own Scratch; rows of a group write to
# disjoint bytes, so any split of the rows over threads gives the same result.
from libc.stdint cimport int32_t, int64_t, uint64_t

from ipu_runtime._vec cimport ROUND_STOCHASTIC, vec_fp


cdef struct Col:
    const int32_t *p     # values
    long s               # 1: one for each row; 0: the same for all rows


cdef struct Scratch:
    char *p              # at least n bytes, 64-byte aligned
    size_t n
    bint failed          # the host had no memory; the engine raises when the run is over
    vec_fp fp            # how the rows at hand round, and what they raised
    int op               # of a map's body, the first that raised something that is trapped
    uint64_t stream      # of random bits, one for each group of each superstep that is run


cdef struct Group:
    int codelet
    long n               # rows, one for each vertex
    int ncols
    Col *cols            # columns of the codelet's table; column 0 is the tile
    const int64_t *params
    long nparams
    void *aux            # what `prepare` made of the parameters
    int rounding         # of fp16 results: see ipu_runtime.rounding


ctypedef void (*codelet_fn)(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil


cdef inline int32_t cell(const Group *g, int col, long row) noexcept nogil:
    return g.cols[col].p[row * g.cols[col].s]


cdef inline char *operand(const Group *g, int col, long row, char *arena, size_t stride) noexcept nogil:
    # Address of an operand: its byte offset in the memory of the row's own tile, never another's.
    return arena + stride * <size_t>cell(g, 0, row) + <size_t>cell(g, col, row)


cdef inline uint64_t mixed(uint64_t a, uint64_t b) noexcept nogil:
    # One number of two, all bits of which depend on all of theirs (the mixing of SplitMix64).
    cdef uint64_t x = a + (b + 1) * <uint64_t>0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline void begin_row(Scratch *s, long row) noexcept nogil:
    # To be called before a row's first result: its random bits are its own, whichever thread runs it.
    if s.fp.mode & ROUND_STOCHASTIC:
        s.fp.key, s.fp.drawn = mixed(s.stream, row), 0


# Where there are traps: n sums or products `out` of n_a and n_b operands have overflowed or are not numbers.
cdef void watch(Scratch *s, int dtype, long n, const void *out, int of, long n_a, const void *a, long n_b,
                const void *b) noexcept nogil


# NULL if the host has no memory; the kernel then leaves its rows undone.
cdef char *scratch(Scratch *s, size_t need) noexcept nogil
