"""What a program costs: cycles by step, layer and phase; bytes by tile and category. Needs no run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ipu_keras.profile.cycles import StepCycles, step_cycles
from ipu_keras.profile.memory import MemoryReport, largest_on_tile, memory_report
from ipu_runtime.program import END, JUMP, KIND_NAMES, LABEL, REPEAT, Program

__all__ = ["LayerCost", "MemoryReport", "Profile", "largest_on_tile", "profile"]


@dataclass
class LayerCost:
    """Cycles of a layer, by phase ("forward", "backward", "variable", "stream")."""

    layer: str
    cycles: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


class Profile:
    """Cost of one iteration of a program.

    Args:
        program: what to look at.

    Example:
        >>> exe.profile().cycles  # doctest: +SKIP
        41873
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def steps(self) -> list[StepCycles]:
        """Each superstep's cycles."""
        return step_cycles(self.program)

    @cached_property
    def times(self) -> list[int]:
        """How often each step runs in an iteration: a loop's trips; 1 where a loop's trips are not known (see
        `open_loops`); 0 for the cheaper side of a conditional."""
        times = [1] * len(self.steps)
        for low, high, trips in self.program.header.get("loops", []):
            for i in range(low, high):
                times[i] *= 1 if trips is None else trips
        for branch, otherwise, end in self.program.header.get("choices", []):
            sides = (range(branch + 1, otherwise), range(otherwise, end))
            for i in min(sides, key=lambda side: sum(self.steps[k].total * times[k] for k in side)):
                times[i] = 0
        return times

    @property
    def open_loops(self) -> int:
        """Loops whose number of trips only the data knows; they are counted once."""
        return sum(trips is None for _, _, trips in self.program.header.get("loops", []))

    @cached_property
    def cycles(self) -> int:
        """Cycles of one iteration; steps before the loop, which run once an execution, are in `startup_cycles`."""
        return self._sum(range(self._loop_start, len(self.steps)))

    @cached_property
    def startup_cycles(self) -> int:
        """Cycles of what does not change, computed once an execution."""
        return self._sum(range(self._loop_start))

    def _sum(self, steps: range) -> int:
        return sum(self.steps[i].total * self.times[i] for i in steps)

    @property
    def _loop_start(self) -> int:
        kinds = self.program.steps[:, 0].tolist()
        return kinds.index(REPEAT) if REPEAT in kinds else 0

    @property
    def seconds(self) -> float:
        """Time of one iteration at the target's clock."""
        return self.cycles / float(self.program.header["target"]["clock_hz"])

    @cached_property
    def memory(self) -> MemoryReport:
        """Does it fit?"""
        return memory_report(self.program)

    @cached_property
    def phases(self) -> dict[str, int]:
        """Cycles of an iteration by what the chip does: compute, exchange, sync, host streams."""
        found = {"compute": 0, "exchange": 0, "sync": 0, "host": 0}
        for step, n in list(zip(self.steps, self.times, strict=True))[self._loop_start :]:
            found["sync"] += n * step.sync
            found["compute"] += n * step.compute
            found["host" if KIND_NAMES[step.kind].startswith("stream") else "exchange"] += n * step.exchange
        return found

    @cached_property
    def layers(self) -> list[LayerCost]:
        """Cycles of an iteration by layer, dearest first; what belongs to no layer has the name ""."""
        labels, of_group = self.program.header["labels"], self.program.header["group_labels"]
        found: dict[str, LayerCost] = {}
        for (kind, first, last, _), step, n in zip(self.program.steps.tolist(), self.steps, self.times, strict=True):
            if kind in (REPEAT, END, LABEL, JUMP) or first < self._first_group:
                continue
            for group, cycles in zip(range(first, last), step.by_group, strict=True):
                layer, phase, _ = [*labels[of_group[group]].split("|", 2), "", ""][:3]
                cost = found.setdefault(layer, LayerCost(layer))
                cost.cycles += n * cycles
                cost.phases[phase] = cost.phases.get(phase, 0.0) + n * cycles
        return sorted(found.values(), key=lambda c: -c.cycles)

    @property
    def _first_group(self) -> int:
        start = self._loop_start
        return int(self.program.steps[start, 2]) if len(self.program.steps) else 0


def profile(program: Program) -> Profile:
    """Cost of a program, from its own tables."""
    return Profile(program)
