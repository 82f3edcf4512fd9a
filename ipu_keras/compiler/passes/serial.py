"""Serial splits: a product that has no plan within availableMemoryProportion is done piece by piece, in a loop.

Each turn takes a piece of one operand (rows, output channels, or batch), multiplies, and puts the result in its place;
the loop holds the code once, and the operand's and the partial sums' memory shrinks. Sources: hardware.md 4 (poplibs:
the serial part of outChanSplit; there input channels can be split so, too).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipu_keras.compiler.passes import run_passes
from ipu_keras.compiler.passes.builder import Builder, prune
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.compiler.plan.asked import convolution_product, dot_dims, dot_products
from ipu_keras.compiler.plan.product import Product, has_plan, plans
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.target import Target
from ipu_runtime.codelets.copy_model import rearrange_cycles

PIECES = 64
"""Pieces of a serial split at most: code does not shrink with more, and each turn has its exchange and syncs."""

LOOP_CYCLES = 43
"""Of a loop counter. Source: hardware.md 3.9 (ForLoopCounter)."""


@dataclass(frozen=True)
class Cut:
    """A way to do a product in pieces.

    Attributes:
        operand, dim: which operand is cut, and along which of its dimensions.
        out_dim: the result's dimension that this is.
        products: the piece's product, in the forms in which it can be planned.
        pieces: how many.
    """

    operand: int
    dim: int
    out_dim: int
    products: tuple[Product, ...]
    pieces: int


def split_serially(
    graph: Graph, target: Target, options: Mapping[str, Any], own: Mapping[Node, Mapping[str, Any]] | None = None
) -> Graph:
    """The graph with loops in place of the products that are too large to be done at once.

    Args:
        graph: simplified; it may be fused.
        target: the chip.
        options: of the compiler.
        own: more options, over these, of some nodes of the graph and of what they call.

    Returns:
        The same graph if there are none.
    """
    asked = {node: {**options, **own[node]} if own and node in own else options for node in graph.nodes}
    cuts = {node: cut for node in graph.nodes if (cut := cut_of(node, target, asked[node])) is not None}
    regions = {
        node: new
        for node in graph.nodes
        if (old := node.attrs.get("regions"))
        and (new := tuple(split_serially(region, target, asked[node]) for region in old)) != old
    }
    if not cuts and not regions:
        return graph
    b = Builder(graph.name, {})
    b.graph.params = list(graph.params)
    env: dict[Value, Value] = {}
    for node in graph.nodes:
        attrs = {**node.attrs, "regions": regions[node]} if node in regions else node.attrs
        types = [(v.shape, v.dtype) for v in node.results]
        copy = Node(node.op, [env.get(v, v) for v in node.inputs], types, attrs, node.where, node.name)
        made = [_loop(b, copy, cuts[node])] if node in cuts else b.add_node(copy)
        env.update(zip(node.results, made, strict=True))
    b.graph.outputs = [env.get(v, v) for v in graph.outputs]
    return prune(b.graph)


def cut_of(node: Node, target: Target, options: Mapping[str, Any]) -> Cut | None:
    """The cheapest serial split of a product whose every plan needs too much memory.

    Args:
        node: any.
        target: the chip.
        options: of the compiler.

    Returns:
        None if there is a plan without, or none with one.
    """
    if not _too_large(node, target, options):
        return None
    best, least = None, np.inf
    for cut in _cuts(node, options):
        found = [p for form in cut.products for p in plans(form, target, options["available_memory_proportion"])]
        cycles = [p.cycles for p in found if p.fits]
        if cycles:
            moved = (node.inputs[cut.operand].nbytes + node.out.nbytes) // (cut.pieces * target.tiles)
            copies = 2 * float(rearrange_cycles(np.int64(moved), node.out.itemsize))
            cost = cut.pieces * (min(cycles) + copies + LOOP_CYCLES + 3 * target.sync_cycles)
            best, least = (cut, cost) if cost < least else (best, least)
    return best


def _too_large(node: Node, target: Target, options: Mapping[str, Any]) -> bool:
    """Whether a node is a product without a plan in memory; of quarters the planner's last choice stays."""
    share = options["available_memory_proportion"]
    if node.op not in ("dot", "convolution") or len(node.inputs) != 2 or not node.out.size or not share:
        return False
    forms = dot_products(node, options) if node.op == "dot" else (convolution_product(node, options),)
    return not any(has_plan(form, target, share) for form in forms)


def _cuts(node: Node, options: Mapping[str, Any]) -> Iterator[Cut]:
    """Splits into equal pieces, fewest first: of a dot's free dimensions, of a convolution's batch and outputs."""
    if node.op == "dot":
        dims, at = dot_dims(node), len(node.attrs["batch"][0])
        plain, other = dot_products(node, options)
        for operand, free in ((0, dims["m"][0]), (1, dims["n"][1])):
            for dim in free:
                for n in _counts(node.inputs[operand].shape[dim]):
                    forms = (_less(plain, n, operand == 0), _less(other, n, operand == 1))
                    yield Cut(operand, dim, at, forms, n)
                at += 1
        return
    product = convolution_product(node, options)
    (batch, *_), (features, *_), (out_batch, out_features, *_) = (node.attrs[k] for k in ("lhs", "rhs", "out"))
    if node.attrs["batch_groups"] == 1:
        for n in _counts(product.batch):
            yield Cut(0, batch, out_batch, (replace(product, batch=product.batch // n),), n)
    if product.groups == 1:
        for n in _counts(product.oc):
            yield Cut(1, features, out_features, (replace(product, oc=product.oc // n),), n)


def _less(p: Product, pieces: int, rows: bool) -> Product:
    """A matrix product with fewer rows or output channels."""
    if not rows:
        return replace(p, oc=p.oc // pieces)
    return replace(p, ins=(p.ins[0] // pieces,), outs=(p.outs[0] // pieces,))


def _counts(size: int) -> list[int]:
    return [n for n in range(2, min(PIECES, size) + 1) if size % n == 0]


def _loop(b: Builder, node: Node, cut: Cut) -> Value:
    """out = 0; for each piece: put(out, product(piece, the other operand)).

    Pieces are the outermost dimension of what is cut and of the result, so that each lies in one run on a tile.
    """
    ops, whole = Ops(b, node.where), node.out
    rest = node.inputs[1 - cut.operand]
    length = whole.shape[cut.out_dim] // cut.pieces
    shape = tuple(length if d == cut.out_dim else n for d, n in enumerate(whole.shape))

    def turn(inside: Ops, number: Value, out: Value, apart: Value, other: Value) -> list[Value]:
        zero = inside.const(0, "s32")
        taken = inside.at(apart, [number, *[zero] * (len(apart.shape) - 1)], (1, *apart.shape[1:]))
        part = inside.reshape(taken, *apart.shape[1:])
        operands = [part, other] if cut.operand == 0 else [other, part]
        attrs = {**node.attrs, "serial": cut.pieces}
        product = inside.b.add(node.op, operands, shape, whole.dtype, attrs, node.where)
        put = inside.put(out, inside.reshape(product, 1, *shape), [number, *[zero] * len(shape)])
        return [put, apart, other]

    first = [
        ops.full(0, (cut.pieces, *shape), whole.dtype),
        _apart(ops, node.inputs[cut.operand], cut.dim, cut.pieces),
        rest,
    ]
    out, *_ = ops.loop(cut.pieces, first, turn)
    body, condition = out.node.attrs["regions"]
    out.node.attrs = {"regions": (run_passes(body), run_passes(condition)), "trips": cut.pieces}
    back = [*range(1, cut.out_dim + 1), 0, *range(cut.out_dim + 1, len(shape) + 1)]
    return ops.reshape(ops.transpose(out, back), *whole.shape)


def _apart(ops: Ops, x: Value, dim: int, pieces: int) -> Value:
    """[pieces, ...]: a dimension in equal pieces, which become the outermost dimension."""
    halved = ops.reshape(x, *x.shape[:dim], pieces, x.shape[dim] // pieces, *x.shape[dim + 1 :])
    return ops.transpose(halved, [dim, *(d for d in range(len(halved.shape)) if d != dim)])
