"""Batch normalisation's three operations, written as XLA's own expander writes them."""

from __future__ import annotations

import math

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Node, Value


def _spread(ops: Ops, value: Value, like: Value, dim: int) -> Value:
    return ops.spread(value, like.shape, (dim,))


def rewrite_inference(b: Builder, node: Node) -> Value:
    """y = (x - mean) / sqrt(var + eps) * scale + offset."""
    ops, (x, scale, offset, mean, var), dim = Ops(b, node.where), node.inputs, node.attrs["feature"]
    inv = ops.op("rsqrt", ops.add(var, node.attrs["epsilon"]))
    normed = ops.mul(ops.sub(x, _spread(ops, mean, x, dim)), _spread(ops, inv, x, dim))
    return ops.add(ops.mul(normed, _spread(ops, scale, x, dim)), _spread(ops, offset, x, dim))


def rewrite_training(b: Builder, node: Node) -> list[Value]:
    """The same with the batch's own mean and variance, which are results, too."""
    ops, (x, scale, offset), dim = Ops(b, node.where), node.inputs, node.attrs["feature"]
    others = tuple(d for d in range(len(x.shape)) if d != dim)
    count = math.prod(x.shape[d] for d in others)
    mean = ops.div(ops.reduce(x, others), count)
    centred = ops.sub(x, _spread(ops, mean, x, dim))
    var = ops.div(ops.reduce(ops.mul(centred, centred), others), count)
    inv = ops.op("rsqrt", ops.add(var, node.attrs["epsilon"]))
    normed = ops.mul(centred, _spread(ops, inv, x, dim))
    y = ops.add(ops.mul(normed, _spread(ops, scale, x, dim)), _spread(ops, offset, x, dim))
    return [y, mean, var]


def rewrite_gradient(b: Builder, node: Node) -> list[Value]:
    """Gradients to x, scale and offset.

    dx = scale / sqrt(var + eps) (dy - mean(dy) - (x - mean) mean(dy (x - mean)) / (var + eps))
    """
    ops, (x, scale, mean, var, dy), dim = Ops(b, node.where), node.inputs, node.attrs["feature"]
    others = tuple(d for d in range(len(x.shape)) if d != dim)
    count = math.prod(x.shape[d] for d in others)
    inv = ops.op("rsqrt", ops.add(var, node.attrs["epsilon"]))
    centred = ops.sub(x, _spread(ops, mean, x, dim))
    offset_gradient = ops.reduce(dy, others)
    product = ops.reduce(ops.mul(dy, centred), others)
    scale_gradient = ops.mul(product, inv)
    slope = ops.div(ops.mul(product, ops.mul(inv, inv)), count)
    inner = ops.sub(dy, _spread(ops, ops.div(offset_gradient, count), x, dim))
    inner = ops.sub(inner, ops.mul(centred, _spread(ops, slope, x, dim)))
    return [ops.mul(_spread(ops, ops.mul(scale, inv), x, dim), inner), scale_gradient, offset_gradient]
