"""Lowers what has to do with quarters, the chip's 8-bit floats: casts where a value lies, vertices of products.

Products of them are planned and laid out as others (`dot`, `conv`); the metadata of an operand, a byte, comes to each
tile that works on it, so it may be known at run time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.target import TARGETS, Target
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import METHODS

QUARTERS = ("to-quarter", "from-quarter", "quarter-dot", "quarter-convolution")
"""Operations on quarters; a quarter is a u8, its metadata a scalar u8 operand."""


def refused(graph: Graph, target: Target, place: Callable[[Node], str]) -> list[str]:
    """The operations on quarters, if the chip has none: one line each.

    Args:
        graph: before it is lowered.
        target: the chip.
        place: names where a node comes from.
    """
    if target.fp8_in_fp16_out_conv_units:
        return []
    able = ", ".join(name for name, each in TARGETS.items() if each.fp8_in_fp16_out_conv_units)
    return [
        f"{node.op}: the target {target.name!r} has no 8-bit floats; take {able} (IPUStrategy(target=...), or "
        f"IPUConfig.device_connection.version = 'ipu21') {node.name} ({place(node)})"
        for node in graph.nodes
        if node.op in QUARTERS
    ]


def lower_cast(ctx: Context, node: Node) -> None:
    """to-quarter and from-quarter: each tile casts its block."""
    x, metadata = node.inputs
    here = ctx.place(x)
    if here.layout.reps > 1 or not here.layout.is_partition:
        here = ctx.move(here, ctx.default(x), x.itemsize)
    layout = here.layout
    tiles = layout.flat_tiles
    var = ctx.var(layout, node.out.itemsize)
    (meta,) = _on_tiles(ctx, [metadata], tiles)
    # What is too large for a quarter becomes the largest one, with the chip's NANOO bit NaN; there is no infinity.
    params = [int(node.op == "to-quarter"), int(ctx.options["half_overflow"] == "nan")]
    columns: list[Any] = [tiles, layout.flat_sizes, *(Offset(v, tiles) for v in (here.var, meta, var))]
    ctx.compute([RawGroup(registry.QUARTER_CAST, len(tiles), params, columns)], [here.var, meta], [var])
    ctx.located[node.out] = Located(var, layout)


def emit_product(
    ctx: Context, tiles: Ints, sizes: Sequence[Ints], window: Sequence[Ints], params: Sequence[int], method: str,
    operands: Sequence[Var], metadata: Sequence[Value], out: Var,
) -> None:  # fmt: skip
    """The compute set of a product of quarters.

    Args:
        tiles: of the vertices.
        sizes: groups, batch, input and output channels of each tile's block.
        window: for each spatial dimension block extent, outputs, taps, and where the first tap stands.
        params: for each spatial dimension stride, window dilation, base dilation, reversed window.
        method: the planned one.
        operands: where the inputs and the weights lie.
        metadata: theirs, in this order.
        out: where the partial sums go.
    """
    variables = [*operands, out, *_on_tiles(ctx, metadata, tiles)]
    group = RawGroup(
        registry.QUARTER_PRODUCT,
        len(tiles),
        [len(params) // 4, *params, METHODS.index(method)],
        [tiles, *sizes, *window, *(Offset(v, tiles) for v in variables)],
    )
    ctx.compute([group], [*operands, *variables[3:]], [out])


def _on_tiles(ctx: Context, scalars: Sequence[Value], tiles: Ints) -> list[Var]:
    """Where scalars lie once each of some tiles has them."""
    layout = Layout((), [], [], np.ascontiguousarray(tiles))
    return [ctx.need(scalar, layout).var for scalar in scalars]
