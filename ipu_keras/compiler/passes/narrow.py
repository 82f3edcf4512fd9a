"""64-bit integers from the host come to the tiles as 32-bit ones, as the chip's front end takes them.

Ids, labels and positions in NumPy's default dtype would cost twice the memory and, in arithmetic, many times the
cycles. The engine checks each value: what does not fit is an error, it does not wrap. Arithmetic inside a program
is done in 32 bits where its operands and results surely fit, whatever the program is fed; else in the width that it is
written in.
"""

from __future__ import annotations

from collections.abc import Container

from ipu_keras.compiler.passes.bounds import Bounds, picks
from ipu_keras.compiler.passes.builder import Builder, prune
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value

NARROW = {"s64": "s32", "u64": "u32"}

FITS = (-(2**31), 2**31 - 1)

SAME_IN_32 = frozenset(
    "abs add broadcast clamp compare concatenate convert divide dynamic-slice dynamic-update-slice gather maximum "
    "minimum multiply negate pad remainder reshape reverse select sign slice subtract transpose".split()
)
"""Operations that give the same number in 32 bits, if their operands and it fit."""

MOVES = frozenset(("broadcast", "reshape", "transpose", "slice", "reverse"))

INDICES = {"gather": slice(1, None), "dynamic-slice": slice(1, None), "dynamic-update-slice": slice(2, None)}
"""Operands that only say where: they may be narrow beside data that is not."""


def narrow_feeds(graph: Graph, states: Container[int]) -> dict[int, str]:
    """Give parameters of 64-bit integers that are streamed in 32 bits, in place.

    Args:
        graph: an entry computation.
        states: parameters that stay on the tiles: those keep their width.

    Returns:
        By parameter the dtype of its array on the host.
    """
    wide: dict[int, str] = {}
    converts = []
    for i, param in enumerate(graph.params):
        if i in states or param.dtype not in NARROW:
            continue
        wide[i] = param.dtype
        node = Node("parameter", [], [(param.shape, NARROW[param.dtype])], name=param.node.name)
        convert = Node("convert", [node.out], [(param.shape, param.dtype)], where=param.node.name)
        for user in graph.nodes:
            user.inputs = [convert.out if v is param else v for v in user.inputs]
        graph.outputs = [convert.out if v is param else v for v in graph.outputs]
        graph.params[i] = node.out
        converts.append(convert)
    graph.nodes[:0] = converts
    return wide


def narrow_values(graph: Graph) -> Graph:
    """Do in 32 bits what is written in 64 and surely fits: labels against a range of classes, an argmax.

    Args:
        graph: a graph or region without element-wise chains; what it is given is taken to be anything.

    Returns:
        An equivalent graph.
    """
    if not any(v.dtype in NARROW for node in graph.nodes for v in (*node.inputs, *node.results)):
        return graph
    work = _Narrowing(graph.name)
    work.b.graph.params = list(graph.params)
    for node in graph.nodes:
        work.add(node)
    work.b.graph.outputs = [work.now.get(v, v) for v in graph.outputs]
    return prune(work.b.graph)


class _Narrowing:
    """Adds nodes to a new graph; a 64-bit value that has been made in 32 bits has a twin."""

    def __init__(self, name: str) -> None:
        self.b, self.bounds = Builder(name, {}), Bounds()
        self.now: dict[Value, Value] = {}  # old value -> new one
        self.twins: dict[Value, Value] = {}  # new 64-bit value -> the same numbers in 32 bits
        self.clamped: dict[Value, Value] = {}  # new 64-bit value -> in 32 bits, where too large a number is the largest

    def add(self, node: Node) -> None:
        inputs = [self.now.get(v, v) for v in node.inputs]
        copy = Node(node.op, inputs, [(v.shape, v.dtype) for v in node.results], node.attrs, node.where, node.name)
        made = self._narrow(copy) or self._compared(copy) or self.b.add_node(copy)
        self._clamp(copy, made)
        for value in made:
            if value.dtype[0] != "f":
                self.bounds.of(value)  # now, that its operands' are known: a long chain is no deep recursion
        self.now.update(zip(node.results, made, strict=True))

    def _narrow(self, node: Node) -> list[Value] | None:
        """The values of a node that was done in 32 bits; None if it cannot be."""
        at = INDICES.get(node.op, slice(0, 0))
        if node.op in INDICES:
            node.inputs[at] = [self._twin(v) or v for v in node.inputs[at]]
        wide = [v for v in (*node.inputs, *node.results) if v.dtype in NARROW]
        region = node.attrs.get("region")
        known = node.op in SAME_IN_32 or (node.op == "reduce" and region is not None and picks(region))
        if not wide or not known or not all(self._fits(v) for v in wide):
            return None
        inputs = [self._twin(v) if v.dtype in NARROW else v for v in node.inputs]
        if node.op == "convert" and inputs[0] is not None and node.out.dtype in NARROW:
            narrow = [self.b.add("convert", [inputs[0]], node.out.shape, "s32", {}, node.where)]
            if inputs[0].dtype == "s32":
                narrow = [inputs[0]]
        elif any(v is None for v in inputs):
            return None
        else:
            types = [(v.shape, "s32" if v.dtype in NARROW else v.dtype) for v in node.results]
            attrs = node.attrs if region is None else {**node.attrs, "region": _in_32(region)}
            narrow = self.b.add_node(Node(node.op, [v for v in inputs if v], types, attrs, node.where, node.name))
        made = []
        for value, twin in zip(node.results, narrow, strict=True):
            if value.dtype in NARROW:
                again = self.b.add("convert", [twin], value.shape, value.dtype, {}, node.where)
                self.bounds.known[again] = self.bounds.known[twin] = self.bounds.of(value)
                self.twins[again] = twin
                made.append(again)
            else:
                made.append(twin)
        return made

    def _clamp(self, node: Node, made: list[Value]) -> None:
        """Floating-point numbers become integers of either width by clamping: labels, which Keras has cast."""
        if not node.inputs or [v.dtype for v in node.results] != ["s64"]:
            return
        source = node.inputs[0]
        if node.op == "convert" and source.dtype[0] == "f":
            self.clamped[made[0]] = self.b.add("convert", [source], node.out.shape, "s32", {}, node.where)
        elif node.op in MOVES and source in self.clamped:
            copy = Node(node.op, [self.clamped[source]], [(node.out.shape, "s32")], node.attrs, node.where, node.name)
            (self.clamped[made[0]],) = self.b.add_node(copy)

    def _compared(self, node: Node) -> list[Value] | None:
        """What is clamped compares as it did with what is inside of the limits."""
        if node.op != "compare":
            return None
        inputs = []
        for value, other in (node.inputs, node.inputs[::-1]):
            low, high = self.bounds.of(other) if other.dtype == "s64" else FITS
            inside = FITS[0] < low and high < FITS[1]
            inputs.append(self._twin(value) or (self.clamped.get(value) if inside else None))
        if None in inputs:
            return None
        return [self.b.add("compare", [v for v in inputs if v], node.out.shape, "pred", node.attrs, node.where)]

    def _fits(self, value: Value) -> bool:
        low, high = self.bounds.of(value)
        return FITS[0] <= low and high <= FITS[1]

    def _twin(self, value: Value) -> Value | None:
        """A 64-bit value's numbers in 32 bits, if that costs nothing."""
        if value not in self.twins and value.node.op == "constant" and value.dtype in NARROW and self._fits(value):
            array = value.node.attrs["value"]
            self.twins[value] = self.b.constant(array.astype(DTYPES["s32"]), "s32", value.node.where)
        return self.twins.get(value)


def _in_32(region: Graph) -> Graph:
    """A region that picks, for 32-bit values."""
    found, now = Graph(region.name), {}

    def narrow(value: Value) -> tuple[tuple[int, ...], str]:
        return value.shape, "s32" if value.dtype in NARROW else value.dtype

    for param in region.params:
        now[param] = Node("parameter", [], [narrow(param)], name=param.node.name).out
    for node in region.nodes:
        copy = Node(node.op, [now[v] for v in node.inputs], [narrow(v) for v in node.results], node.attrs, node.where)
        found.nodes.append(copy)
        now.update(zip(node.results, copy.results, strict=True))
    found.params, found.outputs = [now[v] for v in region.params], [now[v] for v in region.outputs]
    return found
