"""Quarters, the chip's 8-bit floats: casts from and to fp16, and products of them with partial sums in fp16.

A quarter is a byte; its format and scale are in a metadata byte that a whole tensor shares and that each tile has:
bit 7 is set for 1.4.3 (bias 8) and clear for 1.5.2 (bias 16), bits 0 to 5 are the scale s, signed: the value is the
code's times 2^s. Exponents of all ones are ordinary numbers; the code of minus zero is the only NaN.

Cast. Parameters: 1 to quarter, 0 from it; 1 if what is too large becomes NaN, 0 if the largest number.
Columns: tile, elements, offsets of the operand, of the metadata and of the result.

Product: out[g, b, o, n] = sum over k, c of in[g, b, i(o, k), c] w[g, k, c, n], a matrix product without spatial
dimensions. Parameters: spatial dimensions, then for each stride, window dilation, base dilation, reversed window; the
planned method (cycles only). Columns: tile, g, b, c, n, then for each spatial dimension block extent, outputs, taps,
first (as in `conv`); offsets of input, weights, output, the input's metadata and the weights'.

The AMP takes 32 input channels at a time: exact within a block of them, scaled by 2 to the sum of both scales, then one
rounding to fp16 a block [unvalidated: no source says where the chip rounds]. Blocks do not cross taps. "Exact" holds
while the terms of a block span no more than the 53 bits of a double: always for two 1.4.3 operands (41 bits).
"""
from libc.math cimport ldexp, ldexpf
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from ipu_runtime._vec cimport DT_F16, DT_F32, vec_fp, vec_select, vec_table
from ipu_runtime.core cimport Group, Scratch, begin_row, cell, operand, scratch

DEF BLOCK = 32      # input channels of an fp8 AMP block
DEF PANEL = 32768   # elements of a panel: it stays in L2
DEF CHUNK = 512     # elements that a cast takes at once
DEF NAN_CODE = 0x80


cdef union Word:
    float f
    uint32_t u


cdef union Double:
    double f
    uint64_t u


cdef float[2][256] VALUES   # of the codes without scale, by bit 7 of the metadata

for _fmt in range(2):
    for _code in range(256):
        _bits = 3 if _fmt else 2
        _exponent, _fraction = (_code & 127) >> _bits, _code & ((1 << _bits) - 1)
        VALUES[_fmt][_code] = (-1.0 if _code & 128 else 1.0) * ldexp(
            _fraction + ((1 << _bits) if _exponent else 0),
            max(_exponent, 1) - (8 if _fmt else 16) - _bits,
        )
    VALUES[_fmt][NAN_CODE] = float("nan")


cdef inline int scale_of(uint8_t metadata) noexcept nogil:
    return ((metadata & 63) ^ 32) - 32


cdef inline uint8_t to_code(float x, bint is_143, bint nan_if_large) noexcept nogil:
    """The nearest quarter to a scaled value; to even where two are as near. Infinity has none: it becomes NaN."""
    cdef int bits = 3 if is_143 else 2, shift = 23 - bits
    cdef uint32_t code, sign, lowest
    cdef Word word, magic
    word.f = x
    sign = word.u >> 24 & 128
    word.u &= 0x7fffffff
    if word.u >= 0x7f800000:
        return NAN_CODE
    lowest = 120 if is_143 else 112      # exponent field of the least normal number: 127 + 1 - bias
    if word.u < lowest << 23:
        # An addition that rounds at the step of the subnormal numbers.
        magic.u = (lowest + 23 - bits) << 23
        word.f += magic.f
        code = word.u - magic.u
    else:
        code = (word.u - ((lowest - 1) << 23) + (1u << (shift - 1)) - 1 + (word.u >> shift & 1)) >> shift
    if code > 127:
        if nan_if_large:
            return NAN_CODE
        code = 127
    return <uint8_t>(code | sign) if code else 0


cdef void encode(const vec_table *table, const char *halves, uint8_t *codes, long n, uint8_t metadata,
                 bint nan_if_large) noexcept nogil:
    cdef float[CHUNK] wide
    cdef float scale = ldexpf(1, -scale_of(metadata))   # exact, as is every fp16 times it
    cdef bint is_143 = metadata >> 7
    cdef long first, count, i
    for first in range(0, n, CHUNK):
        count = n - first if n - first < CHUNK else CHUNK
        table.convert[DT_F32][DT_F16](count, wide, halves + first * 2, NULL, NULL, NULL)
        for i in range(count):
            codes[first + i] = to_code(wide[i] * scale, is_143, nan_if_large)


cdef void decode(const vec_table *table, const uint8_t *codes, char *halves, long n, uint8_t metadata,
                 vec_fp *fp) noexcept nogil:
    cdef float[CHUNK] wide
    cdef float scale = ldexpf(1, scale_of(metadata))
    cdef const float *values = VALUES[metadata >> 7]
    cdef long first, count, i
    for first in range(0, n, CHUNK):
        count = n - first if n - first < CHUNK else CHUNK
        for i in range(count):
            wide[i] = values[codes[first + i]] * scale
        table.convert[DT_F16][DT_F32](count, halves + first * 2, wide, NULL, NULL, fp)


def convert_to_quarter(halves, int metadata, bint nan_if_large=False):
    """Codes of an fp16 array, as the cast vertex makes them."""
    halves = np.ascontiguousarray(halves, np.float16)
    codes = np.empty(halves.shape, np.uint8)
    encode(vec_select(NULL), <const char *><size_t>halves.ctypes.data, <uint8_t *><size_t>codes.ctypes.data,
           halves.size, <uint8_t>metadata, nan_if_large)
    return codes


def convert_from_quarter(codes, int metadata):
    """The fp16 values of an array of codes, as the cast vertex makes them."""
    codes = np.ascontiguousarray(codes, np.uint8)
    halves = np.empty(codes.shape, np.float16)
    decode(vec_select(NULL), <const uint8_t *><size_t>codes.ctypes.data, <char *><size_t>halves.ctypes.data, codes.size,
           <uint8_t>metadata, NULL)
    return halves


cdef void *prepare_quarter(const Group *g) noexcept:
    return <void *>vec_select(NULL)


cdef void run_quarter_cast(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef long row
    cdef char *source
    cdef char *result
    cdef uint8_t metadata
    for row in range(lo, hi):
        begin_row(s, row)
        source, result = operand(g, 2, row, arena, stride), operand(g, 4, row, arena, stride)
        metadata = (<uint8_t *>operand(g, 3, row, arena, stride))[0]
        if g.params[0]:
            encode(table, source, <uint8_t *>result, cell(g, 1, row), metadata, g.params[1] != 0)
        else:
            decode(table, <uint8_t *>source, result, cell(g, 1, row), metadata, &s.fp)


cdef inline float to_odd(double x, double rest) noexcept nogil:
    """x + rest in fp32, towards zero, the last bit set if that is not exact: a second rounding then is the only one.

    `rest` is smaller than the last bit of x; without branches, so that the compiler makes vectors of it.
    """
    cdef Double word
    cdef uint64_t lost, away
    word.f = x
    # First to the bits of a double, in the same way; a NaN (of an infinite sum) counts for nothing.
    lost = ((rest > 0) | (rest < 0)) & ~word.u & 1
    away = (rest > 0) == (x > 0)
    word.u += lost * (2 * away - 1)
    lost = word.u & 0x1fffffff   # the 29 bits more than fp32 has
    word.u = (word.u - lost) | (<uint64_t>(lost != 0) << 29)
    return <float>word.f


cdef void accumulate(const vec_table *table, const double *block, char *sums, float *wide, long n, double scale,
                     bint is_first, vec_fp *fp) noexcept nogil:
    """sums += block * scale in fp16, rounded once."""
    cdef long i
    cdef double a, b, total, back, rest
    if is_first:
        for i in range(n):
            wide[i] = to_odd(block[i] * scale + 0.0, 0)   # no minus zero
    else:
        table.convert[DT_F32][DT_F16](n, wide, sums, NULL, NULL, NULL)
        for i in range(n):
            a, b = wide[i], block[i] * scale
            total = a + b
            back = total - a
            rest = (a - (total - back)) + (b - back)   # what the sum lost: Knuth's two-sum
            wide[i] = to_odd(total, rest)
    table.convert[DT_F16][DT_F32](n, sums, wide, NULL, NULL, fp)


cdef void places(const Group *g, long row, int nd, long outs, long taps, int *index) noexcept nogil:
    """For each output and tap the input's place in its block, -1 where there is none."""
    cdef const int64_t *p
    cdef long i, t, o_left, t_left, o, t_here, extent, pos, reach, unit
    cdef int d
    for i in range(outs):
        for t in range(taps):
            pos, unit, o_left, t_left = 0, 1, i, t
            for d in range(nd - 1, -1, -1):
                p = g.params + 1 + 4 * d
                extent, o, t_here = cell(g, 5 + 4 * d, row), cell(g, 6 + 4 * d, row), cell(g, 7 + 4 * d, row)
                reach = t_left % t_here
                reach = cell(g, 8 + 4 * d, row) + o_left % o * p[0] + (t_here - 1 - reach if p[3] else reach) * p[1]
                o_left, t_left = o_left // o, t_left // t_here
                if reach < 0 or reach % p[2] != 0 or reach // p[2] >= extent:
                    pos = -1
                    break
                pos += reach // p[2] * unit
                unit *= extent
            index[i * taps + t] = <int>pos


cdef void run_quarter_product(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef const vec_table *table = <const vec_table *>g.aux
    cdef int nd = <int>g.params[0], d, at = 5 + 4 * nd
    cdef long row, groups, batch, ic, oc, outs, taps, ins, k, rows, per, first, count, c, i, t, _g
    cdef bint direct
    cdef const uint8_t *x
    cdef const uint8_t *w
    cdef const uint8_t *line
    cdef uint8_t *q
    cdef char *y
    cdef char *work
    cdef const float *x_values
    cdef const float *w_values
    cdef double scale
    cdef double *weights
    cdef double *panel
    cdef double *block
    cdef float *wide
    cdef int *index
    cdef uint8_t *codes
    cdef uint8_t x_meta, w_meta
    for row in range(lo, hi):
        begin_row(s, row)
        groups, batch, ic, oc = cell(g, 1, row), cell(g, 2, row), cell(g, 3, row), cell(g, 4, row)
        outs = taps = ins = 1
        direct = True
        for d in range(nd):
            ins *= cell(g, 5 + 4 * d, row)
            outs *= cell(g, 6 + 4 * d, row)
            taps *= cell(g, 7 + 4 * d, row)
            # With one tap, stride 1 and no border the input block is the panel already.
            direct = direct and cell(g, 7 + 4 * d, row) == 1 and cell(g, 5 + 4 * d, row) == cell(g, 6 + 4 * d, row) \
                and cell(g, 8 + 4 * d, row) == 0 and g.params[1 + 4 * d] == 1 and g.params[3 + 4 * d] == 1
        k, rows = taps * ic, batch * outs
        x, w = <uint8_t *>operand(g, at, row, arena, stride), <uint8_t *>operand(g, at + 1, row, arena, stride)
        y = operand(g, at + 2, row, arena, stride)
        x_meta = (<uint8_t *>operand(g, at + 3, row, arena, stride))[0]
        w_meta = (<uint8_t *>operand(g, at + 4, row, arena, stride))[0]
        if groups * rows * oc == 0:
            continue
        if k == 0:
            memset(y, 0, groups * rows * oc * 2)
            continue
        x_values, w_values = VALUES[x_meta >> 7], VALUES[w_meta >> 7]
        scale = ldexp(1, scale_of(x_meta) + scale_of(w_meta))
        per = PANEL // k if PANEL // k > 1 else 1
        per = per if per < rows else rows
        work = scratch(s, <size_t>(k * oc + per * k + per * oc) * 8 + per * oc * 4
                       + (0 if direct else outs * taps * 4 + per * k) + 64)
        if work == NULL:
            return
        weights = <double *>work
        panel = weights + k * oc
        block = panel + per * k
        wide = <float *>(block + per * oc)
        index = <int *>(wide + per * oc)
        codes = <uint8_t *>(index + outs * taps)
        if not direct:
            places(g, row, nd, outs, taps, index)
        for _g in range(groups):
            for i in range(k * oc):
                weights[i] = w_values[w[i]]
            first = 0
            while first < rows:
                count = per if rows - first > per else rows - first
                line = x + first * k
                if not direct:
                    q = codes
                    for i in range(first, first + count):
                        for t in range(taps):
                            c = index[i % outs * taps + t]
                            if c < 0:
                                memset(q, 0, ic)
                            else:
                                memcpy(q, x + (i // outs * ins + c) * ic, ic)
                            q += ic
                    line = codes
                for i in range(count * k):
                    panel[i] = x_values[line[i]]
                for t in range(taps):
                    for c in range(0, ic, BLOCK):
                        table.gemm_f64(panel + t * ic + c, k, weights + (t * ic + c) * oc, oc, block, <int>count,
                                       <int>oc, <int>(ic - c if ic - c < BLOCK else BLOCK), False, False, False, NULL)
                        accumulate(table, block, y + first * oc * 2, wide, count * oc, scale, t == 0 and c == 0,
                                   &s.fp)
                first += count
            x += batch * ins * ic
            w += k * oc
            y += rows * oc * 2
