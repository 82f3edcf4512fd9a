"""Rewrites operations that are shorthand for others, before anything else looks at the graph."""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.passes.builder import Builder, Rule, rebuild
from ipu_keras.compiler.passes.calls import rewrite_call, rewrite_dimension_size, rewrite_topk
from ipu_keras.compiler.passes.choices import rewrite_map, rewrite_switch
from ipu_keras.compiler.passes.fourier import rewrite_fft
from ipu_keras.compiler.passes.linear_algebra import rewrite_cholesky, rewrite_triangular_solve
from ipu_keras.compiler.passes.norm import rewrite_gradient, rewrite_inference, rewrite_training
from ipu_keras.compiler.passes.numbers import (
    rewrite_bitcast,
    rewrite_narrow_bits,
    rewrite_reduce_precision,
    rewrite_short_philox,
    rewrite_threefry,
)
from ipu_keras.compiler.passes.scatters import rewrite_scatter
from ipu_keras.compiler.passes.tables import rewrite_dynamic, rewrite_gather
from ipu_keras.compiler.passes.windows import rewrite_reduce, rewrite_reduce_window, rewrite_select_and_scatter
from ipu_keras.graph.ir import Graph, Node, Value


def _iota(b: Builder, node: Node) -> Value | None:
    """iota over several dimensions is one line of numbers, broadcast; the line is a constant."""
    shape, dtype = node.out.shape, node.out.dtype
    (dim,) = node.attrs["dims"] or (0,)
    line = b.constant(np.arange(shape[dim]), dtype, node.where)
    if len(shape) == 1:
        return line
    return b.add("broadcast", [line], shape, dtype, {"dims": (dim,)}, node.where)


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


def _one_dtype(b: Builder, node: Node) -> Value | None:
    """Operands of two dtypes become the result's first."""
    dtypes, out = {v.dtype for v in node.inputs}, node.out
    if len(dtypes) == 1:
        return None
    inputs = [
        v if v.dtype == out.dtype else b.add("convert", [v], v.shape, out.dtype, {}, node.where) for v in node.inputs
    ]
    return b.add(node.op, inputs, out.shape, out.dtype, node.attrs, node.where)


def _short_product(b: Builder, node: Node) -> Value | None:
    """A dot of two-byte integers or of truth values, in four bytes: the bits that the result keeps are the same."""
    source, out = node.inputs[0].dtype, node.out
    wide = "u32" if source == "u16" else "s32"
    if source not in ("s16", "u16", "pred") or out.dtype not in (source, "s32", "u32"):
        return None
    inputs = [b.add("convert", [v], v.shape, wide, {}, node.where) for v in node.inputs]
    product = b.add("dot", inputs, out.shape, wide, node.attrs, node.where)
    return b.add("convert", [product], out.shape, out.dtype, {}, node.where)


def _set_dimension_size(b: Builder, node: Node) -> Value | None:
    """A dimension set to the size that it has stays static."""
    x, size = node.inputs
    known = size.node.attrs["value"] if size.node.op == "constant" else None
    (dim,) = node.attrs["dims"]
    return x if known is not None and int(known) == x.shape[dim] else None


def _all_reduce(b: Builder, node: Node) -> list[Value] | None:
    """Several arrays that are reduced together are reduced one by one."""
    if len(node.inputs) == 1:
        return None
    attrs, where = node.attrs, node.where
    return [b.add("all-reduce", [v], v.shape, v.dtype, attrs, where) for v in node.inputs]


RULES: dict[str, list[Rule]] = {
    "all-reduce": [_all_reduce],
    "iota": [_iota],
    "batch-norm-inference": [rewrite_inference],
    "batch-norm-training": [rewrite_training],
    "batch-norm-grad": [rewrite_gradient],
    "bitcast-convert": [rewrite_bitcast],
    "cholesky": [rewrite_cholesky],
    "conditional": [rewrite_switch],
    "convolution": [_one_dtype],
    "custom-call": [rewrite_call],
    "dot": [_one_dtype, _short_product],
    "dynamic-slice": [rewrite_dynamic],
    "dynamic-update-slice": [rewrite_dynamic],
    "fft": [rewrite_fft],
    "get-dimension-size": [rewrite_dimension_size],
    "map": [rewrite_map],
    "reduce": [rewrite_reduce],
    "reduce-precision": [rewrite_reduce_precision],
    "reduce-window": [rewrite_reduce_window],
    "rng-bit-generator": [rewrite_narrow_bits, rewrite_threefry, rewrite_short_philox],
    "topk": [rewrite_topk],
    "triangular-solve": [rewrite_triangular_solve],
    "gather": [rewrite_gather],
    "scatter": [rewrite_scatter],
    "select-and-scatter": [rewrite_select_and_scatter],
    "set-dimension-size": [_set_dimension_size],
    "clamp": [_scalar_operands],
    "select": [_scalar_operands],
}


def expand(graph: Graph) -> Graph:
    """Rewrite, wherever they stand, the operations in `RULES`."""
    return rebuild(graph, RULES)
