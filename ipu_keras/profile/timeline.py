"""When which chip works on what: the loop over slots, walked chip by chip from the program's own steps.

Each chip has a clock, which its own steps move on. Where data goes between chips, those that take part wait for the
last of them: a pipeline's slot is as long as its slowest stage. Transfers at the end of a slot run together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ipu_keras.profile.cycles import StepCycles, link_cycles
from ipu_runtime.program import FOR, Program

__all__ = ["Event", "Timeline", "timeline"]


class Event(NamedTuple):
    """Work of one chip.

    Attributes:
        chip: which.
        what: ``"forward"``, ``"backward"``, ``"exchange"`` (between chips) or ``"update"``.
        stage: forward pipeline stage, -1 for what belongs to none.
        micro_batch: its number in the iteration, -1 for what belongs to none.
        start, end: cycles since the iteration began.
    """

    chip: int
    what: str
    stage: int
    micro_batch: int
    start: int
    end: int


@dataclass
class Timeline:
    """One iteration.

    Attributes:
        cycles: until the last chip is done.
        busy: cycles that each chip works, transfers with them.
        link_sync, link_exchange: of these, all chips' for transfers between chips.
        events: in order of time.
    """

    cycles: int
    busy: list[int]
    link_sync: int = 0
    link_exchange: int = 0
    events: list[Event] = field(default_factory=list)

    def text(self, width: int = 100) -> str:
        """A line for each chip: F and B where it works forward and backward, = exchange, U update, . waiting.

        Args:
            width: characters of an iteration.

        Example:
            >>> print(executable(model).profile().timeline.text())  # doctest: +SKIP
            IPU 0  FF=FF=FF=FFBB=...
        """
        signs = {"forward": "F", "backward": "B", "exchange": "=", "update": "U"}
        lines = [["."] * width for _ in self.busy]
        for event in self.events:
            first, last = (min(width - 1, t * width // max(1, self.cycles)) for t in (event.start, event.end - 1))
            for at in range(first, last + 1):
                lines[event.chip][at] = signs[event.what]
        return "\n".join(f"IPU {chip}  {''.join(line)}" for chip, line in enumerate(lines))


@dataclass
class _Part:
    """Steps in a row that run together: all of one stage, or none's."""

    costs: list[tuple[StepCycles, int]]
    stage: int = -1
    link: bool = False

    def merged(self, chips: int) -> list[int]:
        """Cycles of each chip, where no step is a transfer."""
        out = [0] * chips
        for step, times in self.costs:
            for chip, cycles in enumerate(step.by_chip or (step.total,)):
                out[chip] += cycles * times
        return out


class _Clocks:
    def __init__(self, program: Program) -> None:
        header = program.header
        self.chips = program.ipus
        self.now = [0] * self.chips
        self.busy = [0] * self.chips
        self.link_sync = self.link_exchange = 0
        self.events: list[Event] = []
        self.pipeline = header.get("pipeline", {})
        self.fixed = int(header["target"]["host_fixed_cycles"])

    def work(self, part: _Part, what: str, micro: int) -> None:
        """Steps of a part, one behind the other."""
        begin = list(self.now)
        for step, times in part.costs:
            if step.links:
                self.meet([step.links], times)
                continue
            for chip, cycles in enumerate(step.by_chip or (step.total,)):
                self.now[chip] += cycles * times
                self.busy[chip] += cycles * times
        for chip in range(self.chips):
            if self.now[chip] > begin[chip]:
                self.events.append(Event(chip, what, self.stage(part.stage), micro, begin[chip], self.now[chip]))

    def quick(self, part: _Part, cycles: list[int], what: str, micro: int) -> None:
        """The same for a part without transfers, whose cycles are known."""
        for chip, n in enumerate(cycles):
            if n:
                start = self.now[chip]
                self.events.append(Event(chip, what, self.stage(part.stage), micro, start, start + n))
        self.count(cycles)

    def count(self, cycles: list[int]) -> None:
        """The end of a turn: work that is no event."""
        for chip, n in enumerate(cycles):
            self.now[chip] += n
            self.busy[chip] += n

    def meet(self, transfers: list[tuple[tuple[int, int, int], ...]], times: int = 1) -> None:
        """Transfers that run together: the chips wait for each other first."""
        links = [link for one in transfers for link in one]
        taking = sorted({chip for a, b, _ in links for chip in (a, b)})
        if not taking:
            return
        start = max(self.now[chip] for chip in taking)
        sync, exchange = self.fixed * times, link_cycles(links) * times
        self.link_sync += sync * len(taking)
        self.link_exchange += exchange * len(taking)
        cycles = sync + exchange
        for chip in taking:
            self.now[chip] = start + cycles
            self.busy[chip] += cycles
            self.events.append(Event(chip, "exchange", -1, -1, start, start + cycles))

    def stage(self, program_stage: int) -> int:
        """The forward stage that a program stage belongs to."""
        if program_stage < 0 or not _trains(self.pipeline):
            return program_stage
        return min(program_stage, int(self.pipeline["program_stages"]) - 1 - program_stage)


def _trains(pipeline: dict[str, Any]) -> bool:
    """Whether each stage has a backward stage."""
    return bool(pipeline["program_stages"] == 2 * max(1, pipeline["stages"]))


def timeline(program: Program, steps: list[StepCycles], times: list[int], first: int) -> Timeline:
    """Walk one iteration.

    Args:
        program: the program.
        steps: its cycles.
        times: how often each step runs in a turn of what it is in; of the loop over slots a turn is meant.
        first: the first step of an iteration.
    """
    clocks = _Clocks(program)
    low, high = program.header.get("slots_loop", (len(steps), len(steps)))
    rest = lambda a, b: _Part([(steps[i], times[i]) for i in range(a, b) if times[i]])  # noqa: E731
    clocks.work(rest(first, low), "update", -1)
    if low < len(steps):
        _slots(program, steps, times, clocks, low)
        clocks.work(rest(high + 1, len(steps)), "update", -1)
    return Timeline(max(clocks.now), clocks.busy, clocks.link_sync, clocks.link_exchange, clocks.events)


def _slots(program: Program, steps: list[StepCycles], times: list[int], clocks: _Clocks, low: int) -> None:
    header = program.header
    count, period = program.micro_batches, int(header["pipeline"]["period"])
    half = int(header["pipeline"]["program_stages"]) // 2
    backward = _trains(header["pipeline"])
    parts = []
    for a, b, stage, link in header["windows"]:
        parts.append(_Part([(steps[i], times[i]) for i in range(a, b) if times[i]], stage, bool(link)))
    known = [part.merged(clocks.chips) for part in parts]
    plain = [not any(step.links for step, _ in part.costs) for part in parts]
    assert program.steps[low, 0] == FOR
    turns = int(program.group(int(program.steps[low, 1])).params[0])
    counter = _Part([(steps[int(header["slots_loop"][1])], 1)]).merged(clocks.chips)
    for turn in range(turns):
        waiting: list[tuple[tuple[int, int, int], ...]] = []
        for number, part in enumerate(parts):
            micro = turn - part.stage // period
            if not part.link and waiting:
                clocks.meet(waiting)
                waiting = []
            if not 0 <= micro < count:
                continue
            if part.link:
                waiting += [step.links for step, _ in part.costs]
                continue
            what = "backward" if backward and part.stage >= half else "forward"
            if plain[number]:
                clocks.quick(part, known[number], what, micro)
            else:
                clocks.work(part, what, micro)
        clocks.meet(waiting)
        clocks.count(counter)
