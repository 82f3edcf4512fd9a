"""Short names for adding nodes: what the rules that write one operation with others are written in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value

Number = Value | float | int


class Ops:
    """Adds nodes to a builder, all with one origin.

    Args:
        b: where nodes are added.
        where: which instruction they come from.
    """

    def __init__(self, b: Builder, where: str) -> None:
        self.b, self.where = b, where

    # ---- constants ----

    def const(self, array: Any, dtype: str = "f32") -> Value:
        """A constant array."""
        return self.b.constant(array, dtype, self.where)

    def full(self, number: Any, shape: Sequence[int], dtype: str = "f32") -> Value:
        """A number, everywhere."""
        scalar = self.const(number, dtype)
        return self.spread(scalar, tuple(shape), ()) if shape else scalar

    def line(self, shape: Sequence[int], dim: int, dtype: str = "s32") -> Value:
        """0, 1, 2... along a dimension."""
        return self.spread(self.const(np.arange(shape[dim]), dtype), tuple(shape), (dim,))

    # ---- element-wise; a number stands for an array of the other operand's shape ----

    def op(self, name: str, *values: Number, dtype: str | None = None, **attrs: Any) -> Value:
        """An element-wise operation."""
        arrays = [v for v in values if isinstance(v, Value)]
        like = arrays[-1] if name == "select" else arrays[0]
        inputs = [v if isinstance(v, Value) else self.full(v, like.shape, like.dtype) for v in values]
        return self.b.add(name, inputs, like.shape, dtype or like.dtype, attrs, self.where)

    def add(self, x: Value, y: Number) -> Value:
        """x + y."""
        return self.op("add", x, y)

    def sub(self, x: Number, y: Number) -> Value:
        """x - y."""
        return self.op("subtract", x, y)

    def mul(self, x: Value, y: Number) -> Value:
        """x * y."""
        return self.op("multiply", x, y)

    def div(self, x: Number, y: Number) -> Value:
        """x / y."""
        return self.op("divide", x, y)

    def compare(self, x: Value, direction: str, y: Number) -> Value:
        """Whether x < y, and so on."""
        return self.op("compare", x, y, dtype="pred", direction=direction)

    def select(self, choice: Value, x: Number, y: Number) -> Value:
        """x where `choice` holds, else y."""
        return self.op("select", choice, x, y)

    def convert(self, x: Value, dtype: str) -> Value:
        """x in another dtype."""
        return x if x.dtype == dtype else self.op("convert", x, dtype=dtype)

    def bits(self, x: Value, dtype: str) -> Value:
        """The bits of x, read as another dtype of the same width."""
        return x if x.dtype == dtype else self.b.add("bitcast-convert", [x], x.shape, dtype, {}, self.where)

    # ---- shapes ----

    def spread(self, x: Value, shape: tuple[int, ...], dims: Sequence[int]) -> Value:
        """x broadcast to a shape; its dimensions become `dims` of it."""
        return self.b.add("broadcast", [x], tuple(shape), x.dtype, {"dims": tuple(dims)}, self.where)

    def reshape(self, x: Value, *shape: int) -> Value:
        """The same elements in another shape."""
        return x if x.shape == shape else self.b.add("reshape", [x], shape, x.dtype, {}, self.where)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Dimension i of the result is dimension perm[i] of x."""
        shape = tuple(x.shape[d] for d in perm)
        return self.b.add("transpose", [x], shape, x.dtype, {"dims": tuple(perm)}, self.where)

    def slice(self, x: Value, dim: int, start: int, stop: int) -> Value:
        """Elements start to stop of a dimension."""
        dim %= len(x.shape)
        slices = tuple((start, stop, 1) if d == dim else (0, n, 1) for d, n in enumerate(x.shape))
        shape = tuple(stop - start if d == dim else n for d, n in enumerate(x.shape))
        return self.b.add("slice", [x], shape, x.dtype, {"slices": slices}, self.where)

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        """Arrays one after the other."""
        dim %= len(parts[0].shape)
        shape = list(parts[0].shape)
        shape[dim] = sum(p.shape[dim] for p in parts)
        return self.b.add("concatenate", list(parts), tuple(shape), parts[0].dtype, {"dims": (dim,)}, self.where)

    def reverse(self, x: Value, dim: int) -> Value:
        """A dimension backwards."""
        return self.b.add("reverse", [x], x.shape, x.dtype, {"dims": (dim % len(x.shape),)}, self.where)

    def at(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        """dynamic-slice."""
        return self.b.add("dynamic-slice", [x, *starts], tuple(sizes), x.dtype, {"sizes": tuple(sizes)}, self.where)

    def put(self, x: Value, part: Value, starts: Sequence[Value]) -> Value:
        """dynamic-update-slice."""
        return self.b.add("dynamic-update-slice", [x, part, *starts], x.shape, x.dtype, {}, self.where)

    # ---- sums and products ----

    def reduce(self, x: Value, dims: Sequence[int], op: str = "add", start: Any = 0) -> Value:
        """x reduced over dimensions by one operation."""
        dims = tuple(d % len(x.shape) for d in dims)
        shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
        attrs = {"dims": dims, "region": scalar_region(op, x.dtype)}
        return self.b.add("reduce", [x, self.const(start, x.dtype)], shape, x.dtype, attrs, self.where)

    def matmul(self, x: Value, y: Value) -> Value:
        """Rows [..., k] times [k, n]."""
        rows = math.prod(x.shape[:-1])
        attrs = {"contract": ((1,), (0,)), "batch": ((), ())}
        flat = self.reshape(x, rows, x.shape[-1])
        product = self.b.add("dot", [flat, y], (rows, y.shape[1]), x.dtype, attrs, self.where)
        return self.reshape(product, *x.shape[:-1], y.shape[1])

    # ---- loops ----

    def loop(self, count: int, states: Sequence[Value], step: Callable[..., Sequence[Value]]) -> list[Value]:
        """states = step(ops, i, *states), `count` times.

        Args:
            count: how often.
            states: before the first time.
            step: adds a turn's nodes with the Ops and the values that it gets: the number of the turn, a scalar of
                s32, and the states.
        """
        first = [self.const(0, "s32"), *states]
        body, cond = Builder("body", {}), Builder("condition", {})
        for b in (body, cond):
            b.graph.params = [Node("parameter", [], [(v.shape, v.dtype)]).out for v in first]
        inside, test = Ops(body, self.where), Ops(cond, self.where)
        turn, *rest = body.graph.params
        body.graph.outputs = [inside.add(turn, 1), *step(inside, turn, *rest)]
        cond.graph.outputs = [test.compare(cond.graph.params[0], "lt", count)]
        attrs = {"region": body.graph, "regions": (body.graph, cond.graph)}
        node = Node("while", first, [(v.shape, v.dtype) for v in first], attrs, self.where)
        return self.b.add_node(node)[1:]


def scalar_region(op: str, dtype: str) -> Graph:
    """A region of one operation on two scalars."""
    graph = Graph(op)
    graph.params = [Node("parameter", [], [((), dtype)]).out for _ in range(2)]
    node = Node(op, graph.params, [((), dtype)])
    graph.nodes, graph.outputs = [node], [node.out]
    return graph


def lowest(dtype: str) -> Any:
    """What every other number of a dtype is at least as large as."""
    kind = DTYPES[dtype]
    return -np.inf if kind.kind == "f" else False if kind.kind == "b" else np.iinfo(kind).min
