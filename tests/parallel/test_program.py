"""What the program of a pipeline does in which slot, on which chip, and how long that takes: api.md 6."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest

from ipu_keras import executable
from ipu_keras.compiler.parallel.schedule import Schedule
from ipu_keras.errors import IPUError
from ipu_keras.pipelining import PipelineSchedule
from ipu_runtime.codelets import registry
from ipu_runtime.program import COLLECTIVE, EXCHANGE, FOR, STREAM_IN, STREAM_OUT, WINDOW, Program
from tests.parallel import pipelines as pl

SCHEDULES = [s.name for s in PipelineSchedule]


def work(schedule: str, stages: int, count: int, training: bool = True) -> set[tuple[int, int, int]]:
    """(slot, program stage, micro-batch) of all that is done: ramp-up, repeats, ramp-down of api.md 6."""
    program_stages = stages * (2 if training else 1)
    offsets = {
        "Grouped": range(program_stages),
        "Interleaved": range(0, 2 * stages, 2) if training else range(stages),
        "Sequential": range(1),
    }[schedule]
    found = set()
    repeats = count // len(offsets)
    for slot in range(program_stages * (repeats + 1)):
        block, at = divmod(slot, program_stages)
        for row, offset in enumerate(offsets):
            if (block == 0 and at < offset) or (block == repeats and at >= offset):
                continue
            passes = (slot - offset) // program_stages
            found.add((slot, (slot - offset) % program_stages, passes * len(offsets) + row))
    return found


def walked(program: Program) -> set[tuple[int, int, int]]:
    """The same of a program, by its own control steps."""
    header = program.header
    period, loop = header["pipeline"]["period"], None
    found: list[tuple[int, int, int]] = []
    stage_of = {first: stage for first, _, stage, link in header["windows"] if not link}
    for number, (kind, group, _, _) in enumerate(program.steps.tolist()):
        if kind == FOR:
            assert loop is None
            (loop,) = program.group(group).params.tolist()
        elif kind == WINDOW and number in stage_of:
            _, shift, count = program.group(group).params.tolist()
            stage = stage_of[number]
            for turn in range(int(loop or 0)):
                if 0 <= turn - shift < count:
                    found.append((turn * period + stage % period, stage, turn - shift))
    assert len(found) == len(set(found))
    return set(found)


@functools.cache
def compiled(plan: pl.Plan, kind: str = "train", width: int = 0) -> Any:
    """An executable of which nothing but its program is looked at.

    Args:
        plan: how the model is trained, or over how many batches it is evaluated.
        kind: ``"train"`` or ``"test"``.
        width: 0 for `pipelines.mlp`, else of all layers of a model of equal stages.
    """

    def equal(stages: int, stage: pl.Stage) -> keras.Model:
        x = inputs = keras.Input((width,))
        for k in range(stages):
            with stage(k):
                x = keras.layers.Dense(width, use_bias=False)(x)
        return keras.Model(inputs, x, name="m")

    keras.utils.clear_session(free_memory=False)
    model = pl.in_scope(plan, equal if width else pl.mlp)
    shape = (width, width) if width else (pl.FEATURES, pl.CLASSES)
    x, y = (np.zeros((plan.samples, n), np.float32) for n in shape)
    if kind == "train":
        model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
    else:
        model.evaluate(x, y, batch_size=plan.batch, verbose=0)
    return executable(model, kind)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule(schedule, stages, training):
    """Slots and executions without a program, for many counts."""
    found = Schedule(PipelineSchedule[schedule], tuple(range(stages)), training)
    program_stages, rows = stages * (1 + training), pl.rows(schedule, stages, training)
    assert (found.stages, found.rows) == (program_stages, rows)
    for count in [rows * n for n in range(1, 6)]:
        expected = work(schedule, stages, count, training)
        assert {(found.slot(m, s), s, m) for m in range(count) for s in range(program_stages)} == expected
        slots = {
            "Grouped": count + program_stages - 1,
            "Interleaved": 2 * count + 2 * stages - 2 if training else count + stages - 1,
            "Sequential": count * program_stages,
        }[schedule]
        assert found.slots(count) == slots == max(slot for slot, _, _ in expected) + 1
        assert Counter(stage for _, stage, _ in expected) == dict.fromkeys(range(program_stages), count)


@pytest.mark.sweep(turns=3)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_slots_of_a_training_program(schedule, stages, times):
    count = pl.rows(schedule, stages) * times
    exe = compiled(pl.Plan(schedule, stages, count))
    expected = work(schedule, stages, count)
    assert walked(exe.program) == expected
    assert exe.program.header["pipeline"]["slots"] == max(slot for slot, _, _ in expected) + 1
    # The same by the clock: each stage once for each micro-batch, on its own chip.
    events = [e for e in exe.profile().timeline.events if e.what in ("forward", "backward")]
    done = Counter((e.what, e.stage, e.micro_batch, e.chip) for e in events)
    every = [(w, s, m, s) for w in ("forward", "backward") for s in range(stages) for m in range(count)]
    assert set(done) == set(every)
    for chip in range(stages):  # one thing at a time
        own = sorted((e.start, e.end) for e in exe.profile().timeline.events if e.chip == chip and e.what != "update")
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(own))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_slots_of_an_inference_program(schedule, stages):
    count = 2 * pl.rows(schedule, stages, training=False)
    program = compiled(pl.Plan(schedule, stages, count, updates=1), "test").program
    assert walked(program) == work(schedule, stages, count, training=False)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_depths_of_queues(schedule, stages):
    """A queue holds what api.md counts and the block that is handed over in the slot itself."""
    program = compiled(pl.Plan(schedule, stages, pl.rows(schedule, stages) * 3)).program
    per_stage = {"Grouped": 2, "Interleaved": 1, "Sequential": 0}[schedule]
    found: dict[int, set[int]] = {}
    for queue in program.header["pipeline"]["queues"]:
        assert queue["to"] == 2 * stages - 1 - queue["from"]
        found.setdefault(queue["from"], set()).add(queue["depth"] - 1)
    if schedule == "Sequential":
        assert not found
    for stage in range(stages):
        depth = per_stage * (stages - 1 - stage)
        assert found.get(stage, {0}) == {depth}
    # What the program's vertices say: each queue is filled once in its stage, and emptied once.
    spans = {s: range(a, b) for a, b, s, link in program.header["windows"] if not link}
    for stage in range(stages):
        put, take = (fifos(program, spans[s], action) for s, action in ((stage, 1), (2 * stages - 1 - stage, 0)))
        assert put == take == Counter(q["depth"] for q in program.header["pipeline"]["queues"] if q["from"] == stage)


def fifos(program: Program, steps: range, action: int) -> Counter[int]:
    """Depths of the queues that some steps fill (1) or empty (0)."""
    views = [program.group(g) for n in steps for g in range(program.steps[n, 1], program.steps[n, 2])]
    return Counter(int(v.params[1]) for v in views if v.codelet == registry.FIFO and v.params[0] == action)


PLACED = [
    pl.Plan("Grouped", 3, 6, optimizer="adam"),
    pl.Plan("Interleaved", 3, 3, mapping=(2, 0, 1), optimizer="momentum"),
    pl.Plan("Grouped", 4, 8, mapping=(0, 1, 1, 0)),
    pl.Plan("Sequential", 4, 2, 2, mapping=(1, 0, 1, 0), optimizer="adam"),
]


@pytest.mark.parametrize("plan", PLACED, ids=str)
def test_each_stage_has_its_chip(plan):
    """Weights, sums, activations, optimizer states and vertices of a layer are on the chip of its stage."""
    program = compiled(plan).program
    header, tiles = program.header, program.header["target"]["tiles"]
    mapping = plan.mapping or tuple(range(plan.stages))
    # In order: a layer for each stage, and one more in the last.
    chip_of = {"dense" + (f"_{n}" if n else ""): mapping[min(n, plan.stages - 1)] for n in range(plan.stages + 1)}
    seen: Counter[str] = Counter()

    def check(label: str, at: Any) -> None:
        chips = set((np.asarray(at) // tiles).ravel().tolist())
        path, phase, *_ = label.split("|")
        name = path.removeprefix("m/")
        if name in chip_of:
            assert chips == {chip_of[name]}, label
            seen[name, phase] += 1
        elif path in ("loss", "metrics") or path.startswith("metrics/"):
            assert chips == {mapping[-1]}, label

    for _, _, _, first, cells, label in program.variables.tolist():
        check(header["labels"][label], program.cells[first : first + cells, 0])
    for number, (kind, first, last, _) in enumerate(program.steps.tolist()):
        for group in range(first, last):
            view = program.group(group)
            if view.codelet != registry.COPY and kind not in (FOR, WINDOW, COLLECTIVE):
                check(header["labels"][header["group_labels"][group]], view.tiles)
        del number
    for name in chip_of:
        assert all(seen[name, phase] for phase in ("variable", "forward", "backward"))
    if plan.optimizer != "sgd":
        slots = [s for s in header["states"] if s["shape"]]
        assert len(slots) == len(chip_of) * 2 * {"adam": 3, "momentum": 2}[plan.optimizer]
        fetches = [
            program.group(group)
            for kind, first, last, _ in program.steps.tolist()
            for group in range(first, last)
            if kind == STREAM_IN
        ]
        for state in slots:  # each is written by the host on one chip, that of its weight
            if "remote" in state:
                writes = [view for view in fetches if int(view.params[2]) == state["remote"]]
            else:
                writes = [program.group(state["write"][0])]
            assert len({chip for view in writes for chip in (view.col(1) // tiles).tolist()}) == 1


@pytest.mark.parametrize("plan", PLACED, ids=str)
def test_only_links_join_chips(plan):
    program = compiled(plan).program
    header, tiles = program.header, program.header["target"]["tiles"]
    low, high = header["slots_loop"]
    across = 0
    for number, (kind, first, last, label) in enumerate(program.steps.tolist()):
        chips = set()
        for group in range(first, last):
            view = program.group(group)
            if kind == EXCHANGE:
                both = np.stack([np.broadcast_to(view.col(side) // tiles, view.rows) for side in (0, 1)])
                if (both[0] != both[1]).any():
                    across += 1
                    in_stage = [s for a, b, s, link in header["windows"] if a < number < b and not link]
                    assert not in_stage, header["labels"][label]
                    assert not low < number < high or "|link|" in header["labels"][label]
            elif kind not in (STREAM_IN, STREAM_OUT):
                chips |= set((view.tiles // tiles).tolist())
        stage = [s for a, b, s, _ in header["windows"] if a < number < b]
        if stage and chips:
            assert chips == {header["pipeline"]["chips"][stage[0]]}
    assert across
    # Forward and backward over each border of stages on two chips: one after another, each a window of its own.
    mapping = plan.mapping or tuple(range(plan.stages))
    program_stages = [*mapping, *reversed(mapping)]
    borders = [p for p, pair in enumerate(itertools.pairwise(program_stages)) if pair[0] != pair[1]]
    assert sorted(s for _, _, s, link in header["windows"] if link) == borders


def test_memory_is_each_chips_own():
    """A wide layer in the second stage fills the second chip, and leaves the first alone."""
    used = {}
    for width in (8, 256):
        plan = pl.Plan("Grouped", 2, 4)

        def build(stages, stage, width=width):
            inputs = keras.Input((8,))
            with stage(0):
                x = keras.layers.Dense(8)(inputs)
            with stage(1):
                x = keras.layers.Dense(1)(keras.layers.Dense(width)(x))
            return keras.Model(inputs, x, name="m")

        model = pl.in_scope(plan, build)
        x, y = (np.zeros((plan.samples, n), np.float32) for n in (8, 1))
        model.fit(x, y, batch_size=plan.batch, verbose=0)
        program = executable(model).program
        cells = program.cells[program.cells[:, 0] >= 0].astype(np.int64)
        owners = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
        kept = program.variables[owners, 0] == 0  # variables
        chip = cells[:, 0] // program.header["target"]["tiles"]
        used[width] = [int(cells[kept & (chip == c), 2].sum()) for c in range(2)]
    assert used[8][0] == used[256][0] > 0
    # Weights and their sums.
    assert used[256][1] - used[8][1] >= 2 * 4 * (8 + 1 + 1) * (256 - 8)


@pytest.mark.parametrize("pipelined", [True, False])
def test_compiled_only(pipelined):
    """What does not execute is compiled for the same slots."""
    plan = pl.Plan("Grouped", 2, 4, 2, updates=1)
    keras.utils.clear_session(free_memory=False)
    model = pl.in_scope(plan, pl.mlp, pipelined=pipelined, execute=False)
    x, y = (np.zeros((plan.samples, n), np.float32) for n in (pl.FEATURES, pl.CLASSES))
    model.fit(x, y, batch_size=plan.batch, verbose=0)
    program = executable(model).program
    assert (program.replicas, program.micro_batches) == (2, 4)
    if pipelined:
        for name in Program.ARRAYS:
            np.testing.assert_array_equal(getattr(program, name), getattr(compiled(plan).program, name), name)
        with pytest.raises(IPUError, match="execute=False"):
            model.evaluate(x, y, batch_size=plan.batch, verbose=0)
        assert walked(executable(model, "test").program) == work("Grouped", 2, 4, training=False)


def test_replicas_share_a_program():
    one, two = (compiled(pl.Plan("Grouped", 2, 4, r, updates=1), "test").program for r in (1, 2))
    assert (one.replicas, two.replicas) == (1, 2)
    assert one.tile_count == two.tile_count == 2 * one.header["target"]["tiles"]
    for name in Program.ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)


def test_the_same_program_each_time():
    plan = pl.Plan("Grouped", 3, 6, 2, optimizer="adam")
    first = compiled(plan).program
    compiled.cache_clear()
    second = compiled(plan).program
    assert first is not second
    for name in Program.ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)
    assert {k: v for k, v in first.header.items() if k != "compile_seconds"} == {
        k: v for k, v in second.header.items() if k != "compile_seconds"
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cycles_of_equal_stages(schedule):
    """One more micro-batch takes as long as the fullest chip works on it; Sequential, as long as all of them do."""
    stages, few = 4, pl.rows(schedule, 4)
    lines = [compiled(pl.Plan(schedule, stages, few * n, updates=1), width=32).profile().timeline for n in (2, 3)]
    more = (lines[1].cycles - lines[0].cycles) / few
    events = [e for e in lines[1].events if e.stage >= 0 and e.micro_batch == few]
    chips = [sum(e.end - e.start for e in events if e.chip == chip) for chip in range(stages)]
    assert abs(chips[1] - chips[2]) < 0.1 * chips[1]  # stages in the middle are equal
    last = max(e.end for e in lines[1].events if e.stage >= 0)
    link = max(e.end - e.start for e in lines[1].events if e.what == "exchange" and e.end <= last)
    period = {"Grouped": 1, "Interleaved": 2, "Sequential": 2 * stages}[schedule]
    slots = np.zeros((period, stages))
    for e in events:
        program_stage = e.stage if e.what == "forward" else 2 * stages - 1 - e.stage
        slots[program_stage % period, e.chip] += e.end - e.start
    slowest = sum(chips) if schedule == "Sequential" else max(chips)
    assert slowest < more <= slots.max(1).sum() + period * link + 43  # a counter of turns: hardware.md 3.12


@pytest.mark.parametrize(
    "plan", [pl.Plan("Grouped", 4, 8), pl.Plan("Interleaved", 3, 6), pl.Plan("Sequential", 2, 3)], ids=str
)
def test_phases_are_what_the_chips_do(plan):
    """Links of a slot run together: their phases are the timeline's, and with the waiting all add up."""
    profile = compiled(plan).profile()
    working = sum(n for phase, n in profile.phases.items() if phase != "waiting")
    assert abs(working - sum(profile.timeline.busy)) < len(profile.steps)  # each is rounded
    assert profile.phases["waiting"] > 0
    assert sum(profile.phases.values()) == profile.program.ipus * profile.cycles
    header = profile.program.header
    turns = -(-header["pipeline"]["slots"] // header["pipeline"]["period"])
    end = header["slots_loop"][1]
    assert (profile.steps[end].by_chip, profile.times[end]) == ((43,) * profile.program.ipus, turns)  # hardware.md 3.12
