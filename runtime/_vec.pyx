"""Thin wrappers of the vector kernels, for tests and tools; engines cimport the C interface instead.

Arrays are C-contiguous NumPy arrays; `pred` is numpy.bool_ (one byte, 0 or 1).
"""
from libc.stdint cimport uint32_t, uint64_t

import numpy as np

from ipu_runtime.opcodes import ARITY, DTYPE_NUMBER, OPS, PRED_RESULT
from ipu_runtime.rounding import mode_bits

_NUMPY = {
    "pred": np.bool_, "s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s32": np.int32,
    "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32,
}


cdef const vec_table *_table(isa) except NULL:
    cdef const vec_table *table
    if isa is None:
        table = vec_select(NULL)
    else:
        name = isa.encode()
        table = vec_select(name)
    if table == NULL:
        raise ValueError(f"no kernels for instruction set {isa or 'named by IPU_RUNTIME_ISA'!r} on this CPU")
    return table


cdef const void *_address(array) except? NULL:
    return <const void *><size_t>array.ctypes.data


def isa_name(isa=None):
    """Name of the instruction set that `isa` selects (None: the environment's, else the best)."""
    return _table(isa).name.decode()


def isas():
    """Names of the instruction sets that this CPU can run."""
    return [name for name in ("baseline", "avx2", "avx512") if vec_select(name.encode()) != NULL]


def op_list():
    """(name, arity) of every operation, in the order of their numbers, as the C header has them."""
    return [(vec_op_name(i).decode(), vec_op_arity(i)) for i in range(VEC_OP_COUNT)]


def dtype_sizes():
    """Bytes per element of every dtype, in the order of their numbers, as the C header has them."""
    return [vec_dtype_size(i) for i in range(DT_COUNT)]


def supported(op, dtype, isa=None):
    """Whether the operation has a kernel for the dtype."""
    return _table(isa).op[<int>OPS[op]][<int>DTYPE_NUMBER[dtype]] != NULL


def _operand(array, dtype, shape=None):
    array = np.ascontiguousarray(array)
    if array.dtype != _NUMPY[dtype]:
        raise TypeError(f"operand has dtype {array.dtype}, the kernel takes {dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"operand has shape {array.shape}, the first one {shape}")
    return array


cdef vec_fp _fp(stochastic, overflow, key) except *:
    cdef vec_fp fp
    fp.mode, fp.raised, fp.key, fp.drawn = mode_bits(stochastic, overflow, ()), 0, key, 0
    return fp


def apply(op, dtype, a, b=None, c=None, isa=None, out=None, stochastic=False, overflow="inf", key=0):
    """Result of one operation; `dtype` names the column of the table (for select that of b and c)."""
    cdef vec_fp fp = _fp(stochastic, overflow, key)
    cdef const vec_table *table = _table(isa)
    cdef int number = OPS[op], column = DTYPE_NUMBER[dtype]
    cdef vec_fn fn = table.op[number][column]
    if fn == NULL:
        raise TypeError(f"{op} has no kernel for {dtype}")
    given = sum(x is not None for x in (a, b, c))
    if given != ARITY[op]:
        raise TypeError(f"{op} takes {ARITY[op]} operands, {given} were given")
    a = _operand(a, "pred" if op == "select" else dtype)
    operands = [a] + [_operand(x, dtype, a.shape) for x in (b, c) if x is not None]
    if out is None:
        out = np.empty(a.shape, np.bool_ if op in PRED_RESULT else _NUMPY[dtype])
    cdef long n = a.size
    cdef const void *pa = _address(operands[0])
    cdef const void *pb = _address(operands[1]) if given > 1 else NULL
    cdef const void *pc = _address(operands[2]) if given > 2 else NULL
    cdef void *po = <void *>_address(out)
    with nogil:
        fn(n, po, pa, pb, pc, &fp)
    return out


def convert(to, source, a, isa=None, stochastic=False, overflow="inf", key=0):
    """The array converted from dtype `source` to dtype `to`."""
    cdef vec_fp fp = _fp(stochastic, overflow, key)
    cdef const vec_table *table = _table(isa)
    cdef vec_fn fn = table.convert[<int>DTYPE_NUMBER[to]][<int>DTYPE_NUMBER[source]]
    if fn == NULL:
        raise TypeError(f"no conversion from {source} to {to}")
    a = _operand(a, source)
    out = np.empty(a.shape, _NUMPY[to])
    fn(<long>a.size, <void *>_address(out), _address(a), NULL, NULL, &fp)
    return out


def reduce(op, dtype, init, x, isa=None):
    """op(init, x[0], x[1], ...) as an array scalar."""
    cdef const vec_table *table = _table(isa)
    cdef reduce_fn fn = table.reduce[<int>OPS[op]][<int>DTYPE_NUMBER[dtype]]
    if fn == NULL:
        raise TypeError(f"{op} has no reduction kernel for {dtype}")
    x = _operand(x, dtype)
    acc = np.array([init], _NUMPY[dtype])
    fn(<long>x.size, <void *>_address(acc), _address(x))
    return acc[0]


def philox(n_blocks, key, ctr_lo, ctr_hi, isa=None):
    """(n_blocks, 4) words of Philox 4x32-10."""
    cdef const vec_table *table = _table(isa)
    out = np.empty((n_blocks, 4), np.uint32)
    table.philox(<long>n_blocks, <uint64_t>key, <uint64_t>ctr_lo, <uint64_t>ctr_hi, <uint32_t *>_address(out))
    return out


def copy_elements(dst, src):
    """Copies one-dimensional `src` into `dst`, both with any stride, by copy_strided."""
    if dst.ndim != 1 or dst.shape != src.shape or dst.dtype != src.dtype:
        raise ValueError(f"copy of {src.shape} {src.dtype} to {dst.shape} {dst.dtype}")
    copy_strided(<long>src.size, <int>src.itemsize, <void *>_address(dst), <long>dst.strides[0],
                 _address(src), <long>src.strides[0])


def gemm(a, b, add_to=None, isa=None):
    """A B, or `add_to` + A B, of matrices of float32 or of float64 that are C-contiguous, transposes of such, or, but
    for the transposes, parts of longer rows."""
    cdef const vec_table *table = _table(isa)
    cdef bint ta = a.strides[1] != a.itemsize, tb = b.strides[1] != b.itemsize
    (m, k), n = a.shape, b.shape[1]
    out = np.empty((m, n), a.dtype) if add_to is None else np.array(add_to, a.dtype, order="C")
    lda, ldb = a.strides[1 if ta else 0] // a.itemsize, b.strides[1 if tb else 0] // b.itemsize
    if b.shape[0] != k or b.dtype != a.dtype or out.shape != (m, n):
        raise ValueError(f"{a.shape} {a.dtype} times {b.shape} {b.dtype}")
    if a.dtype == np.float32:
        table.gemm(<float *>_address(a), lda, <float *>_address(b), ldb, <float *>_address(out), m, n, k, ta, tb,
                   add_to is not None, NULL)
    elif a.dtype == np.float64:
        table.gemm_f64(<double *>_address(a), lda, <double *>_address(b), ldb, <double *>_address(out), m, n, k, ta,
                       tb, add_to is not None, NULL)
    else:
        raise ValueError(f"no product of {a.dtype}")
    return out
