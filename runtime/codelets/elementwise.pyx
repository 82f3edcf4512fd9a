"""The `map` vertex: a small element-wise expression over a block, chunk by chunk so that its registers stay in L1.

Parameters (int64):
    rank, n_in, n_out, n_const, n_tmp, n_body, chunk, slot (bytes of a register's element)
    n_in  x (mask of the block's dimensions that the input has, bytes of an element)
    n_out x (register, bytes of an element); the register is the output's own where the body writes it in place
    n_const x (dtype, bits)
    n_body x (is_convert, op or target dtype, dtype, destination, a, b, c)
Registers are numbered: inputs, constants, temporaries, outputs.

Columns: tile, extent of each dimension, offset of each input, offset of each output.
"""
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from ipu_runtime._vec cimport (
    TRAP_ALL, VEC_COMPARE_EQ, VEC_COMPARE_GE, VEC_IS_FINITE, vec_dtype_size, vec_raised, vec_select, vec_table)
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch

DEF HEAD = 8


cdef inline long result_size(int op, int dtype) noexcept:
    # Bytes of a result's element; comparisons give a pred.
    return 1 if op == VEC_IS_FINITE or VEC_COMPARE_EQ <= op <= VEC_COMPARE_GE else vec_dtype_size(dtype)


cdef Body *make_body(const int64_t *words, int n) noexcept:
    # words: (is_convert, op or target dtype, dtype, dst, a, b, c) for each operation. NULL if a kernel is missing.
    cdef const vec_table *table = vec_select(NULL)
    cdef Body *body = <Body *>malloc(sizeof(Body))
    cdef int i
    if body == NULL:
        return NULL
    body.n = n
    body.ops = <Op *>malloc((n + 1) * sizeof(Op))
    if body.ops == NULL:
        return NULL
    for i in range(n):
        body.ops[i].fn = table.convert[words[1]][words[2]] if words[0] else table.op[words[1]][words[2]]
        if body.ops[i].fn == NULL:
            return NULL
        body.ops[i].dst, body.ops[i].a = <int>words[3], <int>words[4]
        body.ops[i].b, body.ops[i].c = <int>words[5], <int>words[6]
        body.ops[i].number, body.ops[i].dtype = -1 if words[0] else <int>words[1], <int>words[2]
        body.ops[i].size = result_size(body.ops[i].number, <int>(words[1] if words[0] else words[2]))
        words += 7
    return body


cdef void run_body(const Body *body, char **reg, long n, char *aside, Scratch *s) noexcept nogil:
    """All operations of a body on `n` elements; `aside` has room for 8 n bytes, or is NULL where nothing is trapped."""
    cdef Op *op = body.ops
    cdef Op *end = op + body.n
    cdef uint32_t trapped
    if aside == NULL:
        while op < end:
            op.fn(n, reg[op.dst], reg[op.a], reg[op.b], reg[op.c], &s.fp)
            op += 1
        return
    # A result goes aside first: what an operation has done wrong shows on its operands, which it may overwrite.
    while op < end:
        trapped = s.fp.raised & s.fp.mode & TRAP_ALL
        op.fn(n, aside, reg[op.a], reg[op.b], reg[op.c], &s.fp)
        if op.number >= 0:
            s.fp.raised |= vec_raised(op.number, op.dtype, n, aside, reg[op.a], reg[op.b])
        if not trapped and s.fp.raised & s.fp.mode & TRAP_ALL:
            s.op = <int>(op - body.ops)
        memcpy(reg[op.dst], aside, n * op.size)
        op += 1


cdef struct Map:
    Body *body
    char *consts          # each constant filled to a whole chunk
    int rank, n_in, n_out, n_const, n_tmp
    long chunk, slot


cdef void free_body(Body *body) noexcept:
    if body != NULL:
        free(body.ops)
    free(body)


cdef void free_map(void *aux) noexcept:
    cdef Map *m = <Map *>aux
    free(m.consts)
    free_body(m.body)
    free(m)


cdef void *prepare_map(const Group *g) noexcept:
    cdef const int64_t *p = g.params
    cdef Map *m = <Map *>malloc(sizeof(Map))
    cdef const int64_t *q
    cdef long i, j, size
    cdef char *at
    if m == NULL:
        return NULL
    m.rank, m.n_in, m.n_out, m.n_const, m.n_tmp = <int>p[0], <int>p[1], <int>p[2], <int>p[3], <int>p[4]
    m.chunk, m.slot = p[6], p[7]
    q = p + HEAD + 2 * m.n_in + 2 * m.n_out
    m.consts = <char *>malloc(m.n_const * m.chunk * 8 + 64)
    for i in range(m.n_const):
        at = m.consts + i * m.chunk * 8
        size = vec_dtype_size(<int>q[0])
        for j in range(m.chunk):
            memcpy(at + j * size, &q[1], size)
        q += 2
    m.body = make_body(q, <int>p[5])
    if m.body == NULL or m.consts == NULL:
        return NULL
    return m


cdef inline void fill(char *out, const char *value, long n, long size) noexcept nogil:
    cdef long i
    if size == 4:
        for i in range(n):
            (<int *>out)[i] = (<const int *>value)[0]
    elif size == 1:
        memset(out, value[0], n)
    elif size == 8:
        for i in range(n):
            (<long long *>out)[i] = (<const long long *>value)[0]
    else:
        for i in range(n):
            (<short *>out)[i] = (<const short *>value)[0]


cdef void expand(char *out, const char *block, long first, long n, int rank, const long *ext, long mask,
                 long size) noexcept nogil:
    """out[0..n) = elements first.. of the block's broadcast, row-major; `mask` says which dimensions it has."""
    cdef long at[8]
    cdef long step[8]
    cdef long inner = ext[rank - 1]
    cdef long rest = first, pos = 0, run, stride = 1
    cdef int d
    for d in range(rank - 1, -1, -1):
        at[d] = rest % ext[d]
        rest //= ext[d]
        step[d] = 0
        if mask >> d & 1:
            step[d] = stride
            stride *= ext[d]
        pos += at[d] * step[d]
    while n > 0:
        run = inner - at[rank - 1]
        if run > n:
            run = n
        if mask >> (rank - 1) & 1:
            memcpy(out, block + pos * size, run * size)
        else:
            fill(out, block + pos * size, run, size)
        out += run * size
        n -= run
        pos -= at[rank - 1] * step[rank - 1]
        at[rank - 1] = 0
        d = rank - 2
        while d >= 0:
            at[d] += 1
            pos += step[d]
            if at[d] < ext[d]:
                break
            pos -= ext[d] * step[d]
            at[d] = 0
            d -= 1


cdef void run_map(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef Map *m = <Map *>g.aux
    cdef const int64_t *ins = g.params + HEAD
    cdef const int64_t *outs = ins + 2 * m.n_in
    cdef int rank = m.rank, n_in = m.n_in, n_const = m.n_const, n_tmp = m.n_tmp, n_out = m.n_out
    cdef int n_regs = n_in + n_const + n_tmp + n_out
    cdef size_t slot = m.chunk * 8
    cdef char *work = scratch(s, n_regs * (sizeof(char *) * 2 + sizeof(long)) + 64 + (n_in + n_tmp + 1) * slot)
    if work == NULL:
        return
    cdef char **reg = <char **>work
    cdef char **base = reg + n_regs
    cdef long *kind = <long *>(base + n_regs)
    cdef char *buffers = work + ((n_regs * (sizeof(char *) * 2 + sizeof(long)) + 63) & ~<size_t>63)
    cdef char *aside = buffers + (n_in + n_tmp) * slot if s.fp.mode & TRAP_ALL else NULL
    cdef long ext[8]
    cdef long row, n, c, len_, i, full, mask
    cdef int d
    for i in range(n_const):
        reg[n_in + i] = m.consts + i * m.chunk * 8
    for i in range(n_tmp):
        reg[n_in + n_const + i] = buffers + (n_in + i) * slot
    for row in range(lo, hi):
        begin_row(s, row)
        n = 1
        full = 0
        for d in range(rank):
            ext[d] = cell(g, 1 + d, row)
            n *= ext[d]
            if ext[d] != 1:
                full |= 1 << d
        for i in range(n_in):
            base[i] = operand(g, 1 + rank + <int>i, row, arena, stride)
            mask = ins[2 * i] & full
            kind[i] = 0 if mask == full else (1 if mask == 0 else 2)
            if kind[i] == 1:
                reg[i] = buffers + i * slot
                fill(reg[i], base[i], n if n < m.chunk else m.chunk, ins[2 * i + 1])
            elif kind[i] == 2:
                reg[i] = buffers + i * slot
        for i in range(n_out):
            base[n_in + i] = operand(g, 1 + rank + n_in + <int>i, row, arena, stride)
        c = 0
        while c < n:
            len_ = n - c
            if len_ > m.chunk:
                len_ = m.chunk
            for i in range(n_in):
                if kind[i] == 0:
                    reg[i] = base[i] + c * ins[2 * i + 1]
                elif kind[i] == 2:
                    expand(reg[i], base[i], c, len_, rank, ext, ins[2 * i], ins[2 * i + 1])
            for i in range(n_out):
                reg[n_in + n_const + n_tmp + i] = base[n_in + i] + c * outs[2 * i + 1]
            run_body(m.body, reg, len_, aside, s)
            for i in range(n_out):
                if outs[2 * i] != n_in + n_const + n_tmp + i:
                    memcpy(reg[n_in + n_const + n_tmp + i], reg[outs[2 * i]], len_ * outs[2 * i + 1])
            c += len_
