"""Regions rewritten: conditionals of many branches as nested ones of two, `map` as the operations of its region."""

from __future__ import annotations

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.elementwise import ELEMENTWISE
from ipu_keras.graph.ir import Graph, Node, Value


def rewrite_switch(b: Builder, node: Node) -> list[Value] | None:
    """Branch 0 where the index is 0, else the others with an index of one less; the last one is for all the rest."""
    branches: tuple[Graph, ...] = node.attrs.get("regions") or (node.attrs["region"],)
    choice, *rest = node.inputs
    if choice.dtype == "pred" or len(branches) == 2:
        return None
    types = [(v.shape, v.dtype) for v in node.results]
    if len(branches) == 1:
        return _inline(b, branches[0], rest)
    ops = Ops(b, node.where)
    first, others = branches[0], branches[1:]
    mine = len(first.params)
    inner = Graph("others")
    inner.params = [Node("parameter", [], [(v.shape, v.dtype)]).out for v in [choice, *rest[mine:]]]
    nested = Node("conditional", inner.params, types, {"region": others[0], "regions": others}, node.where)
    inner.nodes, inner.outputs = [nested], list(nested.results)
    inputs = [choice, *rest[:mine], ops.sub(choice, 1), *rest[mine:]]
    return b.add_node(Node("conditional", inputs, types, {"region": first, "regions": (first, inner)}, node.where))


def _inline(b: Builder, region: Graph, arguments: list[Value]) -> list[Value]:
    """A region's nodes, added here."""
    env: dict[Value, Value] = dict(zip(region.params, arguments, strict=True))
    for node in region.nodes:
        types = [(v.shape, v.dtype) for v in node.results]
        made = b.add_node(Node(node.op, [env[v] for v in node.inputs], types, node.attrs, node.where, node.name))
        env.update(zip(node.results, made, strict=True))
    return [env[v] for v in region.outputs]


def scalar_body(region: Graph) -> bool:
    """Whether a region is made of element-wise operations only."""
    return all(n.op in ELEMENTWISE or n.op == "constant" for n in region.nodes)


def whole_arrays(b: Builder, region: Graph, inputs: list[Value], shape: tuple[int, ...], where: str) -> list[Value]:
    """A scalar region's operations, on arrays of one shape."""
    env: dict[Value, Value] = dict(zip(region.params, inputs, strict=True))
    for inner in region.nodes:
        dtype = inner.out.dtype
        if inner.op == "constant":
            value = b.constant(inner.attrs["value"], dtype, where)
            env[inner.out] = b.add("broadcast", [value], shape, dtype, {"dims": ()}, where) if shape else value
        else:
            env[inner.out] = b.add(inner.op, [env[v] for v in inner.inputs], shape, dtype, inner.attrs, where)
    return [env[v] for v in region.outputs]


def rewrite_map(b: Builder, node: Node) -> list[Value] | None:
    """The region's scalar operations, on whole arrays."""
    region: Graph = node.attrs["region"]
    if not scalar_body(region):
        return None
    return whole_arrays(b, region, node.inputs, node.out.shape, node.where)
