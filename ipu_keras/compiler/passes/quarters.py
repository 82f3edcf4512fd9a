"""Custom calls on quarters, the chip's 8-bit floats, become operations of the compiler's own (`lower.quarter`)."""

from __future__ import annotations

import json
from typing import Any

from ipu_keras.compiler.passes.builder import Builder, Rule
from ipu_keras.graph.ir import Node, Value

TO_QUARTER, FROM_QUARTER = "ipu_keras.to_quarter", "ipu_keras.from_quarter"
"""Targets of the casts; operands: the values (f16, or u8 that holds quarters), the metadata (u8)."""

QUARTER_DOT, QUARTER_CONVOLUTION = "ipu_keras.quarter_dot", "ipu_keras.quarter_convolution"
"""Targets of the products; operands: both factors (u8), the metadata of each (u8); the result is f16.

A product's configuration is JSON: that of a convolution is ``window``, for each spatial dimension [size, stride,
padding before, padding after, dilation of the window]; the input is [batch, spatial.., channels], the weights are
[spatial.., channels, outputs]. A dot's operands are [m, k] and [k, n], or [groups, m, k] and [groups, k, n]."""


def _cast(b: Builder, node: Node) -> list[Value] | None:
    narrow = node.attrs["target"] == TO_QUARTER
    dtypes = ("f16", "u8") if narrow else ("u8", "f16")
    if len(node.inputs) != 2 or (node.inputs[0].dtype, node.results[0].dtype) != dtypes or not _metadata(node, 1):
        return None
    return _rewritten(b, node, "to-quarter" if narrow else "from-quarter", {})


def _dot(b: Builder, node: Node) -> list[Value] | None:
    if not _factors(node):
        return None
    grouped = len(node.inputs[0].shape) - 2
    batch = tuple(range(grouped))
    attrs = {"contract": ((grouped + 1,), (grouped,)), "batch": (batch, batch)}
    return _rewritten(b, node, "quarter-dot", attrs)


def _convolution(b: Builder, node: Node) -> list[Value] | None:
    if not _factors(node):
        return None
    window = json.loads(node.attrs["config"])["window"]
    nd, (x, w) = len(window), node.inputs[:2]
    attrs = {
        "lhs": (0, nd + 1, *range(1, nd + 1)),
        "rhs": (nd + 1, nd, *range(nd)),
        "out": (0, nd + 1, *range(1, nd + 1)),
        "groups": x.shape[-1] // w.shape[-2],
        "batch_groups": 1,
        "window": tuple((*map(int, each), 1, False) for each in window),
    }
    return _rewritten(b, node, "quarter-convolution", attrs)


def _rewritten(b: Builder, node: Node, op: str, attrs: dict[str, Any]) -> list[Value]:
    types = [(v.shape, v.dtype) for v in node.results]
    return b.add_node(Node(op, node.inputs, types, attrs, node.where, node.name))


def _metadata(node: Node, first: int) -> bool:
    return all(v.dtype == "u8" and v.shape == () for v in node.inputs[first:])


def _factors(node: Node) -> bool:
    """Whether a product's operands are what the front end writes; a call of anybody else is refused by its target."""
    codes = [(v.dtype, len(v.shape)) for v in node.inputs[:2]]
    rank = codes[0][1] if codes else 0
    return len(node.inputs) == 4 and codes == [("u8", rank)] * 2 and 2 <= rank <= 5 and _metadata(node, 2)


QUARTER_CALLS: dict[str, Rule] = {
    TO_QUARTER: _cast,
    FROM_QUARTER: _cast,
    QUARTER_DOT: _dot,
    QUARTER_CONVOLUTION: _convolution,
}
