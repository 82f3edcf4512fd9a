"""The compiler's own graph: typed SSA over HLO operations, tuples dissolved, each node with a place it came from.

    Graph   parameters, nodes in topological order, outputs
    Node    one operation; its inputs are Values, its results are Values
    Value   one array: shape and dtype

A region (the body of a reduce, say) is a Graph in `node.attrs["region"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "s32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "s64": np.dtype(np.int64),
    "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}
"""HLO's name of each dtype that a tile can hold, with NumPy's."""


class Value:
    """One array in the graph: result `index` of `node`."""

    __slots__ = ("dtype", "index", "node", "shape")

    def __init__(self, node: Node, index: int, shape: tuple[int, ...], dtype: str) -> None:
        self.node, self.index, self.shape, self.dtype = node, index, shape, dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self.itemsize

    def __repr__(self) -> str:
        return f"%{self.node.op}.{self.index}:{self.dtype}{list(self.shape)}"


class Node:
    """One operation: an HLO opcode (or `map`, the fused element-wise chain), inputs, results and attributes."""

    __slots__ = ("attrs", "inputs", "name", "op", "results", "where")

    def __init__(
        self,
        op: str,
        inputs: Iterable[Value],
        types: Iterable[tuple[tuple[int, ...], str]],
        attrs: dict[str, Any] | None = None,
        where: str = "",
        name: str = "",
    ) -> None:
        self.op = op
        self.inputs = list(inputs)
        self.results = [Value(self, i, shape, dtype) for i, (shape, dtype) in enumerate(types)]
        self.attrs = attrs if attrs is not None else {}
        self.where = where
        self.name = name

    @property
    def out(self) -> Value:
        """The only result of a node that has one."""
        return self.results[0]


class Graph:
    """A computation: `params` and `outputs` are Values, `nodes` are in topological order and hold no parameters."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.params: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []

    def users(self) -> dict[Value, list[Node]]:
        """Every value's users, in node order."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def walk(self) -> Iterator[Node]:
        """All nodes, those of regions too."""
        for node in self.nodes:
            region = node.attrs.get("region")
            if region is not None:
                yield from region.walk()
            yield node


EFFECTS = {"dequeue", "enqueue"}
"""Opcodes that do something besides giving results: they stay, though nobody may want these."""


def has_effects(node: Node) -> bool:
    """Whether a node, or one in its regions, is in `EFFECTS`."""
    if node.op in EFFECTS:
        return True
    return any(has_effects(inner) for region in node.attrs.get("regions", ()) for inner in region.nodes)


def check(graph: Graph) -> None:
    """Raise GraphError unless each input of each node is a parameter or the result of an earlier node.

    Run between passes: a pass that leaves an illegal graph is a bug, found where it happens.
    """
    from ipu_keras.errors import GraphError

    known: set[Value] = set(graph.params)
    for node in graph.nodes:
        for value in node.inputs:
            if value not in known:
                raise GraphError(f"{graph.name}: {node.op} ({node.where}) uses {value!r} before it is defined")
        for value in node.results:
            if value.dtype not in DTYPES:
                raise GraphError(f"{graph.name}: {node.op} ({node.where}) has dtype {value.dtype}")
            if any(d < 0 for d in value.shape):
                raise GraphError(f"{graph.name}: {node.op} ({node.where}) has shape {value.shape}")
        known.update(node.results)
    for value in graph.outputs:
        if value not in known:
            raise GraphError(f"{graph.name}: output {value!r} is not defined")


def text(graph: Graph) -> str:
    """The graph as text, one node a line, for people and tests.

    Example:
        %2 = add f32[4] %0 %1
    """
    names: dict[Value, str] = {}
    lines = []

    def name(value: Value) -> str:
        return names.setdefault(value, f"%{len(names)}")

    for value in graph.params:
        lines.append(f"{name(value)} = parameter {value.dtype}{list(value.shape)}")
    for node in graph.nodes:
        inputs = " ".join(name(v) for v in node.inputs)
        types = ", ".join(f"{v.dtype}{list(v.shape)}" for v in node.results)
        results = ", ".join(name(v) for v in node.results)
        shown = {k: _short(v) for k, v in node.attrs.items() if k != "region"}
        lines.append(f"{results} = {node.op} {types} {inputs}".rstrip() + (f" {shown}" if shown else ""))
    lines.append("return " + " ".join(name(v) for v in graph.outputs))
    return "\n".join(lines)


def _short(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 8 else f"<{value.dtype}{list(value.shape)}>"
    return value
