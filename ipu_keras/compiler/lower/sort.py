"""Lowers sort: the sorted dimension comes whole to a tile, innermost in memory; the others are cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout, spread
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import encode
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, payload
from ipu_keras.compiler.lower.variadic import region_body
from ipu_keras.graph.elementwise import ELEMENTWISE
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER


def check_sort(node: Node) -> str | None:
    """Why a sort cannot be lowered, or None."""
    bad = [n.op for n in node.attrs["region"].nodes if n.op not in ELEMENTWISE and n.op != "constant"]
    if bad:
        return f"a comparator with {', '.join(bad)}"
    return "more than 16 operands" if len(node.inputs) > 16 else None


def lower_sort(ctx: Context, node: Node) -> None:
    """One vertex a tile sorts its lines, the operands moved together."""
    (dim,) = node.attrs["dims"]
    shape = node.inputs[0].shape
    cut = spread(shape, node.inputs[0].itemsize, ctx.target.tiles, locked=[dim])
    order = (*(d for d in range(len(shape)) if d != dim), dim)
    layout = Layout(cut.view, cut.starts, cut.stops, cut.tiles, order)
    located = [ctx.need(v, layout) for v in node.inputs]
    outs = [ctx.var(layout, v.itemsize) for v in node.results]
    n_ops = len(node.inputs)
    body, consts, results = region_body(node.attrs["region"])
    words, n_tmp, regs = encode(body, consts, results, 2 * n_ops, [], may_be_direct=False)
    params = [n_ops, len(consts), n_tmp, len(body), regs[0], *(v.itemsize for v in node.inputs)]
    for dtype, value in consts:
        params += [DTYPE_NUMBER[dtype], payload(value, dtype)]
    params += words
    tiles, length = layout.flat_tiles, np.array([shape[dim]])
    columns: list[Any] = [tiles, layout.flat_sizes // max(1, shape[dim]), length]
    columns += [Offset(here.var, tiles) for here in located] + [Offset(v, tiles) for v in outs]
    ctx.compute([RawGroup(registry.SORT, len(tiles), params, columns)], [here.var for here in located], outs)
    for value, var in zip(node.results, outs, strict=True):
        ctx.located[value] = Located(var, layout)
