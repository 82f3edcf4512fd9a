"""Runs the passes inside loops and branches, after what is known outside has been carried in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.expand import expand
from ipu_keras.compiler.passes.simplify import simplify
from ipu_keras.graph.ir import Graph, Node, Value


def clone(graph: Graph, known: dict[int, tuple[str, np.ndarray]] | None = None) -> Graph:
    """A copy with values of its own; parameters in `known` are still there but read as constants."""
    env: dict[Value, Value] = {}
    copy = Graph(graph.name)
    for i, param in enumerate(graph.params):
        fresh = Node("parameter", [], [(param.shape, param.dtype)], name=param.node.name).out
        copy.params.append(fresh)
        env[param] = fresh
        if known and i in known:
            dtype, value = known[i]
            node = Node("constant", [], [(param.shape, dtype)], {"value": value})
            copy.nodes.append(node)
            env[param] = node.out
    for node in graph.nodes:
        twin = Node(
            node.op, [env[v] for v in node.inputs], [(v.shape, v.dtype) for v in node.results], own_regions(node.attrs),
            node.where, node.name,
        )  # fmt: skip
        copy.nodes.append(twin)
        env.update(zip(node.results, twin.results, strict=True))
    copy.outputs = [env[v] for v in graph.outputs]
    return copy


def own_regions(attrs: dict[str, Any]) -> dict[str, Any]:
    """A node's attributes for a copy of it: bodies of loops and branches are values of a node's own.

    Args:
        attrs: of the node.
    """
    if "regions" not in attrs:
        return dict(attrs)
    return {**attrs, "regions": tuple(clone(region) for region in attrs["regions"])}


def _constant(value: Value) -> np.ndarray | None:
    return value.node.attrs["value"] if value.node.op == "constant" and value.size <= 64 else None


def trips(node: Node) -> int | None:
    """How often a loop runs, where it counts from a constant to a constant; None where that is not to be seen."""
    test = node.attrs["regions"][1].outputs[0].node
    tests = test.inputs if test.op == "and" else [test.out]
    found = [n for n in (_count(node, t) for t in tests) if n is not None]
    return min(found) if found else None


def _count(node: Node, flag: Value) -> int | None:
    body, cond = node.attrs["regions"]
    test = flag.node
    if test.op != "compare" or test.attrs["direction"] not in ("lt", "le") or test.inputs[0] not in cond.params:
        return None
    counter = cond.params.index(test.inputs[0])
    bound = _bound(test.inputs[1], node, cond)
    start = _constant(node.inputs[counter])
    step = body.outputs[counter].node
    if bound is None or start is None or step.op != "add":
        return None
    by = [_constant(v) for v in step.inputs if v is not body.params[counter]]
    if body.params[counter] not in step.inputs or len(by) != 1 or by[0] is None or int(by[0]) <= 0:
        return None
    distance = int(bound) - int(start) + (1 if test.attrs["direction"] == "le" else 0)
    return max(0, -(-distance // int(by[0])))


def _bound(value: Value, node: Node, cond: Graph) -> Any:
    if value in cond.params:
        i = cond.params.index(value)
        body = node.attrs["regions"][0]
        return _constant(node.inputs[i]) if body.outputs[i] is body.params[i] else None
    return _constant(value)


def run_regions(graph: Graph, run: Callable[[Graph], Graph]) -> Graph:
    """Replace the bodies of loops and branches by clones that all passes have run on.

    Args:
        graph: simplified, not fused.
        run: runs all passes on a body.
    """
    for node in graph.nodes:
        if node.op not in ("while", "conditional") or "regions" not in node.attrs:
            continue
        attrs = dict(node.attrs)
        attrs["regions"] = tuple(simplify(expand(clone(r))) for r in attrs["regions"])
        if node.op == "while":
            node.attrs = attrs
            body, cond = attrs["regions"]
            known = {}
            for i, (param, out) in enumerate(zip(body.params, body.outputs, strict=True)):
                value = _constant(node.inputs[i])
                if param is out and value is not None:
                    known[i] = (param.dtype, value)
            count = trips(node)
            body = clone(body, known)
            for i in known:
                body.outputs[i] = body.params[i]
            attrs["regions"] = (run(body), run(clone(cond, known)))
            attrs["trips"] = count
        else:
            attrs["regions"] = tuple(run(clone(r)) for r in attrs["regions"])
            attrs["zero"] = np.zeros((), np.int32)
        attrs.pop("region", None)
        node.attrs = attrs
    return graph
