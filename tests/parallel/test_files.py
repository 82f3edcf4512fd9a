"""Programs for several chips in files: the same bits after loading; files that somebody altered are refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ipu_keras import executable, hlo
from ipu_keras.errors import ExecutableFormatError
from ipu_runtime.codelets import registry
from ipu_runtime.engine import Engine
from ipu_runtime.format import save
from ipu_runtime.program import COLLECTIVE, FOR, NEXT, WINDOW, Program
from tests.parallel import pipelines as pl

PLAN = pl.Plan("Grouped", 3, 6, 2, optimizer="adam")


@pytest.fixture(scope="module")
def trained():
    """An executable of a pipeline, and the model."""
    model = pl.in_scope(PLAN, pl.mlp)
    x, y = pl.normal(PLAN.samples, pl.FEATURES), pl.normal(PLAN.samples, pl.CLASSES, seed=1)
    model.fit(x, y, batch_size=PLAN.batch, shuffle=False, verbose=0)
    return executable(model)


def run(program: Program) -> dict[str, bytes]:
    """States and outputs after two updates from small states."""
    engine = Engine(program, 1, True)
    numpy = {"f32": np.float32, "s32": np.int32, "s64": np.int64, "u32": np.uint32}
    for state in program.header["states"]:
        if not state["internal"]:
            value = np.arange(np.prod(state["shape"], dtype=int)).reshape(state["shape"]) % 7 / 50 + 0.01
            engine.write_state(state["param"], value.astype(numpy[state["dtype"]]))
    steps = 2 * program.micro_batches
    feeds = {f["param"]: pl.normal(steps, program.replicas, *f["shape"]) for f in program.header["feeds"]}
    outputs = engine.run(feeds, 2)
    found = {f"output {k}": v for k, v in outputs.items()}
    for state in program.header["states"]:
        if not state["internal"]:
            found[f"state {state['param']}"] = engine.read_state(state["param"])
    assert all(np.isfinite(v).all() for v in found.values())
    return {name: v.tobytes() for name, v in found.items()}


def test_round_trip(trained, tmp_path):
    trained.save(tmp_path / "model.ipu")
    loaded = hlo.load(tmp_path / "model.ipu")
    for name in Program.ARRAYS:
        np.testing.assert_array_equal(getattr(loaded.program, name), getattr(trained.program, name), name)
    assert (loaded.program.ipus, loaded.program.replicas, loaded.program.micro_batches) == (3, 2, 6)
    assert run(loaded.program) == run(trained.program)
    assert loaded.profile().cycles == trained.profile().cycles
    assert loaded.profile().timeline.events == trained.profile().timeline.events


def altered(program: Program) -> Program:
    changed = copy.deepcopy(program)
    changed._views, changed.found = {}, {}
    return changed


def groups_of(program: Program, kind: int) -> list[int]:
    """Numbers of the first groups of all steps of a kind."""
    return program.steps[program.steps[:, 0] == kind, 1].tolist()


def parameter(program: Program, group: int, index: int, value: int) -> None:
    program.params[program.groups[group, 2] + index] = value


def fifos(program: Program) -> list[int]:
    return np.flatnonzero(program.groups[:, 0] == registry.FIFO).tolist()


def windows(index, value):
    return lambda p: parameter(p, groups_of(p, WINDOW)[1], index, value)


CHANGES = {
    "a window that goes back": windows(0, 0),
    "a window that goes nowhere": windows(0, 10**6),
    "a window that goes to no label": lambda p: parameter(
        p, groups_of(p, WINDOW)[0], 0, int(np.flatnonzero(p.steps[:, 0] == WINDOW)[0]) + 1
    ),
    "a window that leaves its loop": lambda p: parameter(
        p, groups_of(p, WINDOW)[0], 0, int(np.flatnonzero(p.steps[:, 0] == NEXT)[0])
    ),
    "a window of another count": windows(2, 7),
    "a window that is never due": windows(1, 1 << 40),
    "a loop without turns": lambda p: parameter(p, groups_of(p, FOR)[0], 0, 0),
    "a loop for ever": lambda p: parameter(p, groups_of(p, FOR)[0], 0, 1 << 40),
    "a loop that ends elsewhere": lambda p: parameter(p, groups_of(p, NEXT)[0], 0, 1),
    "a queue without depth": lambda p: parameter(p, fifos(p)[0], 1, 0),
    "a negative queue": lambda p: parameter(p, fifos(p)[0], 1, -3),
    "a queue beyond its tile": lambda p: parameter(p, fifos(p)[0], 1, 1 << 20),
    "no such action of a queue": lambda p: parameter(p, fifos(p)[0], 0, 3),
    "groups of no replicas": lambda p: parameter(p, groups_of(p, COLLECTIVE)[0], 2, 0),
    "groups that replicas do not fill": lambda p: parameter(p, groups_of(p, COLLECTIVE)[0], 2, 3),
    "no replicas": lambda p: p.header.update(replicas=0),
    "half a replica": lambda p: p.header.update(replicas=1.5),
    "a million replicas": lambda p: p.header.update(replicas=10**6),
    "odd replicas for pairs": lambda p: p.header.update(replicas=3),
    "no chips": lambda p: p.header.update(ipus=0),
    "fewer chips than tiles": lambda p: p.header.update(ipus=1),
    "a million chips": lambda p: p.header.update(ipus=10**6),
    "no micro-batches": lambda p: p.header.update(micro_batches=0),
    "other micro-batches": lambda p: p.header.update(micro_batches=4),
    "feeds of another count": lambda p: p.header["feeds"][0].update(micro=5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_altered_programs(trained, tmp_path, name):
    changed = altered(trained.program)
    CHANGES[name](changed)
    with pytest.raises(ExecutableFormatError):
        save(changed, tmp_path / "changed.ipu")  # whether or not it is saved, it is not loaded
        hlo.load(tmp_path / "changed.ipu")


# What nobody reads is not checked; what is read by the profile must not bring it down.

HEADERS = {
    "no pipeline": lambda h: h.pop("pipeline"),
    "a period of nothing": lambda h: h["pipeline"].update(period=0),
    "no windows": lambda h: h.pop("windows"),
    "windows elsewhere": lambda h: h.update(windows=[[10**6, 10**6 + 1, 0, 0]]),
    "a loop elsewhere": lambda h: h.update(slots_loop=[10**6, 10**6 + 1]),
    "stages that are texts": lambda h: h["pipeline"].update(program_stages="many"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_altered_headers(trained, tmp_path, name):
    """Refused, or loaded with a profile: no other error."""
    changed = altered(trained.program)
    HEADERS[name](changed.header)
    try:
        save(changed, tmp_path / "changed.ipu")
        loaded = hlo.load(tmp_path / "changed.ipu")
    except ExecutableFormatError:
        return
    assert loaded.profile().cycles > 0
    assert loaded.profile().timeline.cycles > 0
