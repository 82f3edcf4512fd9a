"""Lowers dot: operands to the plan's blocks, one product a tile, partial sums reduced across tiles."""

from __future__ import annotations

import math
from typing import Any

from ipu_keras.compiler.layout import even, unsqueeze
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import emit_map
from ipu_keras.compiler.lower.named import Grid, Name
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup
from ipu_keras.compiler.lower.reduce import combine_partials
from ipu_keras.compiler.plan.dot import grains, plan_dot, spread_parts
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER


def inner_is(ctx: Context, value: Value, dims: tuple[int, ...]) -> bool:
    """Whether the value's innermost dimension in memory now is one of `dims`, so that copies stay contiguous."""
    here = ctx.find(value)
    order = tuple(range(len(value.shape)))
    if here is not None:
        full = unsqueeze(here.layout, value.shape)
        order = full.order if full is not None else order
    for d in reversed(order):
        if value.shape[d] > 1:
            return d in dims
    return True


def lower_dot(ctx: Context, node: Node) -> None:
    """Plan, gather, multiply, reduce."""
    a, b = node.inputs
    (ca, cb), (ba, bb) = node.attrs["contract"], node.attrs["batch"]
    fa = tuple(d for d in range(len(a.shape)) if d not in ca and d not in ba)
    fb = tuple(d for d in range(len(b.shape)) if d not in cb and d not in bb)
    name_a: dict[int, Name] = {}
    name_b: dict[int, Name] = {}
    names: dict[str, list[Name]] = {}
    for kind, dims_a, dims_b in (("b", ba, bb), ("m", fa, ()), ("n", (), fb), ("k", ca, cb)):
        names[kind] = [(kind, i) for i in range(max(len(dims_a), len(dims_b)))]
        name_a.update(zip(dims_a, names[kind], strict=False))
        name_b.update(zip(dims_b, names[kind], strict=False))
    size: dict[Name, int] = {n: a.shape[d] for d, n in name_a.items()}
    size.update({n: b.shape[d] for d, n in name_b.items()})
    sizes = {kind: tuple(size[n] for n in ns) for kind, ns in names.items()}
    ta, tb = not inner_is(ctx, a, ca), inner_is(ctx, b, cb)
    proportion = ctx.options["available_memory_proportion"]
    plan = plan_dot(*(math.prod(sizes[kind]) for kind in "bmnk"), a.dtype, ctx.target, proportion, (ta, tb))
    n_grain, k_grain = grains(a.dtype)
    cuts = {}
    for kind, parts, grain in zip("bmnk", plan.parts, (1, 1, n_grain, k_grain), strict=True):
        for name, p in zip(names[kind], spread_parts(sizes[kind], parts), strict=True):
            cuts[name] = even(size[name], p, grain if len(names[kind]) == 1 else 1)
    grid = Grid(cuts)
    bs, ms, ns, ks = (names[kind] for kind in "bmnk")
    la = grid.layout([name_a[d] for d in range(len(a.shape))], a.shape, [*bs, *ks, *ms] if ta else [*bs, *ms, *ks])
    lb = grid.layout([name_b[d] for d in range(len(b.shape))], b.shape, [*bs, *ns, *ks] if tb else [*bs, *ks, *ns])
    xa, xb = ctx.need(a, la), ctx.need(b, lb)
    outs = [*bs, *ms, *ns]
    partial, depth = grid.partial(ks, outs, [size[n] for n in outs], outs)
    acc = "f32" if a.dtype in ("f32", "f16") else "s32"
    var = ctx.var(partial, 4)
    flat = grid.flat
    columns: list[Any] = [flat, *(grid.extent(names[kind]) for kind in "bmnk")]
    columns += [Offset(xa.var, flat), Offset(xb.var, flat), Offset(var, flat)]
    params = [DTYPE_NUMBER[a.dtype], int(ta), int(tb)]
    ctx.compute([RawGroup(registry.DOT, len(flat), params, columns)], [xa.var, xb.var], [var])
    ctx.located[node.out] = finish(ctx, Located(var, partial), depth, acc, node.out)


def finish(ctx: Context, here: Located, depth: int, acc: str, value: Value) -> Located:
    """Reduce partial sums to where the result is wanted, and cast them to its dtype."""
    out = combine_partials(ctx, here, depth, "add", acc, 0, ctx.scope.wanted(value))
    if acc == value.dtype:
        return out
    var = ctx.var(out.layout, value.itemsize)
    source = Node("partials", [], [(value.shape, acc)]).out
    body = (("convert", acc, value.dtype, (0,)),)
    emit_map(ctx, out.layout, body, (), (1,), [source], [out], [list(range(len(out.layout.view)))], [var])
    return Located(var, out.layout)
