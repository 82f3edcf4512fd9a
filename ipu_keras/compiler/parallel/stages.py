"""Which part of the program each node of a step belongs to: a program stage, or the weight update.

Forward nodes go where their layer's stage is, backward nodes where its backward stage is; what no layer claims goes as
early as its operands allow. A node never goes before its operands. What depends on nothing but constants and values
that the micro-batches leave alone (a transposed weight, a cast one) is *free*: each part makes its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ipu_keras.compiler.names import Names
from ipu_keras.compiler.parallel.schedule import Schedule
from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.errors import UnsupportedError
from ipu_keras.graph.ir import Graph, Node, Value, has_effects

__all__ = ["FREE", "Parts", "assign", "may_be_copied", "own_options"]

FREE = -1
"""Part of a node that every part has for itself."""

SMALL_BYTES = 4096
"""A state that the step only reads may be wanted on several chips if it is not larger."""


def may_be_copied(value: Value, output: int | None) -> bool:
    """Whether each chip may have its own copy of a state, made anew in each iteration.

    Args:
        value: the entry parameter.
        output: the output that is its new value, None for a state that nothing changes.
    """
    return output is None and value.nbytes <= SMALL_BYTES


class Parts:
    """Which part each node belongs to.

    Attributes:
        update: number of the part that runs once an iteration, behind the program stages.
        of: node -> its part.
        steady: parameters that the micro-batches only read.
    """

    def __init__(self, update: int, of: dict[Node, int], steady: set[Value]) -> None:
        self.update, self.of, self.steady = update, of, steady


def assign(
    graph: Graph, spec: Parallel, schedule: Schedule, names: Names, state: dict[int, int | None], labels: dict[int, str]
) -> Parts:
    """Give each node its part.

    Args:
        graph: the step, simplified, not fused; the operands of its ``accumulate`` nodes are what is summed up.
        spec: what is wanted.
        schedule: of its stages.
        names: where nodes come from.
        state: entry parameter -> output that is its new value (None: it is only read).
        labels: entry parameter -> name of the variable, for messages.

    Raises:
        UnsupportedError: stages share a state that one of them changes.
    """
    update = schedule.stages
    late = _late(graph, names)
    changed = {
        graph.params[i]: graph.outputs[o]
        for i, o in state.items()
        if o is not None and graph.outputs[o] is not graph.params[i] and graph.outputs[o].node not in late
    }
    steady = {graph.params[i] for i in state} - changed.keys()
    of: dict[Node, int] = {}
    feeds = {value for i, value in enumerate(graph.params) if i not in state}
    widened: set[Node] = set()
    wanted = _wanted(graph, spec, schedule, names) if spec.pipelined else {}
    for node in graph.nodes:
        if node in late:
            of[node] = update
        elif node.op == "convert" and node.inputs[0] in feeds:
            # A feed travels as narrow as it came; each part widens it for itself.
            widened.add(node)
            of[node] = FREE
        elif (
            node.op != "accumulate"
            and not has_effects(node)
            and all(v in steady or (of.get(v.node) == FREE and v.node not in widened) for v in node.inputs)
        ):
            of[node] = FREE
        else:
            # What a free node is made of is there from the first stage on.
            earliest = max((of.get(v.node, 0) for v in node.inputs), default=0)
            of[node] = max(earliest, 0, wanted.get(node, 0))
    if spec.pipelined:
        bound = {graph.params[i] for i, o in state.items() if not may_be_copied(graph.params[i], o)}
        _send_home(graph, of, steady & bound, schedule)
        _pull(graph, of, steady, changed)
        _check_states(graph, of, changed, state, labels)
    return Parts(update, of, steady)


def own_options(graph: Graph, spec: Parallel, names: Names) -> dict[Node, dict[str, Any]]:
    """Options of the compiler, over those of the program, for each node of a stage or weight update that has some.

    Args:
        graph: the step, before it is cut.
        spec: with the options of the stages.
        names: where nodes come from.
    """
    if not spec.pipelined or not spec.stage_options:
        return {}
    schedule = Schedule(spec.schedule, spec.devices, spec.training)
    part = _wanted(graph, spec, schedule, names) | dict.fromkeys(_late(graph, names), -1)
    return {node: own for node, p in part.items() if p < schedule.stages and (own := spec.options_of(p))}


def _late(graph: Graph, names: Names) -> set[Node]:
    """Nodes of the weight update: those of the optimizer, and all that follows what is accumulated."""
    if not any(node.op == "accumulate" for node in graph.nodes):
        return set()
    before: set[Node] = set()  # what an accumulation depends on is not of the update, whatever its name says
    for node in reversed(graph.nodes):
        if node.op == "accumulate" or node in before:
            before.add(node)
            before.update(v.node for v in node.inputs)
    late: set[Node] = set()
    for node in graph.nodes:
        follows = any(v.node.op == "accumulate" or v.node in late for v in node.inputs)
        if follows or (node not in before and node.inputs and names.locate(node.where)[0] == "optimizer"):
            late.add(node)
    return late - {node for node in late if node.op == "accumulate"}


def _wanted(graph: Graph, spec: Parallel, schedule: Schedule, names: Names) -> dict[Node, int]:
    """The program stage of each node that a layer claims: its layer's, or an earlier one that wants its result.

    Layers share what is equal in them (a mask made of the inputs), and one of them, not always the first, gives it its
    name.
    """
    users = graph.users()
    latest: dict[Node, int] = {}
    wanted: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        bound = min((latest[u] for v in node.results for u in users.get(v, ())), default=schedule.stages)
        label = _label(node, spec, schedule, names)
        latest[node] = bound if label is None else min(bound, label)
        if label is not None:
            wanted[node] = latest[node]
    return wanted


def _label(node: Node, spec: Parallel, schedule: Schedule, names: Names) -> int | None:
    """The program stage that a node's layer asks for (loss and metrics: the last); None where no layer claims it."""
    path, phase = names.locate(node.where)
    stage = names.stage(node.where)
    if stage is None:
        if path.split("/")[0] not in ("loss", "metrics"):
            return None
        stage = spec.stage_count - 1
    return schedule.stages - 1 - stage if phase == "backward" and spec.training else stage


def _pull(graph: Graph, of: dict[Node, int], steady: set[Value], changed: dict[Value, Value]) -> None:
    """What depends on changing states alone (the seeds of random numbers) is made as early as somebody wants it.

    A state that several stages draw from is then read and changed by one of them.
    """
    loose: set[Node] = set()
    for node in graph.nodes:
        own = [v for v in node.inputs if v not in steady and of.get(v.node) != FREE]
        if own and node.op != "accumulate" and all(v in changed or v.node in loose for v in own):
            loose.add(node)
    users = graph.users()
    for _ in range(len(changed) + 1):
        before = dict(of)
        for param, new in changed.items():
            touching = [n for n in users.get(param, ()) if n in loose]
            touching += [new.node] if new.node in loose else []
            if touching:
                first = min(of[n] for n in touching)
                of.update((n, first) for n in touching)
        for node in reversed(graph.nodes):
            if node in loose:
                wanted = [of[u] for v in node.results for u in users.get(v, ())]
                of[node] = min([of[node], *(w for w in wanted if w >= 0)])
        if of == before:
            return


def _send_home(graph: Graph, of: dict[Node, int], weights: set[Value], schedule: Schedule) -> None:
    """What is made of a weight alone, and wanted on another chip than the weight's, is made where the weight is.

    The loss adds up what regularizers make of all stages' weights: each stage makes its own.
    """
    weights_of: dict[Value, frozenset[Value]] = {v: frozenset([v]) for v in weights}
    for node in graph.nodes:
        if of[node] == FREE:
            made_of = frozenset().union(*(weights_of.get(v, frozenset()) for v in node.inputs))
            weights_of.update((v, made_of) for v in node.results if made_of)
    homes: dict[Value, int] = {}
    for node in graph.nodes:
        if 0 <= of[node] < schedule.stages:
            for value in node.inputs:
                for weight in weights_of.get(value, ()):
                    homes[weight] = min(homes.get(weight, of[node]), of[node])
    for node in reversed(graph.nodes):
        part = of[node]
        if not 0 <= part < schedule.stages:
            continue
        for value in node.inputs:
            if of.get(value.node) != FREE:
                continue
            stages = {homes[weight] for weight in weights_of.get(value, ())}
            if {schedule.chip(stage) for stage in stages} <= {schedule.chip(part)}:
                continue
            # Of one stage's weights: there. Of several stages': here, of what each stage makes.
            of[value.node] = min(stages) if len(stages) == 1 and min(stages) < part else part


def _check_states(
    graph: Graph, of: dict[Node, int], changed: dict[Value, Value], state: Iterable[int], labels: dict[int, str]
) -> None:
    users = graph.users()
    bad = []
    for i in state:
        param = graph.params[i]
        if param in changed:
            stages = {of[n] for n in users.get(param, ())} | {of.get(changed[param].node, 0)}
            stages.discard(FREE)
            if len(stages) > 1:
                bad.append(f"{labels.get(i, f'parameter {i}')} (program stages {sorted(stages)})")
    if bad:
        raise UnsupportedError(
            "Variables that a micro-batch changes must be used by one pipeline stage only: the stages work on "
            "different micro-batches at a time. Put the layers that share them into one stage:\n  " + "\n  ".join(bad),
            bad,
        )
