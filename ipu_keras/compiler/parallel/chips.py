"""The weight update over several chips: each node on the chip that has the weights, with links between.

A node goes where its largest operand is. A state that no stage has (an optimizer's slot) goes where it is first used,
with one that is somewhere. Scalars that all chips want (a step count, a norm) are worked out on one and sent to the
others.
"""

from __future__ import annotations

from ipu_keras.compiler.passes.regions import own_regions
from ipu_keras.graph.ir import Graph, Node, Value

__all__ = ["LINK", "spread_over_chips"]

LINK = "link"
"""Opcode of a value that goes to another chip; attribute `chip`."""


def spread_over_chips(graph: Graph, known: dict[Value, int], homes: dict[int, Value]) -> dict[Value, int]:
    """Give every value of a graph a chip, and put links where operands are on others, in place.

    Args:
        graph: not fused.
        known: chip of each parameter that has one; the others get theirs here.
        homes: by number of an output, the parameter whose new value it is: it ends on that parameter's chip.

    Returns:
        The chip of every parameter and of every result.
    """
    chip = dict(known)
    free = _free(graph)
    # A broadcast is made on each chip that wants it, of what is sent there.
    free |= {node for node in graph.nodes if node.op == "broadcast"}
    bound = [node for node in graph.nodes if node not in free]
    for _ in range(3):
        for node in bound:
            _settle(node, chip, free)
        for node in reversed(bound):
            # What a state is scaled by first says nothing: where the result is wanted, the state is, too.
            at = next((chip[v] for v in node.results if v in chip and v.size > 1), None)
            if at is not None:
                for value in node.inputs:
                    if value.size > 1 and value.node not in free:
                        chip.setdefault(value, at)
    for node in graph.nodes:
        if node not in free:
            for value in [*node.inputs, *node.results]:
                if value.node not in free:
                    chip.setdefault(value, next((chip[v] for v in node.inputs if v in chip), 0))
    for param in graph.params:
        chip.setdefault(param, 0)
    _link(graph, chip, free, homes)
    return chip


def _free(graph: Graph) -> set[Node]:
    """Nodes made of constants only: every chip has its own."""
    free: set[Node] = set()
    for node in graph.nodes:
        if all(v.node in free for v in node.inputs):
            free.add(node)
    return free


def _settle(node: Node, chip: dict[Value, int], free: set[Node]) -> None:
    """A node's chip, if its operands say it; arrays among them that are nowhere yet come there, too.

    What every chip makes for itself says nothing: weights of one shape share it.
    """
    placed = [v for v in node.inputs if v in chip and v.node not in free]
    if not placed:
        return
    at = chip[max(placed, key=lambda v: v.size)]
    arrays = [v for v in node.inputs if v.size > 1 and v not in chip and v.node not in free]
    if any(v.size > 1 for v in placed) or not arrays:
        for value in node.results:
            chip[value] = at
        for value in arrays:
            chip[value] = at


def _link(graph: Graph, chip: dict[Value, int], free: set[Node], homes: dict[int, Value]) -> None:
    nodes: list[Node] = []
    moved: dict[tuple[Value, int], Value] = {}

    def on(value: Value, at: int) -> Value:
        """The value on a chip."""
        if value.node in free:
            return own(value, at)
        if chip[value] == at:
            return value
        if (value, at) not in moved:
            node = Node(LINK, [value], [(value.shape, value.dtype)], {"chip": at}, value.node.where)
            nodes.append(node)
            moved[value, at] = node.out
            chip[node.out] = at
        return moved[value, at]

    def own(value: Value, at: int) -> Value:
        """A chip's own copy of what is made of constants, or of a broadcast."""
        if (value, at) not in moved:
            node = value.node
            twin = Node(
                node.op, [on(v, at) for v in node.inputs], [(v.shape, v.dtype) for v in node.results],
                own_regions(node.attrs), node.where, node.name,
            )  # fmt: skip
            nodes.append(twin)
            for old, new in zip(node.results, twin.results, strict=True):
                moved[old, at] = new
                chip[new] = at
        return moved[value, at]

    for node in graph.nodes:
        if node not in free:
            # A node without results (an element for the host's queue) is where what it takes is.
            at = chip[node.results[0]] if node.results else chip.get(node.inputs[0], 0)
            node.inputs = [on(v, at) for v in node.inputs]
            nodes.append(node)
    outputs = []
    for o, value in enumerate(graph.outputs):
        home = homes.get(o)
        at = chip[home] if home is not None else chip.get(value, 0)
        outputs.append(on(value, at))
    graph.nodes, graph.outputs = nodes, outputs
