"""One element-wise operation on whole arrays with the tiles' kernels, for constant folding and tests."""

from __future__ import annotations

import numpy as np

from ipu_runtime import _vec

_NAMES = {
    np.dtype(t): n
    for n, t in {
        "pred": "?", "s8": "i1", "u8": "u1", "s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4", "s64": "i8",
        "u64": "u8", "f16": "f2", "f32": "f4",
    }.items()
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def evaluate(op: str, arrays: list[np.ndarray], dtype: str) -> np.ndarray:
    """The result of a kernel.

    Args:
        op: kernel operation, or "convert" or "bitcast-convert".
        arrays: operands of one shape, of dtypes that a tile can hold.
        dtype: HLO dtype of the result.

    Returns:
        An array of the operands' shape.
    """
    shape = arrays[0].shape
    flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    source = _NAMES[flat[0].dtype]
    if op == "convert":
        result = _vec.convert(dtype, source, flat[0])
    elif op == "bitcast-convert":
        result = flat[0].view(_TYPES[dtype])
    else:
        column = _NAMES[flat[1].dtype] if op == "select" else source
        result = _vec.apply(op, column, *flat)
    return np.asarray(result).reshape(shape)
