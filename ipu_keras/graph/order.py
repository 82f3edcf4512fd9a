"""The total order of floating-point numbers, as an order of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.graph.ir import DTYPES, Graph, Node, Value


def total_order_key(graph: Graph, value: Value) -> Value:
    """Integers that compare as floats do in the total order: -NaN, -infinity, ..., -0, +0, ..., infinity, NaN."""
    if value.dtype not in ("f32", "f16"):
        return value
    dtype, bits = ("s32", 31) if value.dtype == "f32" else ("s16", 15)

    def add(op: str, *inputs: Value, **attrs: Any) -> Value:
        shape = value.shape if inputs else ()
        graph.nodes.append(Node(op, inputs, [(shape, dtype)], attrs))
        return graph.nodes[-1].out

    def number(n: int) -> Value:
        scalar = add("constant", value=np.array(n, DTYPES[dtype]))
        return add("broadcast", scalar, dims=()) if value.shape else scalar

    raw = add("bitcast-convert", value)
    # Negative floats grow as their bits shrink: flip all but the sign.
    flip = add("and", add("shift-right-arithmetic", raw, number(bits)), number(2**bits - 1))
    return add("xor", raw, flip)
