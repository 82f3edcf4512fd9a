"""Lowers what goes from one program stage to a later one: queues on the tiles, and links at the end of a slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, RawStep, Var, host_rows
from ipu_keras.compiler.lower.streams import from_host, to_host
from ipu_keras.compiler.move import plan_move
from ipu_keras.compiler.parallel.cut import Cut
from ipu_keras.compiler.parallel.queues import Keep, Queue, plan_route
from ipu_keras.compiler.parallel.schedule import Schedule
from ipu_keras.graph.ir import Value
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.fifo_model import CLEAR, COUNTER_BYTES, PUT, TAKE
from ipu_runtime.program import BRANCH, COMPUTE, STREAM_IN, STREAM_OUT

__all__ = ["Crossing"]


class Crossing:
    """The values that cross, while the stages are lowered from the first to the last.

    Args:
        ctx: of the lowering.
        schedule: of the pipeline.
        cut: the step in parts.
        stash: bytes from which what waits for a later stage of its chip waits in streaming memory; None for nothing.

    Attributes:
        made: value that crosses -> the output of its stage's graph that it is; filled by whoever lowers the stage.
        bodies: steps of each stage that is lowered.
        links: steps that hand on what each stage has, at the end of its slot.
        before: steps that make the queues empty.
        queues: what there is of queues, for the header.
        stashes: what waits in streaming memory, for the header.
    """

    def __init__(self, ctx: Context, schedule: Schedule, cut: Cut, stash: int | None = None) -> None:
        self._stash = stash
        self._ctx, self._schedule = ctx, schedule
        self._routes = {value: plan_route(schedule, maker, cut.users[value]) for value, maker in cut.made.items()}
        self._arrived: dict[tuple[Value, int], Located] = {}  # on a stage that got it over a link
        self.made: dict[Value, Value] = {}
        self.bodies: list[list[RawStep]] = []
        self.links: list[list[RawStep]] = [[] for _ in range(schedule.stages)]
        self.before: list[RawStep] = []
        self.queues: list[dict[str, Any]] = []
        self.stashes: list[dict[str, Any]] = []

    def take(self, p: int, param: Value, what: Value) -> None:
        """Say where a stage has a value from an earlier one.

        Args:
            p: the stage.
            param: the parameter of its graph that stands for the value.
            what: the value.
        """
        ctx = self._ctx
        if (what, p) in self._arrived:
            ctx.located[param] = self._arrived[what, p]
            return
        use = next(u for u in self._routes[what].uses if u.stage == p)
        here = self._held(what, use.holder)
        if isinstance(use, Keep) and (what, use.holder) not in self._arrived:
            # Another shape of something that came to the stage is overwritten as soon as that is.
            if not any(here.var in step.writes for step in self.bodies[use.holder]):
                use = Queue(use.holder, p, self._schedule.in_flight(use.holder, p))
        if isinstance(use, Keep):
            here.var.carried |= self._position(p) < self._position(use.holder)
            ctx.located[param] = here
            return
        if self._stash is not None and param.nbytes >= self._stash:
            ctx.lazy[param] = self._away(use, here, param)
            return
        queue = self._queue(use, here, param.itemsize)

        def out_of_queue(layout: Layout) -> Located:
            var = ctx.var(here.layout, param.itemsize)
            found = Located(var, here.layout)
            self._fifo(ctx, TAKE, use.depth, found, param.itemsize, queue)
            return found

        ctx.lazy[param] = out_of_queue

    def _held(self, what: Value, stage: int) -> Located:
        """Where a value is on a stage that made it or got it over a link."""
        if (what, stage) in self._arrived:
            return self._arrived[what, stage]
        return self._ctx.place(self.made[what])

    def _position(self, p: int) -> tuple[int, int]:
        """Order of the stages' steps in the text of a turn."""
        return p % self._schedule.period, -p

    def _queue(self, use: Queue, here: Located, itemsize: int) -> tuple[Var, Var]:
        """A new queue for a value; the holder's steps put it in, and before everything it is made empty."""
        ctx, var = self._ctx, here.var
        label, ctx.label = ctx.label, ctx.at(f"|queue|stage {use.holder} to {use.stage}")
        queue = Var(var.tiles, var.sizes * use.depth, "activation", ctx.label, pinned=True, chip=var.chip)
        ends = Var(
            var.tiles, np.full(len(var.tiles), COUNTER_BYTES), "activation", ctx.label, pinned=True, chip=var.chip
        )
        ctx.vars += [queue, ends]
        with ctx.into(self.before):
            self._fifo(ctx, CLEAR, use.depth, here, itemsize, (queue, ends))
        put: list[RawStep] = []
        with ctx.into(put):
            self._fifo(ctx, PUT, use.depth, here, itemsize, (queue, ends))
        self._when_made(use.holder, var, put)
        self.queues.append({"from": use.holder, "to": use.stage, "depth": use.depth, "bytes": int(queue.sizes.sum())})
        ctx.label = label
        return queue, ends

    def _away(self, use: Queue, here: Located, param: Value) -> Callable[[Layout], Located]:
        """A value waits in streaming memory; gives a maker that brings it back."""
        ctx, slot = self._ctx, self._ctx.new_slot()
        label = ctx.at(f"|stash|stage {use.holder} to {use.stage}")
        out = RawStep(STREAM_OUT, [to_host(here, param.itemsize, slot)], [here.var], [], label)
        self._when_made(use.holder, here.var, [out])
        self.stashes.append(
            {
                "slot": slot, "shape": list(param.shape), "dtype": param.dtype, "depth": use.depth,
                "from": use.holder, "to": use.stage,
            }
        )  # fmt: skip

        def back(layout: Layout) -> Located:
            var = ctx.var(here.layout, param.itemsize)
            raw = from_host(host_rows(here.layout), var, param.itemsize, slot)
            ctx.steps.append(RawStep(STREAM_IN, [raw], [], [var], label))
            return Located(var, here.layout)

        return back

    def _when_made(self, stage: int, var: Var, then: list[RawStep]) -> None:
        """Put steps into a stage, behind those that write a variable."""
        steps = self.bodies[stage]
        written = max((i for i, step in enumerate(steps) if var in step.writes), default=-1)
        behind = _behind(steps, written) + 1
        steps[behind:behind] = then

    @staticmethod
    def _fifo(ctx: Context, action: int, depth: int, here: Located, itemsize: int, queue: tuple[Var, Var]) -> None:
        """One vertex on each tile that has a part of the value."""
        (ring, ends), var = queue, here.var
        keep = np.flatnonzero(here.layout.flat_sizes)
        if not len(keep):
            return
        tiles = here.layout.flat_tiles[keep]
        columns: list[Any] = [tiles, here.layout.flat_sizes[keep] * itemsize]
        columns += [Offset(var, tiles) if action != CLEAR else np.zeros(1, np.int64)]
        columns += [Offset(ring, tiles), Offset(ends, tiles)]
        group = RawGroup(registry.FIFO, len(keep), [action, depth], columns)
        reads = {TAKE: [ring, ends], PUT: [var, ends], CLEAR: []}[action]
        writes = {TAKE: [var, ends], PUT: [ring, ends], CLEAR: [ring, ends]}[action]
        ctx.steps.append(RawStep(COMPUTE, [group], reads, writes, ctx.label))

    def hand_on(self, p: int) -> None:
        """Make the links at the end of a stage's slot: what the next one, or one behind it, gets from it.

        Args:
            p: the stage, whose steps are there.
        """
        ctx, moves = self._ctx, []
        late = self._position(p + 1) < self._link_position(p)
        for what, route in self._routes.items():
            if any(hop.stage == p for hop in route.hops):
                here = self._held(what, p)
                with ctx.on(self._schedule.chip(p + 1)):
                    var = ctx.var(here.layout, what.itemsize)
                var.carried = late
                self._arrived[what, p + 1] = Located(var, here.layout)
                moves.append((plan_move(here.layout, here.layout), here.var, var, what.itemsize))
        if moves:
            ctx.label = ctx.at(f"|link|stage {p} to {p + 1}")
            with ctx.into(self.links[p]):
                ctx.exchange(moves)

    def _link_position(self, p: int) -> tuple[int, int]:
        return p % self._schedule.period, 1


def _behind(steps: list[RawStep], at: int) -> int:
    """The last step of the loops and branches that a step is in, else the step itself."""
    place = {step.mark: i for i, step in enumerate(steps) if step.mark is not None}
    regions = [(i, place[step.loop[0]]) for i, step in enumerate(steps) if step.loop is not None]
    for i, step in enumerate(steps):
        if step.kind == BRANCH:
            # A loop's branch goes to its end, a conditional's to its second side, which knows the end.
            side = steps[place[step.groups[0].params[0]]]
            if side.choice is not None:
                regions.append((i, place[side.choice]))
    while True:
        further = max((end for begin, end in regions if begin <= at < end), default=at)
        if further == at:
            return at
        at = further
