"""Lowers gather and scatter of whole rows of a table: embedding look-ups and their gradients.

The table is cut by columns first and then by entries; every tile gets all indices and works on its own part
(hardware.md 3.7). Where entries are cut, the parts' results meet by a bitwise or: all but one are zero bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ipu_keras.compiler.layout import even
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.named import Cut, Grid, Name, Other
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup
from ipu_keras.compiler.lower.reduce import combine_partials, region_op
from ipu_keras.compiler.plan.splits import spread_parts
from ipu_keras.graph.elementwise import BINARY
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS

PART_BYTES = 32 * 1024
"""A tile's part of a table is kept below this where there are tiles enough."""

_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def check_gather(node: Node) -> str | None:
    """Why a gather cannot be lowered, or None."""
    table, indices = node.inputs
    a = node.attrs
    if a["operand_batching_dims"]:
        return "batching dimensions"
    if len(a["start_index_map"]) != 1 or a["collapsed_slice_dims"] != a["start_index_map"]:
        return "a slice of more than one dimension by index"
    (d,) = a["start_index_map"]
    if any(s != n for i, (s, n) in enumerate(zip(a["slice_sizes"], table.shape, strict=True)) if i != d):
        return "partial rows"
    if a["slice_sizes"][d] != 1 or not _indices_last(indices, a["index_vector_dim"]):
        return "an index vector that is not last"
    return None


def check_scatter(node: Node) -> str | None:
    """Why a scatter cannot be lowered, or None."""
    if len(node.results) != 1:
        return "several operands"
    table, indices, _ = node.inputs
    a = node.attrs
    if a["input_batching_dims"]:
        return "batching dimensions"
    dims = a["scatter_dims_to_operand_dims"]
    if len(dims) != 1 or a["inserted_window_dims"] != dims:
        return "an update of more than one dimension by index"
    if len(a["update_window_dims"]) != len(table.shape) - 1 or not _indices_last(indices, a["index_vector_dim"]):
        return "partial rows"
    if scatter_op(node) is None:
        return "a region that is not one operation"
    return None


def _indices_last(indices: Value, dim: int) -> bool:
    return dim == len(indices.shape) or (dim == len(indices.shape) - 1 and indices.shape[-1] == 1)


def scatter_op(node: Node) -> str | None:
    """The operation, on an entry's old value and an update, that a scatter's region is; None for another region."""
    region = node.attrs["region"]
    if not region.nodes and region.outputs == [region.params[1]]:
        return "copy"
    if len(region.nodes) == 1 and region.nodes[0].op in BINARY and region.nodes[0].inputs == region.params:
        return str(region.nodes[0].op)
    return region_op(region)


def _grid(ctx: Context, table: Value, d: int) -> tuple[Grid, list[Name], dict[Name, int]]:
    names: list[Name] = ["v" if i == d else ("e", i) for i in range(len(table.shape))]
    size = dict(zip(names, table.shape, strict=True))
    columns = [n for n in names if n != "v"]
    width = math.prod(size[n] for n in columns)
    tiles = ctx.target.tiles
    across = min(tiles, max(1, width // 2))
    parts = spread_parts(tuple(size[n] for n in columns), across)
    across = math.prod(parts)
    block = table.nbytes / max(1, across)
    entries = max(1, min(tiles // across, size["v"], math.ceil(block / PART_BYTES)))
    cuts: dict[Name, Cut] = {"v": even(size["v"], entries)}
    for name, p in zip(columns, parts, strict=True):
        cuts[name] = even(size[name], p)
    return Grid(cuts), names, size


def _everywhere(ctx: Context, grid: Grid, indices: Value) -> Located:
    """All indices on every tile of the grid."""
    other: dict[Name, Other] = {"i": ((), (np.zeros(1, np.int64), np.full(1, indices.size, np.int64)))}
    return ctx.need(indices, grid.layout(["i"], [indices.size], ["i"], other))


def _rows_layout(
    grid: Grid, value: Value, row_dims: list[int], columns: list[Name]
) -> tuple[list[Name], Any, list[Name]]:
    """Names of the dimensions of an array of rows: `row_dims` are the columns' dimensions, the rest count rows."""
    names: list[Name] = []
    other: dict[Name, Other] = {}
    left = list(columns)
    for i, n in enumerate(value.shape):
        if i in row_dims:
            names.append(left.pop(0))
        else:
            names.append(("i", i))
            other[("i", i)] = ((), (np.zeros(1, np.int64), np.full(1, n, np.int64)))
    return names, other, [n for n in names if n in other] + list(columns)


def lower_gather(ctx: Context, node: Node) -> None:
    """Each tile looks its part of the rows up."""
    table, indices = node.inputs
    (d,) = node.attrs["start_index_map"]
    grid, names, size = _grid(ctx, table, d)
    columns = [n for n in names if n != "v"]
    here = ctx.need(table, grid.layout(names, table.shape, ["v", *columns]))
    index = _everywhere(ctx, grid, indices)
    out = node.out
    row_names, other, order = _rows_layout(grid, out, list(node.attrs["offset_dims"]), columns)
    front = len(grid.cuts["v"][0]) > 1
    head: list[Name] = ["v"] if front else []
    if front:
        edges = np.arange(len(grid.cuts["v"][0]), dtype=np.int64)
        other = {**other, "v": (("v",), (edges, edges + 1))}
    sizes = [len(grid.cuts["v"][0])] * front + list(out.shape)
    partial = grid.layout([*head, *row_names], sizes, [*head, *order], other)
    var = ctx.var(partial, out.itemsize)
    flat = grid.flat
    table_columns = _columns(grid, size, flat, indices.size, columns)
    params = [out.itemsize, indices.itemsize, int(indices.dtype[0] == "s"), size["v"]]
    cols = [*table_columns, Offset(here.var, flat), Offset(index.var, flat), Offset(var, flat)]
    ctx.compute([RawGroup(registry.GATHER, len(flat), params, cols)], [here.var, index.var], [var])
    ctx.located[out] = combine_partials(ctx, Located(var, partial), int(front), "or", _BITS[out.itemsize], 0)


def _columns(grid: Grid, size: dict[Name, int], flat: Any, n: int, columns: list[Name]) -> list[Any]:
    start, stop = grid.cuts["v"]
    return [flat, np.array([n]), grid.extent(columns), grid.spread(["v"], start), grid.spread(["v"], stop - start)]


def lower_scatter(ctx: Context, node: Node) -> None:
    """Each tile updates its part of the table, in a copy of it."""
    table, indices, updates = node.inputs
    (d,) = node.attrs["scatter_dims_to_operand_dims"]
    grid, names, size = _grid(ctx, table, d)
    columns = [n for n in names if n != "v"]
    layout = grid.layout(names, table.shape, ["v", *columns])
    fresh = ctx.find(table) is None and table.node.op == "broadcast" and ctx.scope.uses(table) == 1
    here = ctx.need(table, layout)
    if not fresh:
        here = ctx.move(here, layout, table.itemsize)
    index = _everywhere(ctx, grid, indices)
    row_names, other, order = _rows_layout(grid, updates, list(node.attrs["update_window_dims"]), columns)
    update = ctx.need(updates, grid.layout(row_names, updates.shape, order, other))
    flat = grid.flat
    op = scatter_op(node)
    assert op is not None
    params = [DTYPE_NUMBER[table.dtype], indices.itemsize, OPS[op], int(indices.dtype[0] == "s"), size["v"]]
    cols = _columns(grid, size, flat, indices.size, columns)
    cols += [Offset(index.var, flat), Offset(update.var, flat), Offset(here.var, flat)]
    ctx.compute([RawGroup(registry.SCATTER, len(flat), params, cols)], [index.var, update.var, here.var], [here.var])
    ctx.located[node.out] = Located(here.var, layout)
