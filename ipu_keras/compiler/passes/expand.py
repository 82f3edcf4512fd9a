"""Rewrites operations that are shorthand for others, before anything else looks at the graph."""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.passes.builder import Builder, Rule, rebuild
from ipu_keras.compiler.passes.tables import rewrite_gather, rewrite_scatter
from ipu_keras.graph.ir import Graph, Node, Value


def _iota(b: Builder, node: Node) -> Value | None:
    """iota over several dimensions is one line of numbers, broadcast; the line is a constant."""
    shape, dtype = node.out.shape, node.out.dtype
    (dim,) = node.attrs["dims"] or (0,)
    line = b.constant(np.arange(shape[dim]), dtype, node.where)
    if len(shape) == 1:
        return line
    return b.add("broadcast", [line], shape, dtype, {"dims": (dim,)}, node.where)


def _channelwise(b: Builder, value: Value, like: Value, dim: int) -> Value:
    return b.add("broadcast", [value], like.shape, value.dtype, {"dims": (dim,)}, "")


def _batch_norm_inference(b: Builder, node: Node) -> Value | None:
    """y = (x - mean) / sqrt(var + eps) * scale + offset, as XLA's own expander writes it."""
    x, scale, offset, mean, var = node.inputs
    dim, t, w = node.attrs["feature"], x.dtype, node.where
    eps = b.add("broadcast", [b.constant(node.attrs["epsilon"], t)], var.shape, t, {"dims": ()}, w)
    inv = b.add("rsqrt", [b.add("add", [var, eps], var.shape, t, {}, w)], var.shape, t, {}, w)
    centred = b.add("subtract", [x, _channelwise(b, mean, x, dim)], x.shape, t, {}, w)
    normed = b.add("multiply", [centred, _channelwise(b, inv, x, dim)], x.shape, t, {}, w)
    scaled = b.add("multiply", [normed, _channelwise(b, scale, x, dim)], x.shape, t, {}, w)
    return b.add("add", [scaled, _channelwise(b, offset, x, dim)], x.shape, t, {}, w)


def _scalar_operands(b: Builder, node: Node) -> Value | None:
    """clamp takes scalar bounds and select a scalar predicate: broadcast them, so that all operands have one shape."""
    if all(v.shape == node.out.shape for v in node.inputs):
        return None
    shape = node.out.shape
    inputs = [
        v if v.shape == shape else b.add("broadcast", [v], shape, v.dtype, {"dims": ()}, node.where)
        for v in node.inputs
    ]
    return b.add(node.op, inputs, shape, node.out.dtype, node.attrs, node.where)


def _set_dimension_size(b: Builder, node: Node) -> Value | None:
    """A dimension set to the size that it has stays static."""
    x, size = node.inputs
    known = size.node.attrs["value"] if size.node.op == "constant" else None
    (dim,) = node.attrs["dims"]
    return x if known is not None and int(known) == x.shape[dim] else None


RULES: dict[str, list[Rule]] = {
    "iota": [_iota],
    "batch-norm-inference": [_batch_norm_inference],
    "gather": [rewrite_gather],
    "scatter": [rewrite_scatter],
    "set-dimension-size": [_set_dimension_size],
    "clamp": [_scalar_operands],
    "select": [_scalar_operands],
}


def expand(graph: Graph) -> Graph:
    """Rewrite iota and batch-norm-inference."""
    return rebuild(graph, RULES)
