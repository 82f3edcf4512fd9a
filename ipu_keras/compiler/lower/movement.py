"""Lowers what only moves data: slice, pad, concatenate, reverse, transpose, reshape, broadcast, constants."""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.layout import Layout, unsqueeze, whole
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var, payload
from ipu_keras.compiler.move import Line, plan_move
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER


def lower_constant(ctx: Context, node: Node) -> None:
    """A constant gets a home when it is wanted."""
    array: np.ndarray = node.attrs["value"]
    value = node.out

    def make(layout: Layout) -> Located:
        var = ctx.var(layout, value.itemsize, "constant", pinned=True)
        ctx.constants.append((var, layout, array, None))
        return Located(var, layout)

    ctx.lazy[value] = make


def lower_reshape(ctx: Context, node: Node) -> None:
    """No byte moves: the same blocks under another shape."""
    (x,) = node.inputs
    here = ctx.find(x)
    if here is not None:
        ctx.located[node.out] = here
    else:
        ctx.lazy[node.out] = lambda layout: ctx.place(x, layout)


def lower_transpose(ctx: Context, node: Node) -> None:
    """No byte moves: the same blocks with their dimensions renamed; the memory order remembers the old one."""
    (x,) = node.inputs
    here, groups = ctx.shaped(x)
    perm = tuple(v for d in node.attrs["dims"] for v in groups[d])
    ctx.located[node.out] = Located(here.var, here.layout.transposed(perm))


def fill(ctx: Context, layout: Layout, value: Value, bits: int) -> Located:
    """A new variable with every element set to a scalar."""
    var = ctx.var(layout, value.itemsize)
    emit_fill(ctx, var, layout, value, bits)
    return Located(var, layout)


def emit_fill(ctx: Context, var: Var, layout: Layout, value: Value, bits: int) -> None:
    """Set a variable's blocks to a scalar given by its bits."""
    size = value.itemsize
    out = 1  # registers: one constant, then the output
    params = [1, 0, 1, 1, 0, 1, 512, max(size, 4), out, size, DTYPE_NUMBER[value.dtype], bits]
    params += [0, 0, DTYPE_NUMBER[value.dtype], out, 0, 0, 0]
    keep = np.flatnonzero(layout.flat_sizes)
    tiles = layout.flat_tiles[keep]
    group = RawGroup(registry.MAP, len(tiles), params, [tiles, layout.flat_sizes[keep], Offset(var, tiles)])
    ctx.compute([group], [], [var])


def lower_broadcast(ctx: Context, node: Node) -> None:
    """A broadcast that no element-wise chain reads itself: filled, or copied to the default spread."""
    (x,) = node.inputs
    out = node.out
    if x.shape == () and x.node.op == "constant":
        bits = payload(x.node.attrs["value"], x.dtype)
        ctx.lazy[out] = lambda layout: fill(ctx, layout, out, bits)
        return
    layout = ctx.default(out)
    here = ctx.exact(x)
    src = unsqueeze(here.layout, x.shape)
    assert src is not None
    lines = [Line(None, n) for n in out.shape]
    for i, d in enumerate(node.attrs["dims"]):
        lines[d] = Line(i, out.shape[d])
    ctx.located[out] = ctx.move(Located(here.var, src), layout, out.itemsize, lines)


def _moved(
    ctx: Context, node: Node, sources: list[tuple[Value, list[Line]]], layout: Layout, start: int | None
) -> None:
    """The result in `layout`, filled with `start` first if given, then copied from each source in one exchange."""
    out = node.out
    var = ctx.var(layout, out.itemsize)
    if start is not None:
        emit_fill(ctx, var, layout, out, start)
    moves = []
    for value, lines in sources:
        if value.size == 0:
            continue
        here = ctx.exact(value)
        src = unsqueeze(here.layout, value.shape)
        assert src is not None
        moves.append((plan_move(layout, src, lines), here.var, var, out.itemsize))
    ctx.exchange(moves)
    ctx.located[out] = Located(var, layout)


def lower_slice(ctx: Context, node: Node) -> None:
    """Strided copies."""
    (x,) = node.inputs
    lines = [
        Line(d, n, 0, 1, s, t)
        for d, (n, (s, _, t)) in enumerate(zip(node.out.shape, node.attrs["slices"], strict=True))
    ]
    _moved(ctx, node, [(x, lines)], ctx.default(node.out), None)


def lower_reverse(ctx: Context, node: Node) -> None:
    """Copies with negative strides."""
    (x,) = node.inputs
    lines = [Line(d, n, 0, 1, n - 1, -1) if d in node.attrs["dims"] else Line(d, n) for d, n in enumerate(x.shape)]
    _moved(ctx, node, [(x, lines)], ctx.default(node.out), None)


def lower_pad(ctx: Context, node: Node) -> None:
    """A fill and copies; negative padding leaves elements out."""
    x, edge = node.inputs
    lines = []
    for d, (low, _, interior) in enumerate(node.attrs["padding"]):
        step, n = interior + 1, x.shape[d]
        first = -(low // step) if low < 0 else 0  # first element that falls inside
        at = low + first * step
        count = max(0, min(n - first, -(-(node.out.shape[d] - at) // step)))
        lines.append(Line(d, count, at, step, first, 1))
    layout = ctx.default(node.out)
    if edge.node.op == "constant":
        start = payload(edge.node.attrs["value"], edge.dtype)
        _moved(ctx, node, [(x, lines)], layout, start)
        return
    # An edge value known only at run time: broadcast first.
    var = ctx.var(layout, node.out.itemsize)
    here = ctx.place(edge, whole(()))
    ctx.exchange([(plan_move(layout, here.layout, [Line(None, n) for n in layout.view]), here.var, var, edge.itemsize)])
    inner = ctx.exact(x)
    src = unsqueeze(inner.layout, x.shape)
    assert src is not None
    ctx.exchange([(plan_move(layout, src, lines), inner.var, var, x.itemsize)])
    ctx.located[node.out] = Located(var, layout)


def lower_concatenate(ctx: Context, node: Node) -> None:
    """Copies of each operand to its place."""
    (dim,) = node.attrs["dims"]
    sources, at = [], 0
    for value in node.inputs:
        lines = [Line(d, n, at if d == dim else 0, 1) for d, n in enumerate(value.shape)]
        sources.append((value, lines))
        at += value.shape[dim]
    _moved(ctx, node, sources, ctx.default(node.out), None)
