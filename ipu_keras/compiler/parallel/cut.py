"""Cuts a step's graph into one for each part: what it gets from others are parameters, what it gives outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.compiler.parallel.stages import FREE, Parts
from ipu_keras.compiler.passes.regions import own_regions
from ipu_keras.errors import UnsupportedError
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value, has_effects

__all__ = ["ACC", "COUNT", "CROSS", "FEED", "STATE", "STREAM", "Cut", "End", "Part", "cut"]

STATE, FEED, CROSS, ACC, COUNT, STREAM = "state", "feed", "cross", "accumulator", "count", "stream"


SPREAD = 4
"""How much larger than its source a repeated value must be for each part to make its own."""

MOVED = ("broadcast", "reshape", "transpose", "convert")
"""Opcodes on the way from the source to the repeated value."""


class End(NamedTuple):
    """What a parameter of a part is, or where an output goes.

    Attributes:
        kind: STATE, FEED, CROSS (a value from another part), ACC (a sum over micro-batches), COUNT (micro-batches so
            far, on the part's chip), STREAM (to the host).
        what: number of the entry parameter or of the flat output, or the value (or accumulate node's result) itself.
    """

    kind: str
    what: Any


@dataclass
class Part:
    """One part: its graph, what its parameters are and where its outputs go, in order."""

    graph: Graph
    inputs: list[End] = field(default_factory=list)
    outputs: list[End] = field(default_factory=list)


@dataclass
class Cut:
    """A step in parts.

    Attributes:
        parts: one for each program stage, then the weight update.
        made: a value that other parts use -> the part that makes it.
        users: the same -> the parts that use it, in order.
    """

    parts: list[Part]
    made: dict[Value, int]
    users: dict[Value, list[int]]


def cut(
    graph: Graph, parts: Parts, state: dict[int, int | None], micro_batches: int, twins: dict[int, int] | None = None,
    chips: Sequence[int] = (),
) -> Cut:  # fmt: skip
    """Cut a graph.

    Args:
        graph: the step.
        parts: which part each node belongs to.
        state: entry parameter -> output that is its new value (None: it is only read).
        micro_batches: of an iteration.
        twins: backward stage -> the forward stage whose values it works out again.
        chips: of the program stages.

    Raises:
        UnsupportedError: the weight update uses a value of a single micro-batch.
    """
    return _Cutter(graph, parts, state, micro_batches, twins or {}, chips).run()


class _Cutter:
    def __init__(
        self, graph: Graph, parts: Parts, state: dict[int, int | None], micro_batches: int, twins: dict[int, int],
        chips: Sequence[int],
    ) -> None:  # fmt: skip
        self.graph, self.parts, self.state, self.count, self.twins = graph, parts, state, micro_batches, twins
        self.index = {value: i for i, value in enumerate(graph.params)}
        self.terms, self.dissolved = self._terms(chips)
        self.outs = self._owners()
        self.made: dict[Value, int] = {}
        self.users: dict[Value, list[int]] = {}

    def run(self) -> Cut:
        needed = [self._nodes(p) for p in range(self.parts.update + 1)]
        built = [self._part(p, nodes) for p, nodes in enumerate(needed)]
        # Only now is it known what other parts want.
        for p, (part, env) in enumerate(built):
            for value, maker in self.made.items():
                if maker == p:
                    part.graph.outputs.append(env[value])
                    part.outputs.append(End(CROSS, value))
        return Cut([part for part, _ in built], self.made, self.users)

    def _owners(self) -> dict[int, list[int]]:
        """The outputs of the whole step that each part has."""
        new_of = {o: i for i, o in self.state.items() if o is not None}
        owners: dict[int, list[int]] = {}
        for o, value in enumerate(self.graph.outputs):
            part = self._part_of(value)
            if part == FREE:
                # Nobody's own: a parameter handed on, or made of steady values only.
                keeper = new_of.get(o)
                part = self.parts.update if keeper is not None or value in self.parts.steady else 0
            owners.setdefault(part, []).append(o)
        return owners

    def _terms(self, chips: Sequence[int]) -> tuple[dict[Node, dict[int, list[Value]]], set[Node]]:
        """What each part adds to each sum, and the additions that are not needed then.

        The gradient of a weight that two stages use is a sum of theirs. If both are on the weight's chip, each adds its
        own to the sum over micro-batches: the first one's need not wait in a queue for the second's.
        """
        users, outputs = self.graph.users(), set(self.graph.outputs)
        terms: dict[Node, dict[int, list[Value]]] = {}
        dissolved: set[Node] = set()

        def leaves(value: Value, through: list[Node]) -> list[Value]:
            node = value.node
            mixed = node.op == "add" and any(self._part_of(v) != self._part_of(value) for v in node.inputs)
            if not mixed or len(users[value]) > 1 or value in outputs:
                return [value]
            through.append(node)
            return [leaf for v in node.inputs for leaf in leaves(v, through)]

        for node in self.graph.nodes:
            if node.op != "accumulate":
                continue
            own = self.parts.of[node]
            through: list[Node] = []
            by_part: dict[int, list[Value]] = {}
            for leaf in leaves(node.inputs[0], through):
                by_part.setdefault(self._part_of(leaf), []).append(leaf)
            there = all(0 <= p < len(chips) and chips[p] == chips[own] for p in by_part)
            if len(by_part) > 1 and there and _method(node) != "RUNNING_MEAN":
                terms[node] = by_part
                dissolved.update(through)
            else:
                terms[node] = {own: [node.inputs[0]]}
        return terms, dissolved

    def _part_of(self, value: Value) -> int:
        """The part that makes a value; FREE for what each part can have: parameters and free nodes."""
        if value.node.op == "accumulate":
            return self.parts.update
        if value in self.index:
            return FREE if self.index[value] in self.state else 0
        return self.parts.of[value.node]

    def _nodes(self, p: int) -> set[Node]:
        """The nodes of a part: its own, and the free ones that they need."""
        want = {n for n in self.graph.nodes if self.parts.of[n] == p} - self.dissolved
        want.update(self.graph.outputs[o].node for o in self.outs.get(p, ()))
        want.update(v.node for by_part in self.terms.values() for v in by_part.get(p, ()))
        again = self._again(p)
        for node in reversed(self.graph.nodes):
            if node in want:
                want.update(v.node for v in node.inputs if self.parts.of.get(v.node) == FREE or v.node in again)
        return {n for n in want if self.parts.of.get(n) in (p, FREE) or n in again}

    def _again(self, p: int) -> set[Node]:
        """What a backward stage may work out once more: its forward stage's nodes, but for random numbers.

        What is drawn from a state that micro-batches change cannot be drawn again: it waits in a queue. What follows
        from nothing else (a mask) waits in its place, as it is smaller. So does what is marked as a checkpoint.
        """
        twin = self.twins.get(p)
        if twin is None:
            return set()
        drawn: set[Node] = set()
        found: set[Node] = set()
        for node in self.graph.nodes:
            if node.op in ("accumulate", "checkpoint") or has_effects(node):
                continue
            own = [v for v in node.inputs if v not in self.parts.steady and self.parts.of.get(v.node) != FREE]
            states = [v for v in own if v in self.index and self.index[v] in self.state]
            if states or (own and all(v.node in drawn for v in own)):
                drawn.add(node)
            elif self.parts.of[node] == twin:
                found.add(node)
        return found

    def _part(self, p: int, nodes: set[Node]) -> tuple[Part, dict[Value, Value]]:
        part, env = Part(Graph(f"{self.graph.name} part {p}")), {}

        def param(value: Value, end: End) -> Value:
            fresh = Node("parameter", [], [(value.shape, value.dtype)], name=value.node.name).out
            part.graph.params.append(fresh)
            part.inputs.append(end)
            env[value] = fresh
            return fresh

        def get(value: Value) -> Value:
            if value in env:
                return env[value]
            if value.node.op == "accumulate":
                return param(value, End(ACC, value))
            at = self.index.get(value)
            if at is not None and at in self.state:
                return param(value, End(STATE, at))
            if at is not None and p == 0:
                return param(value, End(FEED, at))
            maker = self._part_of(value)
            if maker == FREE or self._is_spread(value):
                copy(value.node)
                return env[value]
            if p == self.parts.update:
                self._refuse(value)
            self.made[value] = maker
            self.users.setdefault(value, []).append(p)
            return param(value, End(CROSS, value))

        def copy(node: Node) -> None:
            twin = Node(
                node.op, [get(v) for v in node.inputs], [(v.shape, v.dtype) for v in node.results],
                own_regions(node.attrs), node.where, node.name,
            )  # fmt: skip
            part.graph.nodes.append(twin)
            env.update(zip(node.results, twin.results, strict=True))

        for node in self._in_turn(p, nodes):
            if node.op == "accumulate":
                continue
            if node.op == "checkpoint":
                env[node.out] = get(node.inputs[0])
            else:
                copy(node)
        sums = [(node, [get(v) for v in by_part[p]]) for node, by_part in self.terms.items() if p in by_part]
        if p == 0:
            for i, value in enumerate(self.graph.params):
                if i not in self.state:
                    get(value)  # a feed that nothing uses is still streamed
        new_of = {o: i for i, o in self.state.items() if o is not None}
        for o in self.outs.get(p, ()):
            part.graph.outputs.append(get(self.graph.outputs[o]))
            part.outputs.append(End(STATE, new_of[o]) if o in new_of else End(STREAM, o))
        if sums:
            self._sums(part, sums)
            part.graph.nodes = _sums_first(part)
        return part, env

    def _is_spread(self, value: Value) -> bool:
        """Whether a value is a small one many times (a mask for all heads): each part then makes its own of the small
        one, which travels and waits in its place.

        Not of a state that micro-batches change, which the other part would read at another time; and not through a
        conversion that rounds, which may be at random.
        """
        source = value
        while source.node.op in MOVED and source.node.inputs[0].itemsize <= source.itemsize:
            source = source.node.inputs[0]
        changes = source in self.index and self.index[source] in self.state and source not in self.parts.steady
        return source is not value and not changes and SPREAD * source.nbytes <= value.nbytes

    def _in_turn(self, p: int, nodes: set[Node]) -> list[Node]:
        """A part's nodes in the order of the step, but what is worked out again only when somebody needs it."""
        again = {node for node in nodes if 0 <= self.parts.of[node] < p}
        found: dict[Node, None] = {}
        for node in self.graph.nodes:
            own = self.parts.of[node] == p if node.op == "accumulate" else node in nodes
            stack = [node] if own and node not in again else []
            while stack:
                missing = [v.node for v in stack[-1].inputs if v.node in again and v.node not in found]
                if missing:
                    stack.append(missing[0])
                else:
                    found[stack.pop()] = None
        return list(found)

    def _refuse(self, value: Value) -> None:
        raise UnsupportedError(
            f"The weight update uses {value!r} of {value.node.where or value.node.op}, which each micro-batch has for "
            "itself. Only what is accumulated can be used there.",
            [f"{value.node.op} {value.node.where} in the weight update"],
        )

    def _sums(self, part: Part, sums: list[tuple[Node, list[Value]]]) -> None:
        """The values are added to their sum; what the sum becomes is an output."""
        graph, count = part.graph, None
        for node, (value, *others) in sums:
            out = node.out
            for other in others:
                value = _add(graph, node.where, "add", [value, other], value.shape, value.dtype)
            total = Node("parameter", [], [(out.shape, out.dtype)], name=f"sum of {node.where}").out
            method = _method(node)
            if value.dtype != out.dtype:
                value = _add(graph, node.where, "convert", [value], out.shape, out.dtype)
            before = total
            if method == "MEAN":
                value = self._scaled(graph, node.where, value, _constant(graph, 1.0 / self.count, "f32"))
            elif method == "RUNNING_MEAN":
                if count is None:
                    count = self._counter(part)
                value = self._scaled(graph, node.where, value, count[1])
                before = self._scaled(graph, node.where, total, count[0])
            graph.params.append(total)
            part.inputs.append(End(ACC, out))
            graph.outputs.append(_add(graph, node.where, "add", [before, value], out.shape, out.dtype))
            part.outputs.append(End(ACC, out))

    def _scaled(self, graph: Graph, where: str, value: Value, factor: Value) -> Value:
        if factor.dtype != value.dtype:
            factor = _add(graph, where, "convert", [factor], (), value.dtype)
        if value.shape:
            factor = _add(graph, where, "broadcast", [factor], value.shape, value.dtype, {"dims": ()})
        return _add(graph, where, "multiply", [value, factor], value.shape, value.dtype)

    def _counter(self, part: Part) -> tuple[Value, Value]:
        """n / (n + 1) and 1 / (n + 1) for micro-batch n; n is kept on the part's chip."""
        n = Node("parameter", [], [((), "f32")], name="micro-batches so far").out
        one = _constant(part.graph, 1.0, "f32")
        after = _add(part.graph, "", "add", [n, one], (), "f32")
        part.graph.params.append(n)
        part.inputs.append(End(COUNT, None))
        part.graph.outputs.append(after)
        part.outputs.append(End(COUNT, None))
        return (
            _add(part.graph, "", "divide", [n, after], (), "f32"),
            _add(part.graph, "", "divide", [one, after], (), "f32"),
        )


def _sums_first(part: Part) -> list[Node]:
    """A part's nodes in an order in which what is only summed up is made as soon as it can be.

    A weight's gradient is made of a layer's activation and of the gradient of its result, both larger than itself: if
    it waited, as it does in the order of a traced step, all layers' would be kept to the end of the stage.
    """
    graph = part.graph
    users = graph.users()
    sums = {v for v, end in zip(graph.outputs, part.outputs, strict=True) if end.kind == ACC}
    others = {v for v, end in zip(graph.outputs, part.outputs, strict=True) if end.kind != ACC}
    only_summed: set[Node] = set()
    for node in reversed(graph.nodes):
        if not has_effects(node) and not any(v in others for v in node.results):
            following = [user for v in node.results for user in users.get(v, ())]
            if all(user in only_summed for user in following) and (following or any(v in sums for v in node.results)):
                only_summed.add(node)
    waiting = {node: sum(v.node.op != "parameter" for v in set(node.inputs)) for node in only_summed}
    found: list[Node] = []

    def emit(node: Node) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            found.append(node)
            ready = []
            for user in dict.fromkeys(user for v in node.results for user in users.get(v, ())):
                if user in waiting:
                    waiting[user] -= sum(v.node is node for v in set(user.inputs))
                    if waiting[user] == 0:
                        ready.append(user)
            stack += reversed(ready)

    for node in graph.nodes:
        if node not in waiting or (not any(v.node.op != "parameter" for v in node.inputs)):
            emit(node)
    return found


def _method(node: Node) -> str:
    """How an accumulate node adds up."""
    method: str = json.loads(node.attrs.get("config") or "{}").get("method", "SUM")
    return method


def _add(
    graph: Graph, where: str, op: str, inputs: list[Value], shape: tuple[int, ...], dtype: str,
    attrs: dict[str, Any] | None = None,
) -> Value:  # fmt: skip
    node = Node(op, inputs, [(shape, dtype)], attrs, where)
    graph.nodes.append(node)
    return node.out


def _constant(graph: Graph, value: float, dtype: str) -> Value:
    array = np.asarray(value, DTYPES[dtype])
    return _add(graph, "", "constant", [], (), dtype, {"value": array})
