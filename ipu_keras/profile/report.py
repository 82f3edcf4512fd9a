"""The profile of a program: all that is known of its cost without running it."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import Any

from ipu_keras.profile import export
from ipu_keras.profile.cycles import StepCycles, step_cycles
from ipu_keras.profile.groups import Groups
from ipu_keras.profile.layers import LayerCost, layer_costs, work_by_group
from ipu_keras.profile.liveness import Category, Liveness, categories, liveness
from ipu_keras.profile.memory import MemoryReport, memory_report
from ipu_keras.profile.operations import Work
from ipu_keras.profile.timeline import Timeline, timeline
from ipu_keras.profile.vertices import VertexType, counts, vertex_types
from ipu_runtime.program import COMPUTE, KIND_NAMES, REPEAT, Program


class Profile:
    """Cost of one iteration of a program.

    Every figure is worked out when it is first asked for. What each means, and its unit: docs/profile.md.

    Args:
        program: what to look at.

    Example:
        >>> exe.profile().cycles  # doctest: +SKIP
        41873
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def _looked(self) -> tuple[list[StepCycles], MemoryReport]:
        # Cycles and code follow from the same numbers of each group, which are not kept.
        groups = Groups(self.program)
        return step_cycles(self.program, groups), memory_report(self.program, groups)

    @property
    def steps(self) -> list[StepCycles]:
        """Each superstep's cycles."""
        return self._looked[0]

    @property
    def memory(self) -> MemoryReport:
        """Does it fit?"""
        return self._looked[1]

    @cached_property
    def times(self) -> list[int]:
        """How often each step runs in an iteration: a loop's trips; 1 where a loop's trips are not known (see
        `open_loops`); 0 for the cheaper side of a conditional."""
        times = self._times_in_turn[:]
        slots = self.program.header.get("slots_loop")
        if slots is not None:
            turns = next(t for low, _, t in self.program.header["loops"] if low == slots[0])
            due = [turns] * len(times)
            for a, b, _, _ in self.program.header["windows"]:
                due[a:b] = [self.program.micro_batches] * (b - a)
            for i in range(slots[0], slots[1] + 1):
                times[i] *= due[i]
        return times

    @cached_property
    def _times_in_turn(self) -> list[int]:
        """The same, but in one turn of the loop over slots."""
        times = [1] * len(self.steps)
        slots = self.program.header.get("slots_loop", [-1])[0]
        for low, high, trips in self.program.header.get("loops", []):
            for i in range(low, high) if low != slots else ():
                times[i] *= 1 if trips is None else trips
        for branch, otherwise, end in self.program.header.get("choices", []):
            sides = (range(branch + 1, otherwise), range(otherwise, end))
            for i in min(sides, key=lambda side: sum(self.steps[k].total * times[k] for k in side)):
                times[i] = 0
        return times

    @cached_property
    def _in_iteration(self) -> list[int]:
        """The same, and 0 for steps before the loop."""
        return [0] * self.loop_start + self.times[self.loop_start :]

    @property
    def open_loops(self) -> int:
        """Loops whose number of trips only the data knows; they are counted once."""
        return sum(trips is None for _, _, trips in self.program.header.get("loops", []))

    @property
    def loop_start(self) -> int:
        """The first step of an iteration; those before it run once an execution."""
        kinds = self.program.steps[:, 0].tolist()
        return kinds.index(REPEAT) if REPEAT in kinds else 0

    # ---- time ----

    @cached_property
    def cycles(self) -> int:
        """Cycles of one iteration; steps before the loop, which run once an execution, are in `startup_cycles`.

        With several chips: until the last one is done, see `timeline`.
        """
        return self.timeline.cycles

    @cached_property
    def timeline(self) -> Timeline:
        """When which chip works on what in an iteration."""
        return timeline(self.program, self.steps, self._times_in_turn, self.loop_start)

    @cached_property
    def startup_cycles(self) -> int:
        """Cycles of what does not change, computed once an execution."""
        return self._sum(range(self.loop_start))

    def _sum(self, steps: range) -> int:
        return sum(self.steps[i].total * self.times[i] for i in steps)

    @property
    def seconds(self) -> float:
        """Time of one iteration at the target's clock."""
        return self.cycles / float(self.program.header["target"]["clock_hz"])

    @cached_property
    def phases(self) -> dict[str, int]:
        """Cycles of an iteration by what the chip does: compute, exchange, sync, host streams.

        With several chips those of all chips, and what they wait for each other: together `cycles` for each chip.
        """
        found = {"compute": 0, "exchange": 0, "sync": 0, "host": 0}
        for step, n in zip(self.steps, self._in_iteration, strict=True):
            if step.links:
                continue  # links of a slot run together: the timeline knows how long
            # A chip's share of each phase is what its own cycles are of the slowest chip's.
            share = n * sum(step.by_chip) / step.total if step.by_chip and step.total else n
            found["sync"] += int(share * step.sync)
            found["compute"] += int(share * step.compute)
            found["host" if KIND_NAMES[step.kind].startswith("stream") else "exchange"] += int(share * step.exchange)
        if self.program.ipus > 1:
            found["sync"] += self.timeline.link_sync
            found["exchange"] += self.timeline.link_exchange
            found["waiting"] = self.program.ipus * self.cycles - sum(found.values())
        return found

    @cached_property
    def rearrangement_cycles(self) -> int:
        """Of the compute cycles, those that put data in order on a tile, in the steps of exchanges."""
        return sum(
            n * step.compute for step, n in zip(self.steps, self._in_iteration, strict=True) if step.kind != COMPUTE
        )

    @cached_property
    def unvalidated(self) -> float:
        """Share of an iteration's cycles that comes from a formula of our own, without a published source.

        The constants of the target that have no source are not counted here: docs/timing.md names them.
        """
        cycles = sum(n * step.unsourced for step, n in zip(self.steps, self._in_iteration, strict=True))
        return cycles / self.cycles if self.cycles else 0.0

    # ---- work ----

    @cached_property
    def _work(self) -> list[Work]:
        return work_by_group(self.program)

    def _total(self, of: str) -> Any:
        rows = zip(self.program.steps.tolist(), self._in_iteration, strict=True)
        return sum(n * getattr(self._work[i], of) for (_, first, last, _), n in rows for i in range(first, last) if n)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of an iteration's products and convolutions, two for each multiply-accumulate."""
        return int(self._total("flops"))

    @cached_property
    def elementwise_ops(self) -> int:
        """Operations of an iteration's element-wise vertices."""
        return int(self._total("elementwise"))

    @property
    def flops_per_second(self) -> float:
        """`flops` over the time of an iteration."""
        return self.flops / self.seconds if self.cycles else 0.0

    @cached_property
    def utilisation(self) -> float:
        """`flops` over what the chip's AMPs could do in the iteration's cycles with operands of these dtypes."""
        return float(self._total("peak_cycles")) / self.program.tile_count / self.cycles if self.cycles else 0.0

    # ---- parts ----

    @cached_property
    def layers(self) -> list[LayerCost]:
        """What each layer costs in an iteration, dearest first; what belongs to no layer has the name ""."""
        return layer_costs(self.program, self.steps, self._in_iteration, self._work)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many variables, vertices, compute sets, exchanges, host streams and steps there are."""
        return counts(self.program)

    @cached_property
    def vertex_types(self) -> list[VertexType]:
        """The types of vertices, dearest first."""
        return vertex_types(self.program, self.steps, self._in_iteration)

    @cached_property
    def categories(self) -> list[Category]:
        """What each tile holds when it is fullest, by category; together `memory.by_tile`."""
        return categories(self.program, self.memory)

    @cached_property
    def liveness(self) -> Liveness:
        """What lives at each step, over the chip and on its fullest tile."""
        return liveness(self.program, self.memory)

    def live_on(self, tile: int) -> Liveness:
        """The same for another tile.

        Args:
            tile: its number.

        Raises:
            IndexError: the chip has no such tile.
        """
        if not 0 <= tile < self.program.tile_count:
            raise IndexError(f"tile {tile} of a chip with {self.program.tile_count} tiles")
        return liveness(self.program, self.memory, tile)

    # ---- out ----

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers, texts, lists and dictionaries; see `ipu_keras.profile.schema`.

        Example:
            >>> exe.profile().to_dict()["layers"][0]["cycles"]  # doctest: +SKIP
        """
        return export.to_dict(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict()` to a file.

        Args:
            path: of the file.

        Raises:
            OSError: it cannot be written.
        """
        text = json.dumps(self.to_dict(), allow_nan=False)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def profile(program: Program) -> Profile:
    """Cost of a program, from its own tables."""
    return Profile(program)
