"""What a node asks of the planner: the sizes of its product, by its attributes and the options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipu_keras.compiler import rounding
from ipu_keras.compiler.plan.product import Product
from ipu_keras.graph.ir import Node


def partials_of(options: Mapping[str, Any], node: Node, dtype: str) -> str:
    """The dtype of a product's partial sums: fp16 of quarters, and of fp16 where a scope or the options say so."""
    if dtype == "f8":
        return "f16"
    if dtype not in ("f16", "f32"):
        return "s32"
    option = "matmul_partials" if node.op in ("dot", "sparse-dot") else "convolution_partials"
    return "f16" if dtype == "f16" and rounding.partials_of(node, options[option]) == "half" else "f32"


def dot_dims(node: Node) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Dimensions of a dot's operands by kind: batch "b", rows "m" of the first, "n" of the second, summed "k"."""
    a, b = node.inputs[:2]
    (ca, cb), (ba, bb) = node.attrs["contract"], node.attrs["batch"]
    fa = tuple(d for d in range(len(a.shape)) if d not in ca and d not in ba)
    fb = tuple(d for d in range(len(b.shape)) if d not in cb and d not in bb)
    return {"b": (ba, bb), "m": (fa, ()), "n": ((), fb), "k": (ca, cb)}


def dot_products(node: Node, options: Mapping[str, Any]) -> tuple[Product, Product]:
    """A dot as a product of the first operand's rows, and with the operands swapped.

    Args:
        node: a dot; with a third and fourth operand, of quarters.
        options: of the compiler.
    """
    a, b, *metadata = node.inputs
    dtype = "f8" if metadata else a.dtype
    sums = partials_of(options, node, dtype)
    batch, m, n, k = (
        math.prod(a.shape[d] for d in in_a) if in_a else math.prod(b.shape[d] for d in in_b)
        for in_a, in_b in dot_dims(node).values()
    )
    plain = Product(dtype, sums, batch, 1, k, n, (m,), (m,), (1,))
    return plain, replace(plain, oc=m, ins=(n,), outs=(n,))


def convolution_product(node: Node, options: Mapping[str, Any], batch_last: bool = False) -> Product:
    """A convolution's product.

    Args:
        node: a convolution; with a third and fourth operand, of quarters.
        options: of the compiler.
        batch_last: whether its inputs have the batch innermost.
    """
    x, w, *metadata = node.inputs
    dtype = "f8" if metadata else x.dtype
    lhs, rhs, out, window = node.attrs["lhs"], node.attrs["rhs"], node.attrs["out"], node.attrs.get("window", ())
    groups = node.attrs["groups"] * node.attrs["batch_groups"]
    ins, taps, outs = (tuple(v.shape[d] for d in dims[2:]) for v, dims in ((x, lhs), (w, rhs), (node.out, out)))
    plain = all(each[1] <= 2 and each[5] == 1 and not each[6] for each in window)
    return Product(
        dtype, partials_of(options, node, dtype), groups, x.shape[lhs[0]] // node.attrs["batch_groups"],
        w.shape[rhs[1]], w.shape[rhs[0]] // groups, ins, outs, taps, plain, batch_last=batch_last,
    )  # fmt: skip
