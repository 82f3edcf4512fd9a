"""Lowers dynamic-slice and dynamic-update-slice: the moving dimensions stay whole on a tile, the others are cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout, spread, unsqueeze
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets import registry


def _moving(node: Node, sizes: tuple[int, ...]) -> list[int]:
    return [d for d, (n, size) in enumerate(zip(node.inputs[0].shape, sizes, strict=True)) if size < n]


def _layout(ctx: Context, value: Value, moving: list[int]) -> Layout:
    """Where the block lies already, if no moving dimension is cut there; else a spread that leaves them whole."""
    here = ctx.find(value)
    if here is not None:
        full = unsqueeze(here.layout, value.shape)
        if full is not None and full.reps == 1 and all(full.grid[d] == 1 for d in moving):
            return full
    return spread(value.shape, value.itemsize, ctx.target.tiles, locked=moving)


def _window(layout: Layout, moving: list[int], sizes: tuple[int, ...]) -> Layout:
    """Layout of the window: cut as the block in the dimensions that do not move."""
    starts, stops = list(layout.starts), list(layout.stops)
    for d in moving:
        starts[d], stops[d] = np.zeros(1, np.int64), np.full(1, sizes[d], np.int64)
    return Layout(sizes, starts, stops, layout.tiles, layout.order)


def _emit(
    ctx: Context,
    node: Node,
    starts: list[Value],
    block: Located,
    window: Located,
    moving: list[int],
    itemsize: int,
    update: bool,
) -> None:
    layout = block.layout
    tiles = layout.flat_tiles
    known = {d: i for i, d in enumerate(moving)}
    used = [starts[d] for d in moving]
    copies = [ctx.need(v, Layout((), [], [], tiles)) for v in used]
    width, is_signed = used[0].itemsize if used else 4, int(bool(used) and used[0].dtype[0] == "s")
    order = list(layout.order)
    columns: list[Any] = [tiles]
    params = [max(1, len(order)), itemsize, width, is_signed, int(update), len(used)]
    for d in order:
        columns += [layout.per_block(d, layout.extents[d]), window.layout.per_block(d, window.layout.extents[d])]
        params.append(known.get(d, -1))
    if not order:
        columns += [np.ones(1, np.int64), np.ones(1, np.int64)]
        params.append(-1)
    columns += [Offset(block.var, tiles), Offset(window.var, tiles), *(Offset(c.var, tiles) for c in copies)]
    reads = [block.var, window.var, *(c.var for c in copies)] if update else [block.var, *(c.var for c in copies)]
    ctx.compute([RawGroup(registry.DYNAMIC, len(tiles), params, columns)], reads, [block.var if update else window.var])


def lower_dynamic_slice(ctx: Context, node: Node) -> None:
    """Each tile takes its part of the window."""
    x, *starts = node.inputs
    sizes = node.attrs["sizes"]
    moving = _moving(node, sizes)
    layout = _layout(ctx, x, moving)
    block = ctx.need(x, layout)
    out = _window(layout, moving, sizes)
    window = Located(ctx.var(out, x.itemsize), out)
    _emit(ctx, node, starts, block, window, moving, x.itemsize, False)
    ctx.located[node.out] = window


def lower_dynamic_update_slice(ctx: Context, node: Node) -> None:
    """Each tile overwrites its part of the window: in a state's home if the old value is not needed, else in a copy."""
    x, update, *starts = node.inputs
    moving = _moving(node, update.shape)
    layout = _layout(ctx, x, moving)
    block = ctx.need(x, layout)
    window = ctx.need(update, _window(layout, moving, update.shape))
    if not ctx.scope.may_overwrite(x, block):
        fresh: Var = ctx.var(layout, x.itemsize)
        block = ctx.move(block, layout, x.itemsize, into=fresh)
    _emit(ctx, node, starts, block, window, moving, x.itemsize, True)
    ctx.located[node.out] = Located(block.var, layout)
