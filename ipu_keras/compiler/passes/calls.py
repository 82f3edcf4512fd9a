"""Custom calls that XLA's front ends emit and its CPU compiler expands: each is written with other operations."""

from __future__ import annotations

import json

import numpy as np

from ipu_keras.compiler.parallel.spec import ACCUMULATE, CHECKPOINT, DEQUEUE, ENQUEUE, PIPELINE
from ipu_keras.compiler.passes.builder import Builder, Rule
from ipu_keras.compiler.passes.linear_algebra import rewrite_eigh, rewrite_lu, rewrite_qr, rewrite_reflectors
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.compiler.passes.quarters import QUARTER_CALLS
from ipu_keras.compiler.passes.sparse import SPARSE_DOT, rewrite_sparse_dot
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.graph.order import total_order_key


def rewrite_topk(b: Builder, node: Node) -> list[Value] | None:
    """The k largest of each line and their places: a stable sort, cut."""
    ops, x = Ops(b, node.where), node.inputs[0]
    values, places = node.results
    dim, k = len(x.shape) - 1, values.shape[-1]
    lines = [x, ops.line(x.shape, dim, places.dtype)]
    region = Graph("greater")
    region.params = [Node("parameter", [], [((), v.dtype)]).out for v in lines for _ in range(2)]
    largest = node.attrs.get("largest", True)
    keys = [total_order_key(region, v) for v in region.params[:2]]  # as XLA's TopK compares
    test = Node("compare", keys, [((), "pred")], {"direction": "gt" if largest else "lt"})
    region.nodes.append(test)
    region.outputs = [test.out]
    types = [(v.shape, v.dtype) for v in lines]
    made = b.add_node(Node("sort", lines, types, {"dims": (dim,), "region": region}, node.where))
    return [ops.slice(v, dim, 0, k) for v in made]


def _same(b: Builder, node: Node) -> Value:
    return node.inputs[0]


def rewrite_accumulate(b: Builder, node: Node) -> list[Value]:
    """What is summed over micro-batches: an operation of the compiler's own (`compiler.parallel`)."""
    types = [(v.shape, v.dtype) for v in node.results]
    return b.add_node(Node("accumulate", node.inputs, types, {"config": node.attrs["config"]}, node.where, node.name))


def rewrite_checkpoint(b: Builder, node: Node) -> list[Value]:
    """What a backward stage shall not work out again, the same."""
    return b.add_node(Node("checkpoint", node.inputs, [(node.out.shape, node.out.dtype)], {}, node.where, node.name))


def rewrite_queue(b: Builder, node: Node) -> list[Value]:
    """One tensor of a queue's element that is taken, or put in."""
    config = json.loads(node.attrs["config"])
    if node.attrs["target"] == DEQUEUE:
        types = [(v.shape, v.dtype) for v in node.results]
        return b.add_node(Node("dequeue", [], types, config, node.where, node.name))
    b.add_node(Node("enqueue", node.inputs, [], config, node.where, node.name))
    return [_token(b, node)]


def _token(b: Builder, node: Node) -> Value:
    """What the front end adds to a variable, so that TensorFlow keeps the call."""
    return b.constant(0, node.results[0].dtype, node.where)


def _gone(b: Builder, node: Node) -> list[Value]:
    """Read by the front end already."""
    return [_token(b, node)]


CALLS: dict[str, Rule] = {
    PIPELINE: _gone,
    DEQUEUE: rewrite_queue,
    ENQUEUE: rewrite_queue,
    ACCUMULATE: rewrite_accumulate,
    CHECKPOINT: rewrite_checkpoint,
    # Hints for a compiler that spreads arrays over devices: on one device they say nothing.
    "Sharding": _same,
    "SPMDFullToShardShape": _same,
    "SPMDShardToFullShape": _same,
    "annotate_device_placement": _same,
    # A bound of a dynamic size; what is still dynamic is refused before.
    "SetBound": _same,
    "TopK": rewrite_topk,
    "Qr": rewrite_qr,
    "ProductOfElementaryHouseholderReflectors": rewrite_reflectors,
    "Eigh": rewrite_eigh,
    "LuDecomposition": rewrite_lu,
    **QUARTER_CALLS,
    SPARSE_DOT: rewrite_sparse_dot,
}
"""By the call's target."""


def rewrite_call(b: Builder, node: Node) -> list[Value] | Value | None:
    """A custom call whose target is known."""
    rule = CALLS.get(node.attrs["target"])
    return rule(b, node) if rule is not None else None


def rewrite_dimension_size(b: Builder, node: Node) -> Value:
    """The size of a dimension, which is static."""
    (dim,) = node.attrs["dims"]
    return b.constant(np.int32(node.inputs[0].shape[dim]), node.out.dtype, node.where)
