"""Lowers reductions: each tile reduces its block, then the partial results of a group of tiles meet.

The second stage spreads the results over the tiles that hold partials (a reduce-scatter); with many partials it goes
through an intermediate stage, as poplibs' multi-stage reduction does (hardware.md 4: two stages from 16).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import emit_map, merged
from ipu_keras.compiler.lower.partials import in_front, merge_front, regroup, scatter, without
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var, payload
from ipu_keras.compiler.move import Line
from ipu_keras.compiler.plan.reduction import runs, stages
from ipu_keras.graph.elementwise import ELEMENTWISE
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS, REDUCTIONS

_IDENTITY: dict[str, Any] = {"add": 0, "multiply": 1, "or": 0, "xor": 0}


def identity_bits(op: str, dtype: str) -> int:
    """Bits of the value that does not change the other operand."""
    if op in _IDENTITY:
        return payload(_IDENTITY[op], dtype)
    if op == "and":
        return -1 if dtype != "pred" else 1
    low = op == "maximum"
    if dtype in ("f32", "f16"):
        return payload(-np.inf if low else np.inf, dtype)
    if dtype == "pred":
        return 0 if low else 1
    from ipu_keras.graph.ir import DTYPES

    info = np.iinfo(DTYPES[dtype])
    return payload(info.min if low else info.max, dtype)


def region_op(region: Graph) -> str | None:
    """The operation of a region that is just one, on its two parameters."""
    if len(region.nodes) == 1 and set(region.nodes[0].inputs) == set(region.params):
        op = region.nodes[0].op
        return op if op in REDUCTIONS else None
    return None


def check_reduce(node: Node) -> str | None:
    """Why a reduce cannot be lowered, or None."""
    region: Graph = node.attrs["region"]
    if len(node.results) == 1 and region_op(region) is not None:
        return None
    n = len(node.results)
    if any(s.node.op != "constant" for s in node.inputs[n:]):
        return "a region with start values known only at run time"
    bad = [r.op for r in region.nodes if r.op not in ELEMENTWISE and r.op != "constant"]
    return f"a region with {', '.join(bad)}" if bad else None


def lower_reduce(ctx: Context, node: Node) -> None:
    """reduce with one operand and one operation, or with a region of any kind."""
    op = region_op(node.attrs["region"])
    if op is None or len(node.results) != 1:
        from ipu_keras.compiler.lower.variadic import lower_variadic

        lower_variadic(ctx, node)
        return
    x, start = node.inputs
    if x.size == 0:
        _empty(ctx, node, start)
        return
    shape, (gone,) = merged(x.shape, [node.attrs["dims"]])
    here, groups = ctx.shaped(x, shape=shape)
    reduced = [v for d in gone for v in groups[d]]
    bits = payload(start.node.attrs["value"], start.dtype) if start.node.op == "constant" else None
    first = bits if bits is not None else identity_bits(op, x.dtype)
    result = reduce_located(ctx, here, reduced, op, x.dtype, first, ctx.scope.wanted(node.out))
    ctx.located[node.out] = result
    if bits is None:
        _combine(ctx, node, op, start)


def _empty(ctx: Context, node: Node, start: Value) -> None:
    """Nothing to reduce: the start value everywhere."""
    layout = ctx.default(node.out)
    here = ctx.place(start, Layout((), [], [], layout.flat_tiles[:1]))
    lines = [Line(None, n) for n in layout.view]
    ctx.located[node.out] = ctx.move(here, layout, start.itemsize, lines)


def _combine(ctx: Context, node: Node, op: str, start: Value) -> None:
    """out = op(start, out) for a start value known only at run time."""
    here = ctx.located[node.out]
    layout = here.layout
    first = ctx.need(start, layout.keep([]))
    var = ctx.var(layout, node.out.itemsize)
    body = ((op, start.dtype, start.dtype, (0, 1)),)
    emit_map(ctx, layout, body, (), (2,), [start, node.out], [first, here], [[], list(range(len(layout.view)))], [var])
    ctx.located[node.out] = Located(var, layout)


def _emit(ctx: Context, layout: Layout, reduced: list[int], src: Var, dst: Var, op: str, dtype: str, bits: int) -> None:
    """One reduction vertex on each block of `layout`; kept dimensions keep their memory order."""
    columns, mask = kept_and_reduced(layout, reduced)
    tiles = layout.flat_tiles
    params = [len(columns) - 1, mask, OPS[op], DTYPE_NUMBER[dtype], bits]
    ctx.compute(
        [RawGroup(registry.REDUCE, len(tiles), params, [*columns, Offset(src, tiles), Offset(dst, tiles)])],
        [src],
        [dst],
    )


def kept_and_reduced(layout: Layout, reduced: list[int]) -> tuple[list[Any], int]:
    """A block for a vertex that reduces: dimensions in memory order, neighbours of one kind as one.

    Returns:
        The first columns of a group (tiles, then an extent for each dimension), and a bit for each that is kept.
    """
    merged: list[tuple[list[int], bool]] = []
    for d in layout.order:
        if bool((layout.extents[d] == 1).all()):
            continue
        kept = d not in reduced
        if merged and merged[-1][1] == kept:
            merged[-1][0].append(d)
        else:
            merged.append(([d], kept))
    merged = merged or [([], True)]
    columns: list[Any] = [layout.flat_tiles]
    for dims, _ in merged:
        ext = np.ones(1, np.int64)
        for d in dims:
            ext = ext * layout.per_block(d, layout.extents[d])
        columns.append(ext)
    return columns, sum(1 << i for i, (_, kept) in enumerate(merged) if kept)


def reduce_located(
    ctx: Context, here: Located, reduced: list[int], op: str, dtype: str, bits: int, wanted: Layout | None = None
) -> Located:
    """Reduce a located array over view dimensions.

    Args:
        here: the array.
        reduced: dimensions of its layout's view.
        op: one of REDUCTIONS.
        dtype: of the elements.
        bits: start value; used once, in the last stage.
        wanted: a mapping that the result may take, of any view of the result's elements.

    Returns:
        The result, its view the kept dimensions.
    """
    from ipu_keras.graph.ir import DTYPES

    size = DTYPES[dtype].itemsize
    layout = here.layout
    partial, cut = without(layout, reduced)
    last = not cut
    if reduced or not last:
        var = ctx.var(partial, size)
        _emit(ctx, layout, reduced, here.var, var, op, dtype, bits if last else identity_bits(op, dtype))
        here = Located(var, partial)
    return combine_partials(ctx, Located(here.var, partial), len(cut), op, dtype, bits, wanted)


def combine_partials(
    ctx: Context, here: Located, n_cut: int, op: str, dtype: str, bits: int, wanted: Layout | None = None
) -> Located:
    """Reduce over the first `n_cut` dimensions, each cut to single elements on different tiles."""
    from ipu_keras.graph.ir import DTYPES

    size = DTYPES[dtype].itemsize
    left = 0
    while n_cut:
        layout = here.layout
        depth = math.prod(layout.view[:n_cut])
        merged = merge_front(layout, n_cut)
        left = (left - 1 or 1) if left else stages(depth, layout.max_block, size, ctx.target)
        if left > 1:
            parts = int(runs(depth, left))
            target = regroup(merged, parts, size)
            moved = ctx.move(Located(here.var, merged), target, size)
            partial, cut = without(target, [0])
            var = ctx.var(partial, size)
            _emit(ctx, target, [0], moved.var, var, op, dtype, identity_bits(op, dtype))
            here, n_cut = Located(var, partial), len(cut)
            continue
        final = scatter(merged, size, wanted)
        gathered = in_front(final, depth)
        moved = ctx.move(Located(here.var, merged), gathered, size)
        var = ctx.var(final, size)
        _emit(ctx, gathered, [0], moved.var, var, op, dtype, bits)
        return Located(var, final)
    return here
