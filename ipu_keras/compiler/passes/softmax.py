"""Softmax divides a row of exponentials by their sum: the chip inverts the sum once and multiplies.

Source: hardware.md 3.9 (poplibs popnn/NonLinearity.cpp: exp, row sum, invert, multiply). Two roundings differ from a
division's one by at most one unit in the last place.
"""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.graph.ir import Node, Value

_CARRIERS = {"broadcast", "reshape", "convert"}


def rewrite_softmax(b: Builder, node: Node) -> Value | None:
    """exp(x) / broadcast(sum(exp(x))) becomes exp(x) * broadcast(1 / sum(exp(x)))."""
    above, below = node.inputs
    out = node.out
    if out.dtype not in ("f16", "f32") or _source(above).node.op != "exponential" or below.node.op != "broadcast":
        return None
    total = _source(below)
    if total.node.op != "reduce" or total.size * 2 > out.size or _source(total.node.inputs[0]) is not _source(above):
        return None
    region = total.node.attrs["region"]
    if [n.op for n in region.nodes] != ["add"]:
        return None
    few = below.node.inputs[0]
    ones = b.constant(np.ones(few.shape), few.dtype, node.where)
    inverse = b.add("divide", [ones, few], few.shape, few.dtype, {}, node.where)
    spread = b.add("broadcast", [inverse], out.shape, out.dtype, below.node.attrs, node.where)
    return b.add("multiply", [above, spread], out.shape, out.dtype, {}, node.where)


def _source(value: Value) -> Value:
    """A value before it was only reshaped, broadcast or converted."""
    while value.node.op in _CARRIERS:
        value = value.node.inputs[0]
    return value
