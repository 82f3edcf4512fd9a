"""Lowers dot: operands to the plan's blocks, one product a tile, partial sums reduced across tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ipu_keras.compiler.layout import Layout, even, unsqueeze
from ipu_keras.compiler.lower.choose import choose
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import emit_map
from ipu_keras.compiler.lower.named import Grid, Name
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup
from ipu_keras.compiler.lower.quarter import emit_product
from ipu_keras.compiler.lower.reduce import combine_partials
from ipu_keras.compiler.plan.asked import dot_dims, dot_products
from ipu_keras.compiler.plan.product import Plan, Product, grains, plans
from ipu_keras.compiler.plan.splits import spread_parts
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import METHODS
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


class _Side(NamedTuple):
    """An operand: its dimensions by name, and whether the summed ones are innermost in memory (None: as one likes)."""

    value: Value
    names: dict[int, Name]
    summed_inner: bool | None


class _Form(NamedTuple):
    """A dot with its operands in one of two orders: `rows` times `weights`."""

    rows: _Side
    weights: _Side
    row_kind: str  # "m", or "n" with the operands swapped
    product: Product


def lower_dot(ctx: Context, node: Node) -> None:
    """Plan, gather, multiply, reduce."""
    a, b, *metadata = node.inputs
    dims_of = dot_dims(node)
    ca, cb = dims_of["k"]
    name_a: dict[int, Name] = {}
    name_b: dict[int, Name] = {}
    names: dict[str, list[Name]] = {}
    for kind, (dims_a, dims_b) in dims_of.items():
        names[kind] = [(kind, i) for i in range(max(len(dims_a), len(dims_b)))]
        name_a.update(zip(dims_a, names[kind], strict=False))
        name_b.update(zip(dims_b, names[kind], strict=False))
    size: dict[Name, int] = {n: a.shape[d] for d, n in name_a.items()}
    size.update({n: b.shape[d] for d, n in name_b.items()})
    sizes = {kind: tuple(size[n] for n in ns) for kind, ns in names.items()}
    side_a, side_b = (
        _Side(v, by_dim, inner_is(ctx, v, c) if ctx.find(v) is not None else None)
        for v, by_dim, c in ((a, name_a, ca), (b, name_b, cb))
    )
    plain, other = dot_products(node, ctx.options)
    sums = plain.partials
    forms = []
    for kind, rows, weights, product in (("m", side_a, side_b, plain), ("n", side_b, side_a, other)):
        # The rows want their channels innermost, the weights their outputs; of quarters they are brought so.
        turned = (rows.summed_inner is False and not metadata, weights.summed_inner is True and not metadata)
        forms.append(_Form(rows, weights, kind, replace(product, turned=turned)))
    proportion = ctx.options["available_memory_proportion"]
    options = []
    for form in forms:
        for plan in plans(form.product, ctx.target, proportion):
            grid, la, lb = _layouts(ctx, form, plan, names, size, sizes)
            options.append((plan, [(form.rows.value, la), (form.weights.value, lb)], (form, grid)))
    plan, wanted, (form, grid) = choose(ctx, node, options)
    xa, xb = (ctx.need(value, layout) for value, layout in wanted)
    col_kind = "n" if form.row_kind == "m" else "m"
    bs, rs, cs, ks = names["b"], names[form.row_kind], names[col_kind], names["k"]
    dims = [*bs, *names["m"], *names["n"]]
    partial, depth = grid.partial(ks, dims, [size[n] for n in dims], [*bs, *rs, *cs])
    var = ctx.var(partial, 2 if sums == "f16" else 4)
    if metadata:
        sizes_of = [grid.extent(each) for each in (bs, rs, ks, cs)]
        in_order = metadata if form.row_kind == "m" else metadata[::-1]
        emit_product(ctx, grid.flat, sizes_of, [], [], plan.method, [xa.var, xb.var], in_order, var)
        ctx.located[node.out] = finish(ctx, Located(var, partial), depth, sums, node.out)
        return
    flat = grid.flat
    columns: list[Any] = [flat, *(grid.extent(each) for each in (bs, rs, cs, ks))]
    columns += [Offset(xa.var, flat), Offset(xb.var, flat), Offset(var, flat)]
    turned = form.product.turned
    params = [DTYPE_NUMBER[a.dtype], int(turned[0]), int(turned[1]), METHODS.index(plan.method), DTYPE_NUMBER[sums]]
    ctx.compute([RawGroup(registry.DOT, len(flat), params, columns)], [xa.var, xb.var], [var])
    ctx.located[node.out] = finish(ctx, Located(var, partial), depth, sums, node.out)


def _layouts(
    ctx: Context, form: _Form, plan: Plan, names: dict[str, list[Name]], size: dict[Name, int],
    sizes: dict[str, tuple[int, ...]],
) -> tuple[Grid, Layout, Layout]:  # fmt: skip
    """The plan's grid of tiles and the operands' blocks on it."""
    n_grain, k_grain = grains(form.product.dtype, form.product.partials, ctx.target)
    col_kind = "n" if form.row_kind == "m" else "m"
    parts = {"b": plan.parts.groups, form.row_kind: plan.parts.outer, col_kind: plan.parts.oc, "k": plan.parts.ic}
    grain = {"b": 1, form.row_kind: 1, col_kind: n_grain, "k": k_grain}
    cuts = {}
    # Output channels last: the two tiles of a pair then want the same rows.
    for kind in ("b", form.row_kind, "k", col_kind):
        for name, p in zip(names[kind], spread_parts(sizes[kind], parts[kind]), strict=True):
            cuts[name] = even(size[name], p, grain[kind] if len(names[kind]) == 1 else 1)
    grid = Grid(cuts)
    bs, rs, cs, ks = names["b"], names[form.row_kind], names[col_kind], names["k"]
    turned = form.product.turned
    found = []
    for side, order in (
        (form.rows, [*bs, *ks, *rs] if turned[0] else [*bs, *rs, *ks]),
        (form.weights, [*bs, *cs, *ks] if turned[1] else [*bs, *ks, *cs]),
    ):
        shape = side.value.shape
        found.append(grid.layout([side.names[d] for d in range(len(shape))], shape, order))
    return grid, found[0], found[1]


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
