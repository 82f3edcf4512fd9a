"""Which opcodes are element-wise, and their value on arrays by the very kernels that the tiles use."""

from __future__ import annotations

from typing import Any

import numpy as np

UNARY = (
    "abs ceil cbrt cosine count-leading-zeros erf exponential exponential-minus-one floor is-finite log log-plus-one "
    "logistic negate not popcnt round-nearest-afz round-nearest-even rsqrt sign sine sqrt tan tanh"
).split()
BINARY = (
    "add and atan2 divide maximum minimum multiply or power remainder shift-left shift-right-arithmetic "
    "shift-right-logical subtract xor"
).split()
OTHER = ["compare", "select", "clamp", "convert", "bitcast-convert"]
ELEMENTWISE = frozenset([*UNARY, *BINARY, *OTHER])
"""Opcodes that compute each element of the result from the elements at the same place."""


def kernel_op(op: str, attrs: dict[str, Any]) -> str:
    """The kernel's name for an HLO opcode: a comparison carries its direction."""
    return f"compare-{attrs['direction']}" if op == "compare" else op


def evaluate(op: str, arrays: list[np.ndarray], dtype: str, attrs: dict[str, Any]) -> np.ndarray:
    """Compute an element-wise operation on equal-shaped arrays with the tiles' kernels.

    Args:
        op: HLO opcode.
        arrays: the operands.
        dtype: HLO dtype of the result.
        attrs: the node's attributes.

    Returns:
        The result, of the operands' shape.
    """
    from ipu_runtime.evaluate import evaluate as run

    return run(kernel_op(op, attrs), arrays, dtype)
