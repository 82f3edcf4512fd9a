"""Constant folding, sharing of equal nodes, dead code and algebraic clean-up, in one sweep."""

from __future__ import annotations

import math

import numpy as np

from ipu_keras.compiler.passes.builder import Builder, Rule, const_of, rebuild
from ipu_keras.compiler.passes.softmax import rewrite_softmax
from ipu_keras.graph.elementwise import ELEMENTWISE, evaluate
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value

FOLD_LIMIT = 4096
"""Constants of up to this many elements are folded; larger ones would only move work to the compiler."""


def _fold(b: Builder, node: Node) -> Value | None:
    """An element-wise node of constants, computed by the kernels that the tiles use."""
    arrays = [const_of(v) for v in node.inputs]
    if any(a is None for a in arrays):
        return None
    got = [a for a in arrays if a is not None]
    scalars = all(a.shape == () for a in got)  # one number may be folded, however often it is broadcast
    if not scalars:
        if node.out.size > FOLD_LIMIT:
            return None
        got = [np.broadcast_to(a, node.out.shape) if a.shape == () else a for a in got]
    found = evaluate(node.op, got, node.out.dtype, node.attrs)
    if node.out.dtype == "f16" and np.isinf(found).any() and all(np.isfinite(a).all() for a in got):
        return None  # what an overflow becomes is the program's choice
    value = b.constant(found, node.out.dtype, node.where)
    if not scalars or node.out.shape == ():
        return value
    return b.add("broadcast", [value], node.out.shape, node.out.dtype, {"dims": ()}, node.where)


def _is(value: Value, number: float) -> bool:
    c = const_of(value)
    return c is not None and c.size > 0 and bool((c == number).all())


def _add(b: Builder, node: Node) -> Value | None:
    x, y = node.inputs
    # x + 0 keeps x for every x but -0.0, where XLA's own simplifier does the same.
    if _is(y, 0):
        return x
    return y if _is(x, 0) else None


def _subtract(b: Builder, node: Node) -> Value | None:
    return node.inputs[0] if _is(node.inputs[1], 0) else None


def _multiply(b: Builder, node: Node) -> Value | None:
    x, y = node.inputs
    if _is(y, 1):
        return x
    return y if _is(x, 1) else None


def _divide(b: Builder, node: Node) -> Value | None:
    return node.inputs[0] if _is(node.inputs[1], 1) else None


def _power(b: Builder, node: Node) -> Value | None:
    x, y = node.inputs
    if _is(y, 1):
        return x

    # As XLA's own simplifier does: a power costs a logarithm and an exponential.
    def times(a: Value, c: Value) -> Value:
        return b.add("multiply", [a, c], node.out.shape, node.out.dtype, {}, node.where)

    if _is(y, 2):
        return times(x, x)
    if _is(y, 3):
        return times(times(x, x), x)
    if _is(y, -1) and node.out.dtype in ("f32", "f16"):
        one = b.constant(1, node.out.dtype, node.where)
        ones = b.add("broadcast", [one], x.shape, x.dtype, {"dims": ()}, node.where) if x.shape else one
        return b.add("divide", [ones, x], node.out.shape, node.out.dtype, {}, node.where)
    return None


def _convert(b: Builder, node: Node) -> Value | None:
    return node.inputs[0] if node.inputs[0].dtype == node.out.dtype else None


def _reshape(b: Builder, node: Node) -> Value | None:
    (x,), shape = node.inputs, node.out.shape
    if x.shape == shape:
        return x
    source = x.node
    if source.op == "reshape":
        return b.add("reshape", [source.inputs[0]], shape, x.dtype, {}, node.where)
    if source.op == "constant" and x.size <= FOLD_LIMIT:
        return b.constant(source.attrs["value"].reshape(shape), x.dtype, node.where)
    if source.op == "broadcast":
        inner = source.inputs[0]
        if inner.shape == ():
            return b.add("broadcast", [inner], shape, x.dtype, {"dims": ()}, node.where)
        # Only dimensions of size 1 come and go: the broadcast can take the new shape at once.
        old_big = [d for d in range(len(x.shape)) if x.shape[d] != 1]
        new_big = [d for d in range(len(shape)) if shape[d] != 1]
        if [x.shape[d] for d in old_big] == [shape[d] for d in new_big]:
            where_now = dict(zip(old_big, new_big, strict=True))
            dims = source.attrs["dims"]
            if all(d in where_now for d in dims):
                new = tuple(where_now[d] for d in dims)
                return b.add("broadcast", [inner], shape, x.dtype, {"dims": new}, node.where)
    return None


def _broadcast(b: Builder, node: Node) -> Value | None:
    (x,), shape, dims = node.inputs, node.out.shape, node.attrs["dims"]
    if x.shape == shape and dims == tuple(range(len(shape))):
        return x
    if x.shape and any(d == 1 for d in x.shape):
        # Size-1 dimensions say nothing: drop them, so that equal broadcasts look equal.
        keep = [i for i, d in enumerate(x.shape) if d != 1]
        small = b.add("reshape", [x], tuple(x.shape[i] for i in keep), x.dtype, {}, node.where)
        return b.add("broadcast", [small], shape, x.dtype, {"dims": tuple(dims[i] for i in keep)}, node.where)
    if x.node.op == "broadcast":
        inner = x.node.attrs["dims"]
        return b.add(
            "broadcast", [x.node.inputs[0]], shape, x.dtype, {"dims": tuple(dims[d] for d in inner)}, node.where
        )
    if math.prod(shape) == math.prod(x.shape) and dims == tuple(sorted(dims)):
        return b.add("reshape", [x], shape, x.dtype, {}, node.where)
    return None


def _transpose(b: Builder, node: Node) -> Value | None:
    (x,), perm = node.inputs, node.attrs["dims"]
    if perm == tuple(range(len(perm))):
        return x
    big = [d for d in perm if x.shape[d] != 1]
    if big == sorted(big):  # only size-1 dimensions move
        return b.add("reshape", [x], node.out.shape, x.dtype, {}, node.where)
    if x.node.op == "transpose":
        inner = x.node.attrs["dims"]
        dims = tuple(inner[d] for d in perm)
        return b.add("transpose", [x.node.inputs[0]], node.out.shape, x.dtype, {"dims": dims}, node.where)
    if x.node.op == "broadcast":
        position = {d: i for i, d in enumerate(perm)}
        dims = tuple(position[d] for d in x.node.attrs["dims"])
        return b.add("broadcast", [x.node.inputs[0]], node.out.shape, x.dtype, {"dims": dims}, node.where)
    return None


def _slice(b: Builder, node: Node) -> Value | None:
    (x,) = node.inputs
    if all((s, e, t) == (0, d, 1) for (s, e, t), d in zip(node.attrs["slices"], x.shape, strict=True)):
        return x
    c = const_of(x)
    if c is not None and c.shape == x.shape and x.size <= FOLD_LIMIT:
        return b.constant(c[tuple(slice(s, e, t) for s, e, t in node.attrs["slices"])], x.dtype, node.where)
    if x.node.op == "broadcast" and x.node.inputs[0].shape == ():
        return b.add("broadcast", [x.node.inputs[0]], node.out.shape, x.dtype, {"dims": ()}, node.where)
    return None


def _concatenate(b: Builder, node: Node) -> Value | None:
    full = [v for v in node.inputs if v.size]
    if not full:
        return None
    if len(full) == 1:
        return full[0]
    arrays = [const_of(v) for v in full]
    if node.out.size <= FOLD_LIMIT and all(a is not None and a.shape == v.shape for a, v in zip(arrays, full)):
        joined = np.concatenate([a for a in arrays if a is not None], node.attrs["dims"][0])
        return b.constant(joined, node.out.dtype, node.where)
    if len(full) < len(node.inputs):
        return b.add("concatenate", full, node.out.shape, node.out.dtype, node.attrs, node.where)
    return None


def _pad(b: Builder, node: Node) -> Value | None:
    x, edge = node.inputs
    if x.size == 0:
        return b.add("broadcast", [edge], node.out.shape, x.dtype, {"dims": ()}, node.where)
    return x if all(p == (0, 0, 0) for p in node.attrs["padding"]) else None


def _reverse(b: Builder, node: Node) -> Value | None:
    (x,) = node.inputs
    dims = tuple(d for d in node.attrs["dims"] if x.shape[d] != 1)
    if not dims:
        return x
    if dims != node.attrs["dims"]:
        return b.add("reverse", [x], x.shape, x.dtype, {"dims": dims}, node.where)
    return None


def _reduce(b: Builder, node: Node) -> Value | None:
    """A reduction over dimensions of size 1 whose region is one operation is that operation with the start value."""
    if len(node.inputs) != 2:
        return None
    x, init = node.inputs
    region: Graph = node.attrs["region"]
    if any(x.shape[d] != 1 for d in node.attrs["dims"]) or len(region.nodes) != 1:
        return None
    (body,) = region.nodes
    if set(body.inputs) != set(region.params) or region.outputs != body.results:
        return None
    flat = b.add("reshape", [x], node.out.shape, x.dtype, {}, node.where)
    start = b.add("broadcast", [init], node.out.shape, x.dtype, {"dims": ()}, node.where)
    by_param = dict(zip(region.params, (start, flat), strict=True))
    return b.add(body.op, [by_param[v] for v in body.inputs], node.out.shape, x.dtype, body.attrs, node.where)


def _dot(b: Builder, node: Node) -> Value | None:
    """A transposed operand is read as it stands: only the dimension numbers change."""
    changed = False
    inputs = list(node.inputs)
    contract, batch = list(node.attrs["contract"]), list(node.attrs["batch"])
    free: list[list[int]] = []
    for side in (0, 1):
        x = inputs[side]
        dims = [d for d in range(len(x.shape)) if d not in contract[side] and d not in batch[side]]
        if x.node.op == "transpose":
            perm = x.node.attrs["dims"]
            new_free = [perm[d] for d in dims]
            if new_free == sorted(new_free):  # the result's order of free dimensions must stay
                inputs[side] = x.node.inputs[0]
                contract[side] = tuple(perm[d] for d in contract[side])
                batch[side] = tuple(perm[d] for d in batch[side])
                changed = True
        free.append(dims)
    if not changed:
        return None
    attrs = {"contract": tuple(contract), "batch": tuple(batch)}
    return b.add("dot", inputs, node.out.shape, node.out.dtype, attrs, node.where)


def _dynamic_slice(b: Builder, node: Node) -> Value | None:
    """A start that is known makes it a slice; XLA clamps it so that the slice stays inside."""
    x, *starts = node.inputs
    known = [const_of(v) for v in starts]
    if any(k is None or k.size != 1 for k in known):
        return None
    slices = []
    for n, size, k in zip(x.shape, node.attrs["sizes"], known, strict=True):
        assert k is not None
        first = min(max(int(k.reshape(())), 0), n - size)
        slices.append((first, first + size, 1))
    return b.add("slice", [x], node.out.shape, x.dtype, {"slices": tuple(slices)}, node.where)


def _empty(b: Builder, node: Node) -> Value | None:
    """An array with no elements needs no computing."""
    if node.out.size == 0 and node.op != "constant" and len(node.results) == 1:
        return b.constant(np.zeros(node.out.shape, DTYPES[node.out.dtype]), node.out.dtype, node.where)
    return None


RULES: dict[str, list[Rule]] = {
    "reshape": [_reshape],
    "broadcast": [_broadcast],
    "transpose": [_transpose],
    "slice": [_slice],
    "concatenate": [_concatenate],
    "pad": [_pad],
    "reverse": [_reverse],
    "reduce": [_reduce],
    "dot": [_dot],
    "convolution": [],
    "gather": [],
    "dynamic-slice": [_dynamic_slice],
    "reduce-window": [],
}
for _op in ELEMENTWISE:
    RULES[_op] = [_fold]
RULES["add"].append(_add)
RULES["subtract"].append(_subtract)
RULES["multiply"].append(_multiply)
RULES["divide"] += [_divide, rewrite_softmax]
RULES["power"].append(_power)
RULES["convert"].insert(0, _convert)
for _rules in RULES.values():
    _rules.insert(0, _empty)


def simplify(graph: Graph) -> Graph:
    """Fold, share, drop and clean up."""
    return rebuild(graph, RULES)
