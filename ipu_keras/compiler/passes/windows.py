"""Reductions, windows and selections that no vertex has, written with slices and the operations of their regions.

A vertex reduces windows by one operation from a constant start value. Any other region is done on whole arrays: one
slice of the padded operand for each tap of the window, combined in the order of the taps.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.choices import scalar_body, whole_arrays
from ipu_keras.compiler.passes.ops import Ops, lowest
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value

LONG = 32
"""Longer windows, as those of running sums, are put together from windows of 1, 2, 4... elements."""

MOST_TAPS = 512
"""Windows of more elements stay as they are: each tap is a slice."""


def _neutral(op: str, dtype: str) -> Any:
    """The value that `op` does not let show."""
    if op == "maximum":
        return lowest(dtype)
    if op in ("add", "or", "xor"):
        return 0
    if op == "multiply" or dtype == "pred":
        return 1
    if op == "and":
        return np.array(-1).astype(DTYPES[dtype])
    return np.inf if DTYPES[dtype].kind == "f" else np.iinfo(DTYPES[dtype]).max


def _taps(ops: Ops, x: Value, fill: Value, window: Any, outs: tuple[int, ...]) -> list[Value]:
    """For each tap of the windows, in their order, what all windows see there: an array of shape `outs`."""
    padded = tuple((low, high, base - 1) for _, _, low, high, _, base, _ in window)
    sizes = [n + low + high + max(0, n - 1) * inner for n, (low, high, inner) in zip(x.shape, padded, strict=True)]
    x = ops.b.add("pad", [x, fill], tuple(sizes), x.dtype, {"padding": padded}, ops.where)
    found = []
    for at in itertools.product(*(range(w[0]) for w in window)):
        slices = []
        for tap, n, (count, stride, _, _, apart, _, turned) in zip(at, outs, window, strict=True):
            first = (count - 1 - tap if turned else tap) * apart
            slices.append((first, first + (n - 1) * stride + 1, stride))
        found.append(ops.b.add("slice", [x], outs, x.dtype, {"slices": tuple(slices)}, ops.where))
    return found


def _number(window: Any) -> int:
    return math.prod(w[0] for w in window)


def rewrite_reduce_window(b: Builder, node: Node) -> list[Value] | Value | None:
    """Any region, several operands, start values known only at run time, windows read backwards."""
    from ipu_keras.compiler.lower.reduce import region_op

    region: Graph = node.attrs["region"]
    n, window, ops = len(node.results), node.attrs["window"], Ops(b, node.where)
    op = region_op(region) if n == 1 else None
    if op is not None:
        return _one_operation(b, node, op)
    outs = node.results[0].shape
    if not scalar_body(region) or _number(window) > MOST_TAPS or 0 in outs:
        return None
    starts = node.inputs[n:]
    parts = [_taps(ops, x, start, window, outs) for x, start in zip(node.inputs[:n], starts, strict=True)]
    state = [ops.spread(start, outs, ()) for start in starts]
    for seen in zip(*parts, strict=True):
        state = whole_arrays(b, region, [*state, *seen], outs, node.where)
    return state


def _one_operation(b: Builder, node: Node, op: str) -> Value | None:
    """A window that the vertex knows, in the form in which it knows it."""
    (x, start), window, ops, out = node.inputs, node.attrs["window"], Ops(b, node.where), node.out

    def again(start: Value, window: Any, shape: tuple[int, ...]) -> Value:
        return b.add("reduce-window", [x, start], shape, x.dtype, {**node.attrs, "window": tuple(window)}, node.where)

    if any(w[6] for w in window):  # the operations have no order
        return again(start, [(*w[:6], False) for w in window], out.shape)
    if start.node.op != "constant":
        inside = again(ops.const(_neutral(op, x.dtype), x.dtype), window, out.shape)
        return ops.op(op, ops.spread(start, out.shape, ()), inside)
    for d, w in enumerate(window):
        if w[0] > LONG and out.size:
            line = _doubled(ops, x, d, w, out.shape[d], op)
            rest = tuple((1, 1, 0, 0, 1, 1, False) if i == d else v for i, v in enumerate(window))
            return b.add("reduce-window", [line, start], out.shape, x.dtype, {**node.attrs, "window": rest}, node.where)
    return None


def _doubled(ops: Ops, x: Value, d: int, window: Any, count: int, op: str) -> Value:
    """Windows along one dimension; the error grows with the logarithm of their length, not with it."""
    taps, stride, low, high, apart, base, _ = window
    padding = tuple((low, high, base - 1) if i == d else (0, 0, 0) for i in range(len(x.shape)))
    n = x.shape[d] + low + high + max(0, x.shape[d] - 1) * (base - 1)
    shape = (*x.shape[:d], n, *x.shape[d + 1 :])
    neutral = ops.const(_neutral(op, x.dtype), x.dtype)
    piece = ops.b.add("pad", [x, neutral], shape, x.dtype, {"padding": padding}, ops.where)
    span, have, done = (count - 1) * stride + 1, 1, 0
    total: Value | None = None
    while True:
        if taps & have:
            seen = ops.slice(piece, d, done * apart, done * apart + span)
            total = seen if total is None else ops.op(op, total, seen)
            done += have
        if done == taps:
            break
        n -= have * apart
        piece = ops.op(op, ops.slice(piece, d, 0, n), ops.slice(piece, d, have * apart, have * apart + n))
        have *= 2
    assert total is not None
    slices = tuple((0, m, stride if i == d else 1) for i, m in enumerate(total.shape))
    return ops.b.add("slice", [total], (*shape[:d], count, *shape[d + 1 :]), x.dtype, {"slices": slices}, ops.where)


def rewrite_select_and_scatter(b: Builder, node: Node) -> Value | None:
    """Any regions: the place that each window selects, tap by tap, then a scatter of the source to those places."""
    from ipu_keras.compiler.lower.window import check_select_and_scatter

    x, source, start = node.inputs
    (select, scatter), window = node.attrs["regions"], node.attrs["window"]
    if check_select_and_scatter(node) is None or _number(window) > MOST_TAPS or not scalar_body(select):
        return None
    ops, outs = Ops(b, node.where), source.shape
    filled = ops.spread(start, x.shape, ())
    if source.size == 0 or x.size == 0:
        return filled
    numbers = ops.reshape(ops.line((x.size,), 0), *x.shape)
    values = _taps(ops, x, ops.const(0, x.dtype), window, outs)
    places = _taps(ops, numbers, ops.const(-1, "s32"), window, outs)
    value, place = values[0], places[0]
    for other, there in zip(values[1:], places[1:], strict=True):
        (keep,) = whole_arrays(b, select, [value, other], outs, node.where)
        # Padding is never selected, and nothing is kept before the first element.
        keep = ops.op("or", ops.op("and", keep, ops.compare(place, "ge", 0)), ops.compare(there, "lt", 0))
        value, place = ops.select(keep, value, other), ops.select(keep, place, there)
    attrs = {
        "update_window_dims": (), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1, "input_batching_dims": (), "scatter_indices_batching_dims": (), "slice_sizes": (),
        "region": scatter,
    }  # fmt: skip
    inputs = [ops.reshape(filled, x.size), ops.reshape(place, source.size), ops.reshape(source, source.size)]
    return ops.reshape(b.add("scatter", inputs, (x.size,), x.dtype, attrs, node.where), *x.shape)


def rewrite_reduce(b: Builder, node: Node) -> list[Value] | None:
    """A region from start values known only at run time: neighbours meet until one is left, then the start values."""
    from ipu_keras.compiler.lower.reduce import region_op

    region: Graph = node.attrs["region"]
    n, dims, ops = len(node.results), node.attrs["dims"], Ops(b, node.where)
    starts = node.inputs[n:]
    if n == 1 and region_op(region) is not None:
        return None
    if all(s.node.op == "constant" for s in starts) or not scalar_body(region):
        return None
    shape = node.inputs[0].shape
    kept = tuple(d for d in range(len(shape)) if d not in dims)
    outs = tuple(shape[d] for d in kept)
    left = math.prod(shape[d] for d in dims)
    state = [ops.spread(start, outs, ()) if outs else start for start in starts]
    if left == 0:
        return state
    lines = [ops.reshape(ops.transpose(x, (*dims, *kept)), left, *outs) for x in node.inputs[:n]]
    while left > 1:
        half = left // 2
        rest = tuple((0, d, 1) for d in outs)
        pairs = [
            b.add("slice", [x], (half, *outs), x.dtype, {"slices": ((first, 2 * half, 2), *rest)}, node.where)
            for first in (0, 1)
            for x in lines
        ]
        met = whole_arrays(b, region, pairs, (half, *outs), node.where)
        if left % 2:
            met = [ops.concat([m, ops.slice(x, 0, left - 1, left)], 0) for m, x in zip(met, lines, strict=True)]
        lines, left = met, half + left % 2
    return whole_arrays(b, region, [*state, *(ops.reshape(x, *outs) for x in lines)], outs, node.where)
