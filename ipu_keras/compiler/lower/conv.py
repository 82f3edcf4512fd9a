"""Lowers convolution, with strides, dilation on both sides, reversed windows, feature and batch groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Ints, even
from ipu_keras.compiler.lower.choose import choose
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.dot import finish, inner_is
from ipu_keras.compiler.lower.named import Cut, Grid, Name, Other
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup
from ipu_keras.compiler.lower.quarter import emit_product
from ipu_keras.compiler.plan.asked import convolution_product
from ipu_keras.compiler.plan.product import Plan, Product, grains, plans
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import METHODS
from ipu_runtime.opcodes import DTYPE_NUMBER


def halo(outs: Cut, taps: Cut, size: int, window: tuple[Any, ...]) -> tuple[Cut, Ints]:
    """Input intervals that intervals of outputs and taps read.

    Args:
        outs: intervals of outputs.
        taps: intervals of taps.
        size: extent of the input.
        window: as in a node's attributes.

    Returns:
        Intervals of the input for each pair (outputs slowest), and where each block's first tap of its first window
        stands in its dilated block.
    """
    count, stride, pad, _, w_dilation, b_dilation, reversed_ = window
    low_tap, high_tap = (count - taps[1], count - 1 - taps[0]) if reversed_ else (taps[0], taps[1] - 1)
    low = (outs[0] * stride - pad)[:, None] + (low_tap * w_dilation)[None]
    high = ((outs[1] - 1) * stride - pad)[:, None] + (high_tap * w_dilation)[None]
    start = np.clip(-(-low // b_dilation), 0, size)
    stop = np.maximum(np.clip(high // b_dilation + 1, 0, size), start)
    return (start.reshape(-1), stop.reshape(-1)), (low - start * b_dilation).reshape(-1)


def lower_convolution(ctx: Context, node: Node) -> None:
    """Plan, gather inputs with their halo and weights, convolve, reduce partial sums."""
    x, w, *metadata = node.inputs
    dtype = "f8" if metadata else x.dtype
    lhs, rhs, out = node.attrs["lhs"], node.attrs["rhs"], node.attrs["out"]
    feature_groups, batch_groups = node.attrs["groups"], node.attrs["batch_groups"]
    groups = feature_groups * batch_groups
    window = node.attrs.get("window", ())
    nd = len(window)
    o_names: list[Name] = [("o", i) for i in range(nd)]
    s_names: list[Name] = [("s", i) for i in range(nd)]
    k_names: list[Name] = [("k", i) for i in range(nd)]
    size: dict[Name, int] = {
        "g": groups,
        "b": x.shape[lhs[0]] // batch_groups,
        "c": w.shape[rhs[1]],
        "n": w.shape[rhs[0]] // groups,
    }
    for i in range(nd):
        size[("s", i)], size[("k", i)] = x.shape[lhs[2 + i]], w.shape[rhs[2 + i]]
        size[("o", i)] = node.out.shape[out[2 + i]]
    # Gradients of weights convolve over the batch: there "b" is the innermost dimension, and stays it. (Quarters have
    # no gradients.)
    swapped = inner_is(ctx, x, (lhs[0],)) and not metadata
    product = convolution_product(node, ctx.options, swapped)
    sums = product.partials

    def names_of(dims: tuple[int, ...], first: Name, second: Name, rest: list[Name], grouped: int) -> list[Name]:
        """Names of an operand's dimensions in its own order; the grouped one is two: group, then what is left."""
        by_dim: dict[int, list[Name]] = {dims[0]: [first], dims[1]: [second]}
        if groups > 1 and grouped >= 0:
            by_dim[dims[grouped]].insert(0, "g")
        by_dim.update({dims[2 + i]: [r] for i, r in enumerate(rest)})
        return [name for d in sorted(by_dim) for name in by_dim[d]]

    x_dims = names_of(lhs, "b", "c", s_names, 0 if batch_groups > 1 else 1)
    w_dims = names_of(rhs, "n", "c", k_names, 0)
    y_dims = names_of(out, "b", "n", o_names, 1)
    head: list[Name] = ["g"] if groups > 1 else []
    x_order: list[Name] = ["c", *s_names, "b"] if swapped else ["b", *s_names, "c"]
    w_order: list[Name] = ["c", *k_names, "n"] if swapped else [*k_names, "c", "n"]
    y_order: list[Name] = [*o_names, "b", "n"] if swapped else ["b", *o_names, "n"]
    options = []
    for plan in plans(product, ctx.target, ctx.options["available_memory_proportion"]):
        grid = Grid(_cuts(ctx, plan, product, size))
        others, firsts = _halos(grid, size, window)
        lx = grid.layout(x_dims, [size[d] for d in x_dims], [*head, *x_order], others)
        lw = grid.layout(w_dims, [size[d] for d in w_dims], [*head, *w_order])
        options.append((plan, [(x, lx), (w, lw)], (grid, others, firsts)))
    plan, wanted, (grid, others, firsts) = choose(ctx, node, options)
    xx, ww = (ctx.need(value, layout) for value, layout in wanted)
    partial, depth = grid.partial(["c", *k_names], y_dims, [size[d] for d in y_dims], [*head, *y_order])
    var = ctx.var(partial, 2 if sums == "f16" else 4)
    flat = grid.flat
    sizes = [grid.extent([name]) for name in ("g", "b", "c", "n")]
    columns: list[Any] = []
    params: list[int] = []
    for i in range(nd):
        start, stop = others[("s", i)][1]
        by = [("o", i), ("k", i)]
        columns += [grid.spread(by, stop - start), grid.extent([("o", i)]), grid.extent([("k", i)])]
        columns.append(grid.spread(by, firsts[i]))
        _, stride, _, _, w_dilation, b_dilation, reversed_ = window[i]
        params += [stride, w_dilation, b_dilation, int(reversed_)]
    if metadata:
        emit_product(ctx, flat, sizes, columns, params, plan.method, [xx.var, ww.var], metadata, var)
    else:
        params = [nd, DTYPE_NUMBER[dtype], int(swapped), *params, METHODS.index(plan.method), DTYPE_NUMBER[sums]]
        columns = [flat, *sizes, *columns, Offset(xx.var, flat), Offset(ww.var, flat), Offset(var, flat)]
        ctx.compute([RawGroup(registry.CONV, len(flat), params, columns)], [xx.var, ww.var], [var])
    ctx.located[node.out] = finish(ctx, Located(var, partial), depth, sums, node.out)


def _cuts(ctx: Context, plan: Plan, product: Product, size: dict[Name, int]) -> dict[Name, Cut]:
    """Intervals of each name. Output channels come last: the two tiles of a pair then want the same inputs."""
    nd, parts = len(product.outs), plan.parts
    n_grain, c_grain = grains(product.dtype, product.partials, ctx.target)
    cuts: dict[Name, Cut] = {"g": even(size["g"], parts.groups), "b": even(size["b"], parts.batch)}
    for i in range(nd):
        count = parts.outer if i == 0 else parts.inner if i == nd - 1 else 1
        cuts[("o", i)] = even(size[("o", i)], count)
    cuts["c"] = even(size["c"], parts.ic, c_grain)
    for i in range(nd):
        cuts[("k", i)] = even(size[("k", i)], parts.taps if i == 0 else 1)
    cuts["n"] = even(size["n"], parts.oc, n_grain)
    return cuts


def _halos(grid: Grid, size: dict[Name, int], window: Any) -> tuple[dict[Name, Other], list[Ints]]:
    """The inputs that the grid's outputs and taps read, by dimension; and where each block's first tap stands."""
    others: dict[Name, Other] = {}
    firsts = []
    for i, each in enumerate(window):
        by: tuple[Name, ...] = (("o", i), ("k", i))
        cut, first = halo(grid.cuts[by[0]], grid.cuts[by[1]], size[("s", i)], each)
        others[("s", i)] = (by, cut)
        firsts.append(first)
    return others, firsts
