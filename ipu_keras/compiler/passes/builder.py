"""Builds a graph from another: inputs are substituted, equal nodes shared, rules rewrite nodes as they are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_keras.compiler.rounding import PARTIALS, ROUND, scope_says
from ipu_keras.graph.ir import DTYPES, EFFECTS, Graph, Node, Value, has_effects

Rule = Callable[["Builder", Node], "Value | list[Value] | None"]

IMPURE = {"accumulate", *EFFECTS, "rng", "infeed", "outfeed", "custom-call", "rng-get-and-update-state"}


class Builder:
    """Adds nodes to a new graph.

    Args:
        name: the graph's name.
        rules: by opcode, functions that may replace a node (return its value, or all its values) before it is added.
    """

    def __init__(self, name: str, rules: dict[str, list[Rule]]) -> None:
        self.graph = Graph(name)
        self.rules = rules
        self.seen: dict[Any, Node] = {}

    def add(
        self,
        op: str,
        inputs: list[Value],
        shape: tuple[int, ...],
        dtype: str,
        attrs: dict[str, Any] | None = None,
        where: str = "",
    ) -> Value:
        """Add a node with one result, or return an equal value that is there."""
        return self.add_node(Node(op, inputs, [(shape, dtype)], attrs, where))[0]

    def add_node(self, node: Node) -> list[Value]:
        """Add a node unless a rule rewrites it or an equal one is there; returns its results."""
        for rule in self.rules.get(node.op, ()):
            made = rule(self, node)
            if made is not None:
                return made if isinstance(made, list) else [made]
        if node.op not in IMPURE and not has_effects(node):
            key = _key(node)
            known = self.seen.get(key)
            if known is not None:
                return known.results
            self.seen[key] = node
        self.graph.nodes.append(node)
        return node.results

    def constant(self, value: Any, dtype: str, where: str = "") -> Value:
        """A constant of `dtype`."""
        array = np.asarray(value, DTYPES[dtype])
        return self.add("constant", [], array.shape, dtype, {"value": array}, where)


def _freeze(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Graph):
        return id(value)
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    return value


def _key(node: Node) -> Any:
    attrs = tuple((k, _freeze(v)) for k, v in sorted(node.attrs.items())) if node.attrs else ()
    types = tuple((v.shape, v.dtype) for v in node.results)
    # What a scope says of rounding makes two results of what looks like one.
    said = tuple(scope_says(name, node.where) for name in (ROUND, PARTIALS)) if "IPU" in node.where else ()
    return (node.op, tuple(id(v) for v in node.inputs), types, attrs, said)


def rebuild(graph: Graph, rules: dict[str, list[Rule]]) -> Graph:
    """A new graph: rules and sharing applied node by node, what no output needs left out."""
    builder = Builder(graph.name, rules)
    builder.graph.params = list(graph.params)
    env: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = [env.get(v, v) for v in node.inputs]
        copy = Node(node.op, inputs, [(v.shape, v.dtype) for v in node.results], node.attrs, node.where, node.name)
        for old, new in zip(node.results, builder.add_node(copy), strict=True):
            env[old] = new
    builder.graph.outputs = [env.get(v, v) for v in graph.outputs]
    return prune(builder.graph)


def prune(graph: Graph) -> Graph:
    """Drop the nodes that no output and no effect depends on, in place."""
    live = {v.node for v in graph.outputs} | {node for node in graph.nodes if has_effects(node)}
    kept = []
    for node in reversed(graph.nodes):
        if node in live:
            kept.append(node)
            live.update(v.node for v in node.inputs)
    graph.nodes = kept[::-1]
    return graph


def const_of(value: Value) -> np.ndarray | None:
    """The array of a constant, looking through a broadcast of a scalar (then the scalar); None otherwise."""
    node = value.node
    if node.op == "broadcast" and node.inputs[0].shape == ():
        node = node.inputs[0].node
    if node.op == "constant":
        array: np.ndarray = node.attrs["value"]
        return array
    return None
