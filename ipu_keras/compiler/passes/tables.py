"""Any gather as one on whole rows of a table: the indexed dimensions become one, their indices one number.

That is how the tiles do it (`lower.gather`): the table's entries are all combinations of the indexed dimensions, its
rows the dimensions that are taken whole. Indices are computed like any other array; a window in an indexed dimension
becomes a row of indices. `scatters` does the same for scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Node, Value

LARGEST = 1 << 31
"""Entries of a table, so that an index is an s32."""


def _plain_gather(node: Node) -> bool:
    from ipu_keras.compiler.lower.gather import check_gather

    return check_gather(node) is None


def wide_index(b: Builder, index: Value, where: str) -> Value:
    """An index in one of the dtypes that the vertices read, as far outside an array as it was.

    They read signed and unsigned numbers of 4 bytes, signed ones of 8; of a u64 only what is outside anyway is lost.
    """
    ops = Ops(b, where)
    if index.dtype == "u64":
        return ops.convert(ops.op("minimum", index, LARGEST - 1), "s32")
    return ops.convert(index, "s32") if index.itemsize < 4 else index


def rewrite_dynamic(b: Builder, node: Node) -> Value | None:
    """dynamic-slice and dynamic-update-slice with start indices of other dtypes."""
    first = 1 if node.op == "dynamic-slice" else 2
    starts = node.inputs[first:]
    wide = [wide_index(b, v, node.where) for v in starts]
    if wide == starts:
        return None
    return b.add(node.op, [*node.inputs[:first], *wide], node.out.shape, node.out.dtype, node.attrs, node.where)


class Indices:
    """The index arithmetic of one gather or scatter.

    Args:
        b: where nodes are added.
        node: the gather or scatter.
        indices: its indices.
        vector_dim: the dimension of `indices` that holds an index's components.
        mapped: operand dimensions that the components index, in their order.
        batching: pairs (operand dimension, dimension of `indices`) that run together.
    """

    def __init__(
        self, b: Builder, node: Node, indices: Value, vector_dim: int, mapped: Sequence[int], batching: Sequence[Any]
    ) -> None:
        self.b, self.where = b, node.where
        indices = wide_index(b, indices, node.where)
        kept = [d for d in range(len(indices.shape)) if d != vector_dim]
        self.batch = tuple(indices.shape[d] for d in kept)
        self.parts: dict[int, Value] = {}
        for i, d in enumerate(mapped):
            part = indices
            if vector_dim < len(indices.shape):
                slices = tuple((i, i + 1, 1) if k == vector_dim else (0, n, 1) for k, n in enumerate(indices.shape))
                shape = tuple(1 if k == vector_dim else n for k, n in enumerate(indices.shape))
                part = b.add("slice", [part], shape, part.dtype, {"slices": slices}, self.where)
            part = b.add("reshape", [part], self.batch, part.dtype, {}, self.where)
            self.parts[d] = part
        self.lines = {d: kept.index(k) for d, k in batching}

    def op(self, op: str, *values: Value, dtype: str | None = None, **attrs: Any) -> Value:
        """An element-wise node of the operands' shape."""
        return self.b.add(op, list(values), values[0].shape, dtype or values[0].dtype, attrs, self.where)

    def full(self, number: int, shape: tuple[int, ...], dtype: str) -> Value:
        """A number everywhere."""
        scalar = self.b.constant(number, dtype, self.where)
        return self.b.add("broadcast", [scalar], shape, dtype, {"dims": ()}, self.where)

    def spread(self, value: Value, dims: tuple[int, ...], shape: tuple[int, ...]) -> Value:
        """A value broadcast along other dimensions."""
        return self.b.add("broadcast", [value], shape, value.dtype, {"dims": dims}, self.where)

    def line(self, n: int, dim: int, shape: tuple[int, ...]) -> Value:
        """0, 1, 2... along a dimension."""
        return self.spread(self.b.constant(np.arange(n), "s32", self.where), (dim,), shape)

    def linear(
        self, sizes: Sequence[tuple[int, int, int]], windows: Sequence[int], clamp: bool
    ) -> tuple[Value, Value | None]:
        """One number for each index and place in the windows.

        Args:
            sizes: (operand dimension, its size, the window's size), slowest first.
            windows: the dimensions with a window axis, in the axes' order.
            clamp: keep windows inside (gather); else also tell which lie inside (scatter).

        Returns:
            s32 indices of shape [batch..., windows...], and for a scatter the predicate of the same shape.
        """
        extent = {d: w for d, _, w in sizes}
        shape = (*self.batch, *(extent[d] for d in windows))
        over_batch = tuple(range(len(self.batch)))
        total = self.full(0, shape, "s32")
        inside: Value | None = None
        stride = math.prod(n for _, n, _ in sizes)
        for d, n, w in sizes:
            stride //= n
            if d in self.parts:
                part = self.parts[d]
                low, high = self.full(0, self.batch, part.dtype), self.full(n - w, self.batch, part.dtype)
                if not clamp:
                    ok = self.op(
                        "and",
                        self.op("compare", part, low, dtype="pred", direction="ge"),
                        self.op("compare", part, high, dtype="pred", direction="le"),
                    )
                    inside = ok if inside is None else self.op("and", inside, ok)
                part = self.op("clamp", low, part, high)
                at = self.spread(self.op("convert", part, dtype="s32"), over_batch, shape)
            elif d in self.lines:
                at = self.line(n, self.lines[d], shape)
            else:
                at = self.full(0, shape, "s32")
            if d in windows:
                at = self.op("add", at, self.line(w, len(self.batch) + list(windows).index(d), shape))
            total = self.op("add", total, self.op("multiply", at, self.full(stride, shape, "s32")))
        return total, None if inside is None else self.spread(inside, over_batch, shape)


def table_of(b: Builder, operand: Value, indexed: list[int], whole: list[int], where: str) -> Value:
    """The operand as a table: one entry for each combination of the indexed dimensions."""
    perm = (*indexed, *whole)
    shape = tuple(operand.shape[d] for d in perm)
    turned = b.add("transpose", [operand], shape, operand.dtype, {"dims": perm}, where)
    entries = math.prod(operand.shape[d] for d in indexed)
    return b.add("reshape", [turned], (entries, *(operand.shape[d] for d in whole)), operand.dtype, {}, where)


def rewrite_gather(b: Builder, node: Node) -> Value | None:
    """A general gather as a gather of rows."""
    operand, indices = node.inputs
    a, where = node.attrs, node.where
    if _plain_gather(node):
        wide = wide_index(b, indices, where)
        if wide is indices:
            return None
        return b.add("gather", [operand, wide], node.out.shape, operand.dtype, a, where)
    mapped, batching = list(a["start_index_map"]), list(a["operand_batching_dims"])
    indexed = [*mapped, *batching]
    if math.prod(operand.shape[d] for d in indexed) >= LARGEST:
        return None
    window = dict(enumerate(a["slice_sizes"]))
    whole = [d for d in range(len(operand.shape)) if d not in indexed]
    if any(window[d] < operand.shape[d] for d in whole):
        slices = tuple((0, window[d] if d in whole else n, 1) for d, n in enumerate(operand.shape))
        shape = tuple(e for _, e, _ in slices)
        operand = b.add("slice", [operand], shape, operand.dtype, {"slices": slices}, where)
    hidden = {*a["collapsed_slice_dims"], *batching}
    windows = [d for d in sorted(indexed) if d not in hidden]
    index = Indices(
        b,
        node,
        indices,
        a["index_vector_dim"],
        mapped,
        list(zip(batching, a["start_indices_batching_dims"], strict=True)),
    )
    linear, _ = index.linear([(d, operand.shape[d], window[d]) for d in indexed], windows, clamp=True)
    table = table_of(b, operand, indexed, whole, where)
    rows = (*linear.shape, *table.shape[1:])
    n = len(linear.shape)
    attrs = {
        "offset_dims": tuple(range(n, len(rows))), "collapsed_slice_dims": (0,), "start_index_map": (0,),
        "index_vector_dim": n, "operand_batching_dims": (), "start_indices_batching_dims": (),
        "slice_sizes": (1, *table.shape[1:]),
    }  # fmt: skip
    got = b.add("gather", [table, linear], rows, operand.dtype, attrs, where)
    shown = [d for d in whole if d not in hidden]
    got = b.add("reshape", [got], (*linear.shape, *(operand.shape[d] for d in shown)), operand.dtype, {}, where)
    place = {d: len(index.batch) + i for i, d in enumerate([*windows, *shown])}
    seen = iter(sorted(place))
    batch = iter(range(len(index.batch)))
    perm = tuple(place[next(seen)] if p in a["offset_dims"] else next(batch) for p in range(len(node.out.shape)))
    return b.add("transpose", [got], node.out.shape, operand.dtype, {"dims": perm}, where)
