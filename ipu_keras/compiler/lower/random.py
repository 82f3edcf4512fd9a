"""Lowers rng-bit-generator (Philox): each tile makes the bits of its own block, wherever the block is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout, whole
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry

PHILOX_ALGORITHMS = (0, 2)
"""RNG_DEFAULT, which XLA on the CPU takes to be Philox, and RNG_PHILOX."""


def check_rng(node: Node) -> str | None:
    """Why the node cannot be lowered, or None."""
    state, bits = node.inputs[0], node.results[-1]
    if node.attrs["algorithm"] not in PHILOX_ALGORITHMS:
        return "an algorithm other than Philox"
    if state.shape != (3,) or state.dtype != "u64":
        return f"a state of {state.dtype}{list(state.shape)}"
    if bits.dtype not in ("u32", "u64", "s32", "s64"):
        return f"bits of {bits.dtype}"
    return None


def lower_rng(ctx: Context, node: Node) -> None:
    """New state now; the bits when someone wants them."""
    (state,) = node.inputs
    new_state, bits = node.results
    words = bits.itemsize // 4
    one = whole((3,))
    here = ctx.need(state, one)
    var = ctx.var(one, 8)
    tiles = one.flat_tiles
    blocks = -(-bits.size * words // 4)
    ctx.compute(
        [RawGroup(registry.PHILOX_NEXT, 1, [blocks], [tiles, Offset(here.var, tiles), Offset(var, tiles)])],
        [here.var],
        [var],
    )
    ctx.located[new_state] = Located(var, one)

    def make(layout: Layout) -> Located:
        if layout.order != tuple(range(len(layout.view))):
            layout = Layout(layout.view, layout.starts, layout.stops, layout.tiles)
        key = _everywhere(ctx, here, layout)
        out = ctx.var(layout, bits.itemsize)
        tiles = layout.flat_tiles
        columns: list[Any] = [tiles]
        strides = []
        step = 1
        for n in reversed(layout.view):
            strides.append(step)
            step *= n
        view = layout.view or (1,)
        for d in range(len(layout.view)):
            columns += [layout.per_block(d, layout.starts[d]), layout.per_block(d, layout.extents[d])]
        if not layout.view:
            columns += [tiles * 0, tiles * 0 + 1]
            strides = [1]
        columns += [Offset(key, tiles), Offset(out, tiles)]
        params = [len(view), words, *reversed(strides)]
        ctx.compute([RawGroup(registry.PHILOX, len(tiles), params, columns)], [key], [out])
        return Located(out, layout)

    ctx.held.add(here.var)  # read again when the bits are made
    ctx.lazy[bits] = make


def _everywhere(ctx: Context, here: Located, layout: Layout) -> Var:
    """The state on every tile of `layout`."""
    tiles = layout.flat_tiles.reshape(1, -1)
    copies = Layout((3,), [np.zeros(1, np.int64)], [np.full(1, 3, np.int64)], tiles)
    return ctx.move(here, copies, 8).var
