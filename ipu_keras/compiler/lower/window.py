"""Lowers reduce-window and select-and-scatter: windows of a block on one tile, halos exchanged first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout, even, spread
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.conv import halo
from ipu_keras.compiler.lower.named import Cut
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, payload
from ipu_keras.compiler.lower.reduce import region_op
from ipu_keras.graph.elementwise import kernel_op
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS


def check_reduce_window(node: Node) -> str | None:
    """Why a reduce-window cannot be lowered, or None."""
    if len(node.results) != 1 or region_op(node.attrs["region"]) is None:
        return "a region that is not one operation"
    if node.inputs[1].node.op != "constant":
        return "a start value known only at run time"
    return "reversed windows" if any(w[6] for w in node.attrs["window"]) else None


def check_select_and_scatter(node: Node) -> str | None:
    """Why a select-and-scatter cannot be lowered, or None."""
    select, scatter = node.attrs["regions"]
    compare = select.nodes[0] if len(select.nodes) == 1 else None
    if region_op(scatter) is None or compare is None or compare.op != "compare" or compare.inputs != select.params:
        return "regions that are not one comparison and one operation"
    return "a start value known only at run time" if node.inputs[2].node.op != "constant" else None


def lower_reduce_window(ctx: Context, node: Node) -> None:
    """Outputs spread over the tiles; each gets the input its windows reach."""
    op = region_op(node.attrs["region"])
    x, start = node.inputs[0], node.inputs[-1]
    assert op is not None
    window = node.attrs["window"]
    out = node.out
    layout = spread(out.shape, out.itemsize, ctx.target.tiles)
    starts, stops, firsts = [], [], []
    for d, w in enumerate(window):
        (s, e), first = halo((layout.starts[d], layout.stops[d]), even(w[0], 1), x.shape[d], w)
        starts.append(s)
        stops.append(e)
        firsts.append(first)
    wanted = Layout(x.shape, starts, stops, layout.tiles)
    here = ctx.need(x, wanted)
    var = ctx.var(layout, out.itemsize)
    tiles = layout.flat_tiles
    columns: list[Any] = [tiles]
    params = [len(window), OPS[op], DTYPE_NUMBER[out.dtype], payload(start.node.attrs["value"], start.dtype)]
    for d, (taps, stride, _, _, w_dilation, b_dilation, _) in enumerate(window):
        columns += [wanted.per_block(d, wanted.extents[d]), layout.per_block(d, layout.extents[d])]
        columns.append(layout.per_block(d, firsts[d]))
        params += [taps, stride, w_dilation, b_dilation]
    columns += [Offset(here.var, tiles), Offset(var, tiles)]
    ctx.compute([RawGroup(registry.WINDOW, len(tiles), params, columns)], [here.var], [var])
    ctx.located[out] = Located(var, layout)


def _touching(cut: Cut, size: int, count: int, window: tuple[Any, ...]) -> tuple[Cut, Cut]:
    """For intervals of an array's dimension: the windows that touch each, and the elements that those windows see."""
    taps, stride, pad = window[:3]
    first = np.clip(-(-(cut[0] + pad - taps + 1) // stride), 0, count)
    last = np.maximum(np.clip((cut[1] - 1 + pad) // stride + 1, 0, count), first)
    low = np.where(last > first, np.minimum(cut[0], np.maximum(first * stride - pad, 0)), cut[0])
    high = np.where(last > first, np.maximum(cut[1], np.minimum((last - 1) * stride - pad + taps, size)), cut[1])
    return (first, last), (low, high)


def lower_select_and_scatter(ctx: Context, node: Node) -> None:
    """Each tile looks at all windows that touch its block, with their other elements, and keeps its block's sums."""
    x, source, start = node.inputs
    select, scatter = node.attrs["regions"]
    op = region_op(scatter)
    compare = select.nodes[0]
    assert op is not None
    window = node.attrs["window"]
    # Windows with gaps could see elements far outside their block's surroundings: those dimensions stay whole.
    locked = [d for d, w in enumerate(window) if w[4] != 1 or w[5] != 1]
    layout = spread(x.shape, x.itemsize, ctx.target.tiles, locked=locked)
    sources: list[Cut] = []
    seen: list[Cut] = []
    for d, w in enumerate(window):
        cut = (layout.starts[d], layout.stops[d])
        if d in locked:
            sources.append(even(source.shape[d], 1))
            seen.append(cut)
        else:
            windows, elements = _touching(cut, x.shape[d], source.shape[d], w)
            sources.append(windows)
            seen.append(elements)
    halo_layout = Layout(x.shape, [s for s, _ in seen], [e for _, e in seen], layout.tiles)
    from_layout = Layout(source.shape, [s for s, _ in sources], [e for _, e in sources], layout.tiles)
    here, there = ctx.need(x, halo_layout), ctx.need(source, from_layout)
    var = ctx.var(layout, x.itemsize)
    tiles = layout.flat_tiles
    columns: list[Any] = [tiles]
    params = [len(window), OPS[op], DTYPE_NUMBER[x.dtype], payload(start.node.attrs["value"], start.dtype)]
    for d, (taps, stride, pad, _, w_dilation, b_dilation, _) in enumerate(window):
        columns += [halo_layout.per_block(d, halo_layout.extents[d]), from_layout.per_block(d, from_layout.extents[d])]
        columns.append(layout.per_block(d, sources[d][0] * stride - pad - seen[d][0]))
        columns += [layout.per_block(d, layout.starts[d] - seen[d][0]), layout.per_block(d, layout.extents[d])]
        params += [taps, stride, w_dilation, b_dilation]
    params.append(OPS[kernel_op("compare", compare.attrs)])
    columns += [Offset(here.var, tiles), Offset(there.var, tiles), Offset(var, tiles)]
    ctx.compute([RawGroup(registry.SELECT_SCATTER, len(tiles), params, columns)], [here.var, there.var], [var])
    ctx.located[node.out] = Located(var, layout)
