"""Reduction of a block over some of its dimensions, by one operation or by a region of several operands.

`reduce` parameters: rank, mask of the kept dimensions, op, dtype, bits of the start value.
    Columns: tile, extents, offset of the block, offset of the result.
    out[k] = op(...op(op(start, x[k, 0]), x[k, 1])...), fp16 sums and products in fp32, rounded once.
`variadic` parameters: rank, mask, n_ops, n_const, n_tmp, n_body, n_ops x (bytes, bits of the start value, register of
    the result), constants (dtype, bits), body; registers: accumulators, elements, constants, temporaries.
    Columns: tile, extents, offsets of the blocks, offsets of the results.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ipu_runtime._vec cimport (
    DT_F16, DT_F32, TRAP_ALL, VEC_ADD, VEC_MULTIPLY, reduce_fn, vec_dtype_size, vec_fn, vec_select, vec_table)
from ipu_runtime.codelets.elementwise cimport Body, free_body, make_body, run_body
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch, watch

DEF CHUNK = 256
DEF LANES = 64    # parts of a long line that a region of several operands reduces side by side

cdef struct Reduce:
    vec_fn op
    reduce_fn reduce
    vec_fn widen, narrow     # fp16 accumulates in fp32
    long size                # bytes of an element while accumulating
    bint sums                # results may overflow


cdef void *prepare_reduce(const Group *g) noexcept:
    cdef const vec_table *table = vec_select(NULL)
    cdef Reduce *r = <Reduce *>malloc(sizeof(Reduce))
    cdef int op = <int>g.params[2], dtype = <int>g.params[3]
    if r == NULL:
        return NULL
    r.widen = r.narrow = NULL
    if dtype == DT_F16:
        r.widen, r.narrow = table.convert[DT_F32][DT_F16], table.convert[DT_F16][DT_F32]
        dtype = DT_F32
    r.op, r.reduce = table.op[op][dtype], table.reduce[op][dtype]
    r.size, r.sums = vec_dtype_size(dtype), op == VEC_ADD or op == VEC_MULTIPLY
    if r.op == NULL or r.reduce == NULL:
        return NULL
    return r


cdef inline void fill(char *out, long n, const void *value, long size) noexcept nogil:
    # Every copy is twice as long as the one before: a call for each element would cost more than the reduction.
    cdef long done = size, total = n * size
    if n == 0:
        return
    memcpy(out, value, size)
    while done < total:
        memcpy(out + done, out, done if done < total - done else total - done)
        done *= 2


cdef inline bint advance(long *at, const long *ext, const long *step, int last, long *pos) noexcept nogil:
    # The next index of the dimensions 0..last; `pos` follows by the steps. False after the last index.
    cdef int d = last
    while d >= 0:
        at[d] += 1
        pos[0] += step[d]
        if at[d] < ext[d]:
            return True
        pos[0] -= ext[d] * step[d]
        at[d] = 0
        d -= 1
    return False


cdef void run_reduce(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef Reduce *r = <Reduce *>g.aux
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d
    cdef long mask = p[1], row, n, outs, pos, inner, size = r.size
    cdef long ext[8]
    cdef long at[8]
    cdef long steps[8]
    cdef char *x
    cdef char *out
    cdef char *home
    cdef float start
    for row in range(lo, hi):
        begin_row(s, row)
        x = operand(g, 1 + rank, row, arena, stride)
        home = operand(g, 2 + rank, row, arena, stride)
        n, outs = 1, 1
        for d in range(rank - 1, -1, -1):
            ext[d] = cell(g, 1 + d, row)
            at[d] = 0
            steps[d] = 0
            if mask >> d & 1:
                steps[d] = outs * size
                outs *= ext[d]
            n *= ext[d]
        out = home
        if r.widen != NULL:
            out = scratch(s, (n + outs) * 4 + 64)
            if out == NULL:
                return
            r.widen(n, out + outs * 4, x, NULL, NULL, NULL)
            x = out + outs * 4
            r.widen(1, &start, &p[4], NULL, NULL, NULL)
            fill(out, outs, &start, size)
        else:
            fill(out, outs, &p[4], size)
        inner = ext[rank - 1]
        pos = 0
        if n:
            while True:
                if mask >> (rank - 1) & 1:
                    r.op(inner, out + pos, out + pos, x, NULL, NULL)
                else:
                    r.reduce(inner, out + pos, x)
                x += inner * size
                if not advance(at, ext, steps, rank - 2, &pos):
                    break
        if r.narrow != NULL:
            r.narrow(outs, home, out, NULL, NULL, &s.fp)
        if r.sums:
            watch(s, <int>p[3], outs, home, <int>p[3], n, operand(g, 1 + rank, row, arena, stride), 0, NULL)


cdef struct Variadic:
    Body *body
    char *consts


cdef void free_variadic(void *aux) noexcept:
    cdef Variadic *mine = <Variadic *>aux
    free(mine.consts)
    free_body(mine.body)
    free(mine)


cdef void *prepare_variadic(const Group *g) noexcept:
    cdef const int64_t *p = g.params
    cdef long n_ops = p[2], n_const = p[3], i, j, size
    cdef const int64_t *q = p + 6 + 3 * n_ops
    cdef Variadic *v = <Variadic *>malloc(sizeof(Variadic))
    if v == NULL:
        return NULL
    v.consts = <char *>malloc(n_const * CHUNK * 8 + 8)
    for i in range(n_const):
        size = vec_dtype_size(<int>q[0])
        for j in range(CHUNK):
            memcpy(v.consts + i * CHUNK * 8 + j * size, &q[1], size)
        q += 2
    v.body = make_body(q, <int>p[5])
    if v.body == NULL or v.consts == NULL:
        return NULL
    return v


cdef inline void take(char *out, const char *x, long size, long apart) noexcept nogil:
    """The next element of each lane, `apart` elements from that of the lane before."""
    cdef long i
    if size == 4:
        for i in range(LANES):
            (<uint32_t *>out)[i] = (<const uint32_t *>x)[i * apart]
    elif size == 8:
        for i in range(LANES):
            (<uint64_t *>out)[i] = (<const uint64_t *>x)[i * apart]
    elif size == 2:
        for i in range(LANES):
            (<uint16_t *>out)[i] = (<const uint16_t *>x)[i * apart]
    else:
        for i in range(LANES):
            out[i] = x[i * apart]


cdef inline void keep(const int64_t *ops, int n_ops, char **reg, long n) noexcept nogil:
    """The region's results become the accumulators."""
    cdef int k
    for k in range(n_ops):
        if ops[3 * k + 2] != k:
            memcpy(reg[k], reg[ops[3 * k + 2]], n * ops[3 * k])


cdef inline bint ordinary(const char *x, long n, long size) noexcept nogil:
    """Whether no element could be a NaN, whatever the dtype: with one, comparing regions depend on the order."""
    cdef long i
    cdef uint32_t found = 0
    if size == 4:
        for i in range(n):
            found |= ((<const uint32_t *>x)[i] & 0x7fffffff) > 0x7f800000
    elif size == 2:
        for i in range(n):
            found |= ((<const uint16_t *>x)[i] & 0x7fff) > 0x7c00
    return found == 0


cdef void run_variadic(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef Variadic *v = <Variadic *>g.aux
    cdef const int64_t *p = g.params
    cdef int rank = <int>p[0], d, k, n_ops = <int>p[2], n_const = <int>p[3], n_tmp = <int>p[4]
    cdef const int64_t *ops = p + 6
    cdef long mask = p[1], row, n, outs, pos, inner, c, len_, base
    cdef long ext[8]
    cdef long at[8]
    cdef long steps[8]
    cdef char *reg[96]
    cdef char *tmp = scratch(s, (n_tmp + 1 + 2 * n_ops) * CHUNK * 8)
    cdef char *aside = tmp + n_tmp * CHUNK * 8 if s.fp.mode & TRAP_ALL else NULL
    cdef char *lanes = tmp + (n_tmp + 1) * CHUNK * 8
    cdef long apart, i
    cdef bint side_by_side
    cdef char *out
    if tmp == NULL:
        return
    for k in range(n_const):
        reg[2 * n_ops + k] = v.consts + k * CHUNK * 8
    for k in range(n_tmp):
        reg[2 * n_ops + n_const + k] = tmp + k * CHUNK * 8
    for row in range(lo, hi):
        begin_row(s, row)
        n, outs = 1, 1
        for d in range(rank - 1, -1, -1):
            ext[d] = cell(g, 1 + d, row)
            at[d] = 0
            steps[d] = 0
            if mask >> d & 1:
                steps[d] = outs
                outs *= ext[d]
            n *= ext[d]
        for k in range(n_ops):
            out = operand(g, 1 + rank + n_ops + k, row, arena, stride)
            fill(out, outs, &ops[3 * k + 1], ops[3 * k])
        if n == 0:
            continue
        inner = ext[rank - 1]
        pos = base = 0
        while True:
            # A kept last dimension goes in chunks. A reduced one goes in lanes, each a part of it, then lane by lane:
            # so the order of the elements stays. What is left goes element by element.
            c = 0
            side_by_side = not mask >> (rank - 1) & 1 and inner >= 4 * LANES
            for k in range(n_ops if side_by_side else 0):
                side_by_side = side_by_side and ordinary(
                    operand(g, 1 + rank + k, row, arena, stride) + base * ops[3 * k], inner, ops[3 * k])
            if side_by_side:
                apart = inner // LANES
                for k in range(n_ops):
                    reg[k], reg[n_ops + k] = lanes + k * CHUNK * 8, lanes + (n_ops + k) * CHUNK * 8
                    take(reg[k], operand(g, 1 + rank + k, row, arena, stride) + base * ops[3 * k], ops[3 * k], apart)
                for i in range(1, apart):
                    for k in range(n_ops):
                        take(reg[n_ops + k], operand(g, 1 + rank + k, row, arena, stride) + (base + i) * ops[3 * k],
                             ops[3 * k], apart)
                    run_body(v.body, reg, LANES, aside, s)
                    keep(ops, n_ops, reg, LANES)
                for i in range(LANES):
                    for k in range(n_ops):
                        reg[k] = operand(g, 1 + rank + n_ops + k, row, arena, stride) + pos * ops[3 * k]
                        reg[n_ops + k] = lanes + k * CHUNK * 8 + i * ops[3 * k]
                    run_body(v.body, reg, 1, aside, s)
                    keep(ops, n_ops, reg, 1)
                c = apart * LANES
            while c < inner:
                len_ = 1
                if mask >> (rank - 1) & 1:
                    len_ = inner - c if inner - c < CHUNK else CHUNK
                for k in range(n_ops):
                    reg[k] = operand(g, 1 + rank + n_ops + k, row, arena, stride)
                    reg[k] += (pos + (c if mask >> (rank - 1) & 1 else 0)) * ops[3 * k]
                    reg[n_ops + k] = operand(g, 1 + rank + k, row, arena, stride) + (base + c) * ops[3 * k]
                run_body(v.body, reg, len_, aside, s)
                keep(ops, n_ops, reg, len_)
                c += len_
            base += inner
            if not advance(at, ext, steps, rank - 2, &pos):
                break
