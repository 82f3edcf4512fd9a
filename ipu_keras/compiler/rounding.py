"""How each node's fp16 results are rounded, and by whose random bits.

A node says it by `ipu_keras.scopes.stochastic_rounding`, which opens a name scope, and else the program's option. For
replicas that shall stay equal, a value is *common* if all replicas hold the same one: they draw the same random bits
for it. Weights are common as long as what updates them is; what is streamed in is not, a sum over all replicas is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ipu_keras.graph.ir import Graph, Node, Value
from ipu_runtime.rounding import COMMON, NEAREST, STOCHASTIC

__all__ = ["mark_common", "partials_of", "rounding_of", "scope_says"]

ROUND, PARTIALS = "IPUROUND", "IPUPARTIALS"
"""Name scopes ``IPUROUND.1.`` and ``IPUPARTIALS.16.``: whether to round at random; bits of the partial sums."""

_SAID = {name: re.compile(rf"{name}\.(\d+)\.") for name in (ROUND, PARTIALS)}

OWN = ("replica-id", "dequeue", "all-reduce")
"""What gives each replica its own value."""


def scope_says(name: str, where: str) -> int | None:
    """The number of the innermost scope of a kind that an instruction's op_name names.

    Args:
        name: ROUND or PARTIALS.
        where: the op_name.
    """
    if name not in where:
        return None
    found = _SAID[name].findall(where)
    return int(found[-1]) if found else None


def rounding_of(node: Node, option: str) -> int:
    """How a node rounds: a number of `ipu_runtime.rounding`.

    Args:
        node: which.
        option: "stochastic_rounding" of the program.
    """
    said = scope_says(ROUND, node.where)
    if said == 0 or (said is None and option == "off"):
        return NEAREST
    if node.attrs.get("common"):
        return COMMON
    return NEAREST if said is None and option == "identical" else STOCHASTIC


def partials_of(node: Node, option: str) -> str:
    """In which dtype a product adds up: "float" or "half".

    Args:
        node: a dot or convolution.
        option: of the program.
    """
    said = scope_says(PARTIALS, node.where)
    return option if said is None else "half" if said == 16 else "float"


def mark_common(graph: Graph, states: Mapping[int, int | None], replicas: int, own: str) -> None:
    """Gives the attribute `common` to each node whose operands are the same on all replicas.

    Args:
        graph: before element-wise chains are fused.
        states: entry-parameter index -> index of the output that is its new value.
        replicas: of the program.
        own: name of a state that each replica has its own value of.
    """
    common = {p for i, p in enumerate(graph.params) if i in states and p.node.name != own}
    while True:
        known = set(common)
        for node in graph.nodes:
            if _is_common(node, known, replicas):
                known.update(node.results)
        # A state that gets each replica's own value has been its own from the second step on.
        lost = {
            graph.params[i]
            for i, output in states.items()
            if output is not None and graph.params[i] in common and graph.outputs[output] not in known
        }
        if not lost:
            break
        common -= lost
    for node in graph.nodes:
        if node.results and node.results[0] in known:
            _mark(node)


def _is_common(node: Node, known: set[Value], replicas: int) -> bool:
    if node.op == "all-reduce" and all(len(group) == replicas for group in node.attrs["groups"] or [range(replicas)]):
        return True
    # A loop or branch of common values takes the same turns everywhere, if nothing in it is a replica's own.
    inside = (n for region in node.attrs.get("regions", ()) for n in _all_nodes(region))
    return all(v in known for v in node.inputs) and node.op not in OWN and all(n.op not in OWN for n in inside)


def _mark(node: Node) -> None:
    node.attrs = {**node.attrs, "common": True}
    for region in node.attrs.get("regions", ()):
        for inner in _all_nodes(region):
            inner.attrs = {**inner.attrs, "common": True}


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for region in node.attrs.get("regions", ()):
            yield from _all_nodes(region)
