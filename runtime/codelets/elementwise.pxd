from libc.stdint cimport int64_t

from ipu_runtime._vec cimport vec_fn
from ipu_runtime.core cimport Group, Scratch


cdef struct Op:          # one operation on registers
    vec_fn fn
    int dst, a, b, c
    int number, dtype    # of the operation and its operands, for traps; number -1: a conversion
    long size            # bytes of a result's element


cdef struct Body:        # a straight line of them
    int n
    Op *ops


cdef Body *make_body(const int64_t *words, int n) noexcept
cdef void free_body(Body *body) noexcept
cdef void run_body(const Body *body, char **reg, long n, char *aside, Scratch *s) noexcept nogil
cdef void *prepare_map(const Group *g) noexcept
cdef void free_map(void *aux) noexcept
cdef void run_map(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil
