"""Numbers of the dtypes and element-wise operations, as in `kernels/vec.h` and `kernels/vec_ops.h`."""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """An element type: XLA's name and the bytes that one element takes on the tile."""

    name: str
    itemsize: int


DTYPES = [
    DType("pred", 1),
    DType("s8", 1),
    DType("u8", 1),
    DType("s16", 2),
    DType("u16", 2),
    DType("s32", 4),
    DType("u32", 4),
    DType("s64", 8),
    DType("u64", 8),
    DType("f16", 2),
    DType("f32", 4),
]
DTYPE_NUMBER: dict[str, int] = {dtype.name: number for number, dtype in enumerate(DTYPES)}

# HLO's opcode names; `compare` is one operation for each direction. The number is the position.
_UNARY = """copy abs negate sign ceil floor round-nearest-afz round-nearest-even exponential exponential-minus-one log
    log-plus-one sqrt rsqrt cbrt sine cosine tan tanh logistic erf is-finite not popcnt count-leading-zeros""".split()
_BINARY = """add subtract multiply divide remainder maximum minimum power atan2 and or xor shift-left
    shift-right-arithmetic shift-right-logical compare-eq compare-ne compare-lt compare-le compare-gt
    compare-ge""".split()
_TERNARY = ["select", "clamp"]

OPS: dict[str, int] = {name: number for number, name in enumerate(_UNARY + _BINARY + _TERNARY)}
ARITY: dict[str, int] = {
    **dict.fromkeys(_UNARY, 1),
    **dict.fromkeys(_BINARY, 2),
    **dict.fromkeys(_TERNARY, 3),
}
PRED_RESULT = frozenset(name for name in OPS if name.startswith("compare-") or name == "is-finite")
GATHER = -1
"""Of a collective, in the place of an operation: each tile's value is one replica's (`codelets.collective_model`)."""

REDUCTIONS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
