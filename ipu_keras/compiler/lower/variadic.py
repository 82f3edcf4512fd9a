"""Lowers a reduction by a region of several operands: the place of the largest element, say.

As for one operation, each tile reduces its block and partial results meet in stages; HLO regions are associative, and
the start values change nothing, so every stage is the same vertex.
"""

from __future__ import annotations

import math
from typing import Any

from ipu_keras.compiler.layout import Layout, spread, squeeze
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import encode
from ipu_keras.compiler.lower.partials import in_front, merge_front, regroup, scatter, without
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, payload
from ipu_keras.compiler.lower.reduce import kept_and_reduced
from ipu_keras.compiler.plan.reduction import most_stages, runs
from ipu_keras.errors import PlanError
from ipu_keras.graph.elementwise import kernel_op
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER

REGISTERS = 96
"""Registers of a region's vertex; see `ipu_runtime.validate.codelets`."""

WHOLE = 2048
"""Lines of up to this many elements are reduced on one tile; longer ones are cut."""


def lower_variadic(ctx: Context, node: Node) -> None:
    """reduce with a region of any kind."""
    n = len(node.results)
    arrays, starts = node.inputs[:n], node.inputs[n:]
    shape = arrays[0].shape
    depth = math.prod(shape[d] for d in node.attrs["dims"])
    locked = node.attrs["dims"] if depth <= WHOLE else ()
    layout = squeeze(spread(shape, arrays[0].itemsize, ctx.target.tiles, 64, locked))
    located = [ctx.need(a, layout) for a in arrays]
    big = [d for d, s in enumerate(shape) if s != 1]
    reduced = [big.index(d) for d in node.attrs["dims"] if d in big]
    vertex = _Vertex(ctx, node, starts)
    partial, cut = without(layout, reduced)
    located = vertex.emit(layout, reduced, located, partial)
    n_cut = len(cut)
    left = 0
    while n_cut:
        merged = merge_front(partial, n_cut)
        depth, size = merged.view[0], arrays[0].itemsize
        left = (left - 1 or 1) if left else int(most_stages(depth))
        if left > 1:
            target = regroup(merged, int(runs(depth, left)), size)
            partial, cut = without(target, [0])
            n_cut = len(cut)
        else:
            partial = scatter(merged, size, None)
            target = in_front(partial, depth)
            n_cut = 0
        moved = [
            ctx.move(Located(here.var, merged), target, a.itemsize) for here, a in zip(located, arrays, strict=True)
        ]
        located = vertex.emit(target, [0], moved, partial)
    for value, here in zip(node.results, located, strict=True):
        ctx.located[value] = here


class _Vertex:
    """The compute sets of one region."""

    def __init__(self, ctx: Context, node: Node, starts: list[Value]) -> None:
        n = len(node.results)
        body, consts, results = region_body(node.attrs["region"])
        words, n_tmp, regs = encode(body, consts, results, 2 * n, [True] * n, may_be_direct=False)
        if 2 * n + len(consts) + n_tmp > REGISTERS:
            raise PlanError(f"a region that needs {2 * n + len(consts) + n_tmp} registers, a vertex has {REGISTERS}")
        self.ctx, self.results = ctx, node.results
        self.params = [n, len(consts), n_tmp, len(body)]
        for value, start, reg in zip(node.results, starts, regs, strict=True):
            self.params += [value.itemsize, payload(start.node.attrs["value"], start.dtype), reg]
        for dtype, const in consts:
            self.params += [DTYPE_NUMBER[dtype], payload(const, dtype)]
        self.params += words

    def emit(self, layout: Layout, reduced: list[int], located: list[Located], result: Layout) -> list[Located]:
        """Reduce each block of `layout` over some dimensions; the results lie in `result`."""
        columns, mask = kept_and_reduced(layout, reduced)
        rank, tiles = len(columns) - 1, layout.flat_tiles
        outs = [self.ctx.var(result, v.itemsize) for v in self.results]
        columns += [Offset(here.var, tiles) for here in located] + [Offset(v, tiles) for v in outs]
        group = RawGroup(registry.VARIADIC, len(tiles), [rank, mask, *self.params], columns)
        self.ctx.compute([group], [here.var for here in located], outs)
        return [Located(v, result) for v in outs]


def region_body(region: Graph) -> tuple[list[Any], list[Any], list[int]]:
    """A region of element-wise operations as the body of a vertex.

    Returns:
        Body and constants as in a `map` node, and the numbers of the region's results; inputs are its parameters.
    """
    place: dict[Value, int] = {v: i for i, v in enumerate(region.params)}
    consts: list[Any] = []
    body: list[Any] = []
    for node in region.nodes:
        if node.op == "constant":
            consts.append((node.out.dtype, node.attrs["value"]))
            place[node.out] = -len(consts)
        else:
            data = node.inputs[1] if node.op in ("select", "clamp") else node.inputs[0]
            args = tuple(place[v] for v in node.inputs)
            place[node.out] = len(region.params) + len(body)
            body.append((kernel_op(node.op, node.attrs), data.dtype, node.out.dtype, args))
    return body, consts, [place[v] for v in region.outputs]
