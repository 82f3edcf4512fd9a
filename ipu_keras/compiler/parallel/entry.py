"""Lowers a step over several chips: one program with a loop over slots, in which each stage works where one is due.

    clear queues                                   once an execution
    repeat                                         once an iteration: a weight update
        clear sums
        for turn                                   a turn is a period of the schedule
            window stage: its steps                stages of a slot from the last to the first, so that what a
            ...                                    stage hands on is not overwritten before it is used
            window stage: its links to the next    at the end of the slot
        next
        weight update, on all chips
    end

A stage's steps stand in the program once. Chips have no order among each other but by links: the profile times each
chip by its own steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_keras.compiler.entry import Entry
from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower import lower
from ipu_keras.compiler.lower.collective import emit_collective
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.outline import undo_single_calls
from ipu_keras.compiler.lower.parts import Located, Mark, RawGroup, RawStep, host_rows
from ipu_keras.compiler.lower.scope import Scope, write_back
from ipu_keras.compiler.lower.streams import from_host, to_host
from ipu_keras.compiler.move import plan_move
from ipu_keras.compiler.parallel.chips import LINK, spread_over_chips
from ipu_keras.compiler.parallel.crossing import Crossing
from ipu_keras.compiler.parallel.cut import ACC, COUNT, CROSS, FEED, STATE, STREAM, Part, cut
from ipu_keras.compiler.parallel.schedule import Schedule
from ipu_keras.compiler.parallel.stages import assign, may_be_copied
from ipu_keras.compiler.passes.fuse import fuse
from ipu_keras.compiler.passes.generator import GENERATOR
from ipu_keras.errors import UnsupportedError
from ipu_keras.graph.ir import Node, Value, check
from ipu_keras.pipelining import check_iterations
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import GATHER
from ipu_runtime.program import FOR, LABEL, NEXT, STREAM_IN, STREAM_OUT, WINDOW, Program

__all__ = ["ParallelEntry"]


class ParallelEntry(Entry):
    """Lowers an entry computation with micro-batches, pipeline stages, or both; arguments as for `Entry`."""

    def program(self) -> Program:
        """Lower everything and assemble the program."""
        spec, ctx = self.spec, self.ctx
        self.schedule = schedule = Schedule(spec.schedule, spec.devices, spec.training and spec.pipelined)
        if spec.pipelined:
            # In inference all batches of an execution go through the pipeline one behind the other.
            number = "gradient_accumulation_steps_per_replica" if spec.training else "steps_per_execution"
            check_iterations(
                self.name or self.graph.name, number, spec.micro_batches, spec.schedule, spec.stages,
                training=spec.training, device_mapping=spec.devices,
            )  # fmt: skip
        variables = {i: self._variable_label(i).split("|")[-1] for i in self.state}
        parts = assign(self.graph, spec, schedule, self.names, self.state, variables)
        twins = schedule.twins() if spec.recompute else {}
        chips = [schedule.chip(p) for p in range(schedule.stages)]
        self.cut = cut(self.graph, parts, self.state, spec.micro_batches, twins, chips)
        self.weights = _weights(self.cut.parts[-1], self.graph.params)
        self.chips: dict[int, int] = {}  # state -> chip
        self.sums: dict[Any, tuple[Value, int]] = {}  # accumulated value -> (its parameter, chip)
        self.copies: dict[tuple[int, int], Value] = {}  # small state on another chip
        self.outputs: list[dict[str, Any]] = []
        self.crossing = Crossing(ctx, schedule, self.cut, spec.remote_bytes if spec.stash else None)
        self.begin: list[RawStep] = []
        for i, value in enumerate(self.graph.params):
            if i in self.state:
                ctx.lazy[value] = self._on_chip(i, self._state_maker(i, value))
        for p in range(schedule.stages):
            self._stage(p, self.cut.parts[p])
        self.stage_slots = ctx.slots
        update = self._update(self.cut.parts[-1])
        for i in self.state:
            if i not in self.remote:
                ctx.place(self.graph.params[i])
        self._clear_sums()
        for queue in ctx.queues:
            # Those of stages run for each micro-batch.
            if queue["count"] is not None and queue["slot"] < self.stage_slots:
                queue["count"] *= spec.micro_batches
        undo_single_calls(ctx)
        return self._assemble(self.crossing.before, [*self.begin, *self._loop(), *update], self.outputs)

    # ---- states ----

    def _on_chip(self, index: int, make: Any) -> Any:
        """A maker of a state's home that puts it on the state's chip."""

        def on_chip(layout: Layout) -> Located:
            with self.ctx.on(self.chips.setdefault(index, 0)):
                found: Located = make(layout)
            return found

        return on_chip

    def _state(self, index: int, chip: int, changed: bool) -> Value:
        """The value that stands for a state on a chip, the state itself or a copy of it.

        Raises:
            UnsupportedError: stages on two chips use it.
        """
        home = self.chips.setdefault(index, chip)
        value = self.graph.params[index]
        if home == chip:
            return value
        if changed or not may_be_copied(value, self.state[index]):
            name = self._variable_label(index).split("|")[-1]
            raise UnsupportedError(
                f"{name} is used by pipeline stages on IPU {home} and on IPU {chip}: an input can only be used by "
                "pipeline stages on the same IPU. Put the layers that share it into one stage, or map their stages to "
                "one IPU with device_mapping.",
                [f"{name} on IPU {home} and IPU {chip}"],
            )
        if (index, chip) not in self.copies:
            twin = Node("parameter", [], [(value.shape, value.dtype)], name=value.node.name).out

            def make(layout: Layout) -> Located:
                here = self.ctx.place(value, layout)
                with self.ctx.on(chip), self.ctx.into(self.begin):
                    var = self.ctx.var(here.layout, value.itemsize, "variable", pinned=True)
                    rows = plan_move(here.layout, here.layout)
                    self.ctx.exchange([(rows, here.var, var, value.itemsize)])
                return Located(var, here.layout)

            self.ctx.lazy[twin] = make
            self.copies[index, chip] = twin
        return self.copies[index, chip]

    # ---- stages ----

    def _stage(self, p: int, part: Part) -> None:
        """Lower a program stage: its steps, and those that hand on what it has made."""
        ctx, chip = self.ctx, self.schedule.chip(p)
        graph = fuse(part.graph)
        check(graph)
        changed = {end.what for end in part.outputs if end.kind == STATE}
        steps: list[RawStep] = []
        updates: dict[Value, Value] = {}
        with ctx.on(chip), ctx.into(steps), ctx.told(self.spec.options_of(p)):
            homes: dict[Any, Value] = {}
            for param, end in zip(graph.params, part.inputs, strict=True):
                self._input(p, param, end, changed)
                homes[end.kind, end.what] = param
            for value, end in zip(graph.outputs, part.outputs, strict=True):
                home = homes.get((end.kind, end.what))
                if home is not None and end.kind in (STATE, ACC, COUNT) and value is not home:
                    updates.setdefault(value, home)
            ctx.graph = graph
            scope = Scope(ctx, graph, updates, lower)
            # A gradient is wanted where its weight is, for the sum will be there, too.
            sums = {v: e.what for v, e in zip(graph.params, part.inputs, strict=True) if e.kind == ACC}
            weights = {param: self.weights[total] for param, total in sums.items() if total in self.weights}
            ctx.hints.update({v: weights[h] for v, h in ctx.hints.items() if h in weights})
            scope.run()
            for param in graph.params:
                ctx.place(param)
            back = []
            for value, end in zip(graph.outputs, part.outputs, strict=True):
                if end.kind == STREAM:
                    self.outputs += self._output(end.what, value, self.spec.micro_batches)
                elif end.kind == CROSS:
                    ctx.place(value)
                    self.crossing.made[end.what] = value
                else:
                    # A state that is changed and not read has no parameter in this part.
                    home = homes.get((end.kind, end.what), None)
                    back.append((home if home is not None else self._state(end.what, chip, True), value))
            ctx.label = ctx.at("|variable|new values")
            write_back(ctx, back, [v for v, e in zip(graph.outputs, part.outputs, strict=True) if e.kind == CROSS])
        self.crossing.bodies.append(steps)
        self.crossing.hand_on(p)

    def _input(self, p: int, param: Value, end: Any, changed: set[Any]) -> None:
        """Say where a parameter of a stage is."""
        ctx, chip = self.ctx, self.schedule.chip(p)
        if end.kind == STATE:
            state = self._state(end.what, chip, end.what in changed)
            ctx.lazy[param] = self._at(state)
        elif end.kind == FEED:
            ctx.lazy[param] = self._feed_maker(end.what, param, self.spec.micro_batches)
        elif end.kind in (ACC, COUNT):
            key = end.what if end.kind == ACC else f"count {p}"
            if key in self.sums:  # another stage of this chip adds to it, too
                ctx.lazy[param] = self._at(self.sums[key][0])
                return
            self.sums[key] = (param, chip)

            weight = self.weights.get(end.what) if end.kind == ACC else None

            def home(layout: Layout) -> Located:
                # A sum lies as the weight that it will update: then the update exchanges nothing.
                found = ctx.find(weight) if weight is not None else None
                if found is not None and found.var.chip == chip:
                    layout = found.layout
                return Located(ctx.var(layout, param.itemsize, "variable", pinned=True), layout)

            ctx.lazy[param] = home
        else:
            self.crossing.take(p, param, end.what)

    def _at(self, value: Value) -> Callable[[Layout], Located]:
        """A maker for what stands for another value."""
        return lambda layout: self.ctx.place(value, layout)

    # ---- the loop over slots ----

    def _loop(self) -> list[RawStep]:
        schedule, label = self.schedule, self.ctx.at("|control|slots")
        self.first, end = Mark(), Mark()
        out = [self._control(FOR, [schedule.turns(self.spec.micro_batches)], label, self.first)]
        out[0].loop = (end, schedule.turns(self.spec.micro_batches))
        self.windows: list[tuple[Mark, Mark, int, bool]] = []
        for slot in range(schedule.period):
            due = [p for p in reversed(range(schedule.stages)) if p % schedule.period == slot]
            for p in due:
                out += self._window(p, self.crossing.bodies[p], False)
            for p in due:
                out += self._window(p, self.crossing.links[p], True)
        out.append(self._control(NEXT, [self.first], label, end))
        self.last = end
        return out

    def _window(self, p: int, steps: list[RawStep], link: bool) -> list[RawStep]:
        """Steps that run where a micro-batch is due at a stage."""
        if not steps:
            return []
        begin, end = Mark(), Mark()
        self.windows.append((begin, end, p, link))
        label = self.ctx.at(f"|control|stage {p}")
        params = [end, self.schedule.shift(p), self.spec.micro_batches]
        head = self._control(WINDOW, params, label, begin)
        return [head, *steps, RawStep(LABEL, [], [], [], label, mark=end)]

    @staticmethod
    def _control(kind: int, params: list[Any], label: int, mark: Mark) -> RawStep:
        return RawStep(kind, [RawGroup(registry.CONTROL, 1, params, [[0]])], [], [], label, mark=mark)

    def _clear_sums(self) -> None:
        """Before an iteration all sums are nothing."""
        ctx = self.ctx
        ctx.label = ctx.at("|accumulators|clear")
        for param, _ in self.sums.values():
            with ctx.into(self.begin):
                _fill_zero(ctx, ctx.place(param), param)

    # ---- the weight update ----

    def _update(self, part: Part) -> list[RawStep]:
        """Steps of the weight update, on all chips."""
        ctx, graph = self.ctx, part.graph
        known: dict[Value, int] = {}
        for param, end in zip(graph.params, part.inputs, strict=True):
            if end.kind == ACC:
                known[param] = self.sums[end.what][1]
            elif end.what in self.chips:
                known[param] = self.chips[end.what]
        by_state = {end.what: p for p, end in zip(graph.params, part.inputs, strict=True) if end.kind == STATE}
        homes = {o: by_state[e.what] for o, e in enumerate(part.outputs) if e.kind == STATE and e.what in by_state}
        chip = spread_over_chips(graph, known, homes)
        for param, end in zip(graph.params, part.inputs, strict=True):
            if end.kind == STATE:
                alone = end.what not in self.chips
                self.chips.setdefault(end.what, chip[param])
                home = self.graph.params[end.what]
                large = param.nbytes >= self.spec.remote_bytes
                if self.spec.offload and alone and large and param.node.name != GENERATOR:
                    ctx.lazy[param] = self._fetch(end.what, param)
                elif (here := ctx.find(home)) is not None:
                    # A stage's weight: what only reads it (its norm, say) should find it where it lies.
                    ctx.located[param] = here
                else:
                    ctx.lazy[param] = self._at(home)
            else:
                ctx.located[param] = ctx.place(self.sums[end.what][0])
        graph = fuse(graph)
        check(graph)
        updates: dict[Value, Value] = {}
        leaving: dict[Value, int] = {}
        for value, end in zip(graph.outputs, part.outputs, strict=True):
            if end.kind == STATE and end.what in by_state and value is not by_state[end.what]:
                updates.setdefault(value, by_state[end.what])
                if end.what in self.remote:
                    leaving[value] = end.what
        steps: list[RawStep] = []
        ctx.graph = graph
        with ctx.into(steps), ctx.told(self.spec.options_of(-1)):
            Scope(ctx, graph, updates, _on_chips(graph, chip, lambda node: self._leave(node, leaving))).run()
            back = []
            for value, end in zip(graph.outputs, part.outputs, strict=True):
                if end.kind == STREAM:
                    self.outputs += self._output(end.what, value)
                elif end.what not in self.remote:
                    self.chips.setdefault(end.what, chip.get(value, 0))
                    back.append((by_state.get(end.what, self.graph.params[end.what]), value))
            ctx.label = ctx.at("|variable|new values")
            write_back(ctx, back)
        ctx.chip = 0
        return steps

    def _fetch(self, index: int, param: Value) -> Callable[[Layout], Located]:
        """A maker for a state that comes from streaming memory when the update wants it.

        Of a state that replicas share each streams its own tiles' part, in and out, and the others give it theirs.
        """
        ctx = self.ctx
        self.remote[index] = slot = ctx.new_slot()

        def make(layout: Layout) -> Located:
            with ctx.on(self.chips[index]):
                label, ctx.label = ctx.label, ctx.at(self._variable_label(index))
                var = ctx.var(layout, param.itemsize, "variable")
                raw = from_host(host_rows(layout), var, param.itemsize, slot)
                ctx.steps.append(RawStep(STREAM_IN, [raw], [], [var], ctx.label))
                here = Located(var, layout)
                if self.spec.sharded:
                    emit_collective(ctx, GATHER, here, var, param.dtype, self.spec.replicas)
                ctx.label = label
            return here

        return make

    def _leave(self, node: Node, leaving: dict[Value, int]) -> None:
        """New values go to streaming memory as soon as they are made, so that few are on the tiles at once."""
        ctx = self.ctx
        for value in node.results:
            if value in leaving:
                here = ctx.place(value)
                label, ctx.label = ctx.label, ctx.at(self._variable_label(leaving[value]))
                raw = to_host(here, value.itemsize, self.remote[leaving[value]])
                ctx.steps.append(RawStep(STREAM_OUT, [raw], [here.var], [], ctx.label))
                ctx.label = label

    # ---- the header ----

    def _more(self) -> dict[str, Any]:
        schedule, count = self.schedule, self.spec.micro_batches
        return {
            "slots_loop": [self.first.step, self.last.step],
            "stashes": self.crossing.stashes,
            "windows": [[begin.step, end.step, p, int(link)] for begin, end, p, link in self.windows],
            "pipeline": {
                "schedule": schedule.kind.name if self.spec.pipelined else "",
                "stages": len(schedule.devices) if self.spec.pipelined else 0,
                "program_stages": schedule.stages,
                "chips": [schedule.chip(p) for p in range(schedule.stages)],
                "period": schedule.period,
                "rows": schedule.rows,
                "micro_batches": count,
                "slots": schedule.slots(count),
                "queues": self.crossing.queues,
            },
        }


def _fill_zero(ctx: Context, here: Located, value: Value) -> None:
    """Set a variable to zero: one vertex of an expression without operands."""
    from ipu_keras.compiler.lower.elementwise import emit_map

    zero = np.zeros((), np.float32 if value.dtype == "f32" else np.float16)
    body = (("add", value.dtype, value.dtype, (-1, -1)),)
    emit_map(ctx, here.layout, body, ((value.dtype, zero),), (0,), [], [], [], [here.var])


def _weights(update: Part, params: list[Value]) -> dict[Value, Value]:
    """Accumulated value -> the entry parameter whose new value is made of it: the weight that a gradient is for."""
    # Sums that reach a value through values of their own shape alone.
    made_of: dict[Value, set[Value]] = {
        param: {end.what} for param, end in zip(update.graph.params, update.inputs, strict=True) if end.kind == ACC
    }
    for node in update.graph.nodes:
        for value in node.results:
            totals = {t for v in node.inputs if v.shape == value.shape for t in made_of.get(v, ())}
            if totals:
                made_of[value] = totals
    found: dict[Value, Value] = {}
    for value, end in zip(update.graph.outputs, update.outputs, strict=True):
        if end.kind == STATE and value.shape == params[end.what].shape:
            for total in made_of.get(value, ()):
                found.setdefault(total, params[end.what])
    return found


def _on_chips(graph: Any, chip: dict[Value, int], then: Callable[[Node], None]) -> Any:
    """Lower each node of a graph on the chip where its operands are, then do something with it."""
    users: dict[Value, list[Node]] = graph.users()

    def of(node: Node) -> int:
        if node.op == LINK:
            return int(node.attrs["chip"])
        for value in node.inputs:
            if value in chip:
                return chip[value]
        return next((of(u) for v in node.results for u in users.get(v, ())), 0)

    def lower_there(ctx: Context, node: Node) -> None:
        at = of(node)
        for value in node.results:
            chip[value] = at
        ctx.chip = at
        lower(ctx, node)
        if any(value in ctx.lazy and value not in ctx.located for value in node.results):
            for value in node.results:
                if value in ctx.lazy:
                    ctx.lazy[value] = _there(ctx, at, ctx.lazy[value])
        then(node)

    return lower_there


def _there(ctx: Context, chip: int, make: Any) -> Any:
    def on_chip(layout: Layout) -> Located:
        with ctx.on(chip):
            found: Located = make(layout)
        return found

    return on_chip
