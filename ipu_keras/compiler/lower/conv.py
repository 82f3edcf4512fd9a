"""Lowers convolution, with strides, dilation on both sides, reversed windows, feature and batch groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Ints, even
from ipu_keras.compiler.lower.context import Context, Located, Offset, RawGroup
from ipu_keras.compiler.lower.dot import finish, inner_is
from ipu_keras.compiler.lower.named import Cut, Grid, Name
from ipu_keras.compiler.plan.conv import ConvShape, plan_conv
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER


def _halo(outs: Cut, size: int, window: tuple[Any, ...]) -> tuple[Cut, Ints]:
    """Input intervals that output intervals read, and where each block's first window starts in its dilated block."""
    taps, stride, pad, _, w_dilation, b_dilation, _ = window
    low = outs[0] * stride - pad
    high = (outs[1] - 1) * stride + (taps - 1) * w_dilation - pad
    start = np.clip(-(-low // b_dilation), 0, size)
    stop = np.maximum(np.clip(high // b_dilation + 1, 0, size), start)
    return (start, stop), low - start * b_dilation


def lower_convolution(ctx: Context, node: Node) -> None:
    """Plan, gather inputs with their halo and weights, convolve, reduce partial sums."""
    x, w = node.inputs
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
    shape = ConvShape(
        groups, size["b"], size["c"], size["n"], *(tuple(size[n] for n in ns) for ns in (s_names, o_names, k_names))
    )
    # Gradients of weights convolve over the batch: there "b" is the innermost dimension, and stays it.
    swapped = inner_is(ctx, x, (lhs[0],))
    plan = plan_conv(shape, x.dtype, ctx.target, ctx.options["available_memory_proportion"], swapped)
    g, b, o, n, c = plan.parts
    cuts: dict[Name, Cut] = {"g": even(groups, g), "b": even(size["b"], b)}
    for i in range(nd):
        cuts[("o", i)] = even(size[("o", i)], o if i == 0 else 1)
    cuts["n"], cuts["c"] = even(size["n"], n), even(size["c"], c)
    grid = Grid(cuts)

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
    s_other: dict[Name, tuple[Name | None, Cut]] = {}
    firsts = []
    for i in range(nd):
        cut, first = _halo(cuts[("o", i)], size[("s", i)], window[i])
        s_other[("s", i)] = (("o", i), cut)
        firsts.append(first)
    whole: dict[Name, tuple[Name | None, Cut]] = {
        k: (None, (np.zeros(1, np.int64), np.full(1, size[k], np.int64))) for k in k_names
    }
    x_order = ["c", *s_names, "b"] if swapped else ["b", *s_names, "c"]
    w_order = ["c", *k_names, "n"] if swapped else [*k_names, "c", "n"]
    y_order = [*o_names, "b", "n"] if swapped else ["b", *o_names, "n"]
    lx = grid.layout(x_dims, [size[d] for d in x_dims], [*head, *x_order], s_other)
    lw = grid.layout(w_dims, [size[d] for d in w_dims], [*head, *w_order], whole)
    xx, ww = ctx.need(x, lx), ctx.need(w, lw)
    partial, depth = grid.partial(["c"], y_dims, [size[d] for d in y_dims], [*head, *y_order])
    var = ctx.var(partial, 4)
    flat = grid.flat
    columns: list[Any] = [flat, *(grid.extent([name]) for name in ("g", "b", "c", "n"))]
    params = [nd, DTYPE_NUMBER[x.dtype], int(swapped)]
    for i in range(nd):
        start, stop = s_other[("s", i)][1]
        columns += [grid.spread(("o", i), stop - start), grid.extent([("o", i)]), np.array([size[("k", i)]])]
        columns.append(grid.spread(("o", i), firsts[i]))
        _, stride, _, _, w_dilation, b_dilation, reversed_ = window[i]
        params += [stride, w_dilation, b_dilation, int(reversed_)]
    columns += [Offset(xx.var, flat), Offset(ww.var, flat), Offset(var, flat)]
    ctx.compute([RawGroup(registry.CONV, len(flat), params, columns)], [xx.var, ww.var], [var])
    ctx.located[node.out] = finish(ctx, Located(var, partial), depth, "f32", node.out)
