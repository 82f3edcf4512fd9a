"""What the emulation must keep true, each broken on purpose: a program altered so that it breaks the rule is caught."""

import copy

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.profile.memory import fixed_bytes
from ipu_runtime.codelets import registry
from ipu_runtime.engine import Engine
from ipu_runtime.errors import StrictModeError
from ipu_runtime.program import COMPUTE, EXCHANGE, STREAM_IN, Program
from ipu_runtime.strict import PATTERN, Watch, check_bounds, spans
from tests.harness import hlo_of

rng = np.random.default_rng(0)
ARGS = [rng.normal(size=s).astype(np.float32) for s in ((40, 33), (33, 21), (21,), (2, 6, 6, 3), (3, 3, 3, 4))]


def model(x, w, b, image, kernel):
    with tf.GradientTape() as tape:
        tape.watch([w, b, kernel])
        y = tf.nn.softmax(tf.matmul(x, w) + b)
        z = tf.nn.max_pool2d(tf.nn.conv2d(image, kernel, 1, "SAME"), 2, 2, "SAME")
        loss = tf.reduce_sum(y * y) + tf.reduce_mean(tf.sin(z))
    return loss, tape.gradient(loss, [w, b, kernel])


@pytest.fixture(scope="module")
def exe():
    return compile_module(hlo_of(model, *ARGS)[0], options={"guard_bytes": 8})


def altered(program, **arrays):
    changed = copy.copy(program)
    changed._views = {}
    for name, value in arrays.items():
        setattr(changed, name, value)
    return changed


def run(program, **options):
    return Engine(program, **options).run({i: a[None] for i, a in enumerate(ARGS)})


def first_group(program, kind, codelet=None):
    for k, first, last, _ in program.steps.tolist():
        for group in range(first, last):
            if k == kind and (codelet is None or program.groups[group, 0] == codelet):
                return group
    raise AssertionError("no such group")


def shifted(program, group, column, delta):
    """The program with one column of one group moved by some bytes."""
    index = int(program.groups[group, 4]) + column
    first, n = program.columns[index].tolist()
    data = np.concatenate([program.data, program.data[first : first + n] + np.int32(delta)])
    columns = program.columns.copy()
    columns[index] = (len(program.data), n)
    return altered(program, data=data, columns=columns)


# ---- I1: tiles own their memory ----


@pytest.mark.parametrize("delta", [-64, 64, 4, 10**6], ids=["before", "after", "one word", "outside the tile"])
def test_i1_an_operand_outside_its_allocation_is_caught(exe, delta):
    program = exe.program
    group = first_group(program, COMPUTE, registry.DOT)
    wrong = shifted(program, group, 7, delta)
    with pytest.raises(StrictModeError, match=r"not inside a live allocation|leaves its tile"):
        check_bounds(wrong)
    check_bounds(program)


def test_i1_a_dead_allocation_is_no_allocation(exe):
    program = exe.program
    variables = program.variables.copy()
    temporary = int(np.flatnonzero(variables[:, 1] > 0)[0])
    variables[temporary, 2] = variables[temporary, 1] - 1
    with pytest.raises(StrictModeError, match="not inside a live allocation"):
        check_bounds(altered(program, variables=variables))


# ---- I2: data moves only in exchange ----


@pytest.mark.parametrize("kind", [EXCHANGE, STREAM_IN])
def test_i2_without_the_exchange_the_data_is_not_there(exe, kind):
    program = exe.program
    for index in np.flatnonzero(program.steps[:, 0] == kind).tolist():
        steps = program.steps.copy()
        steps[index, 2] = steps[index, 1]  # the step stays, its copies are gone
        with pytest.raises(StrictModeError, match="never written"):
            run(altered(program, steps=steps), strict=True)


def test_i2_vertices_have_one_tile(exe):
    program = exe.program
    for kind, first, last, _ in program.steps.tolist():
        for group in range(first, last):
            tiles = {t.tobytes() for t, _, _, _ in spans(program.group(group), kind)}
            if kind == COMPUTE:
                assert len(tiles) == 1


# ---- I3: every byte is accounted ----


def test_i3_allocations_never_overlap(exe):
    program = exe.program
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    for tile in (0, 1, 7):
        here = np.flatnonzero(program.cells[:, 0] == tile)
        for i in here.tolist():
            for j in here.tolist():
                if i >= j or min(program.cells[i, 2], program.cells[j, 2]) == 0:
                    continue
                a, b = program.variables[owner[i]], program.variables[owner[j]]
                alive_together = a[1] <= b[2] and b[1] <= a[2]
                _, offset_a, size_a = program.cells[i].tolist()
                _, offset_b, size_b = program.cells[j].tolist()
                if alive_together:
                    assert offset_a + size_a + 8 <= offset_b or offset_b + size_b + 8 <= offset_a


def test_i3_a_tile_is_the_sum_of_its_categories(exe):
    report = exe.profile().memory
    fixed = fixed_bytes(exe.program)
    cells = exe.program.cells
    for tile in (0, 5, 1471):
        mine = cells[cells[:, 0] == tile]
        placed = int((mine[:, 1] + mine[:, 2]).max(initial=0))
        assert report.by_tile[tile] == placed + sum(int(v[tile]) for v in fixed.values())
    assert report.total_bytes == int(report.by_tile.sum())
    assert report.always_live_bytes <= report.peak_bytes <= report.total_bytes
    # Vertex state: counted here vertex by vertex from the models.
    by_hand = np.zeros(exe.program.tile_count, np.int64)
    for kind, first, last, _ in exe.program.steps.tolist():
        for group in range(first, last):
            if kind == COMPUTE:
                g = exe.program.group(group)
                for tile, size in zip(
                    g.tiles, np.broadcast_to(registry.MODELS[g.codelet].state_bytes(g), g.rows), strict=True
                ):
                    by_hand[tile] += size
    np.testing.assert_array_equal(fixed["vertexInstanceState"], by_hand)


def test_i3_a_damaged_guard_byte_is_found(exe):
    stride = int(exe.program.header["used_bytes"]) + 64
    arena = np.zeros(stride * exe.program.tile_count, np.uint8)
    watch = Watch(exe.program, arena, stride)
    watch.guards("now")
    guards = np.flatnonzero(watch.allocated == 0)
    arena[guards[len(guards) // 2]] = PATTERN ^ 1
    with pytest.raises(StrictModeError, match="guard byte"):
        watch.guards("now")


# ---- I4: one program ----


def test_i4_cycles_and_bytes_do_not_depend_on_running(exe, tmp_path):
    before = (exe.profile().cycles, exe.profile().memory.total_bytes)
    run(exe.program, threads=1, strict=False)
    run(exe.program, threads=2, strict=False)
    exe.save(tmp_path / "model.ipu")
    from ipu_keras import hlo

    loaded = hlo.load(tmp_path / "model.ipu")
    assert (loaded.profile().cycles, loaded.profile().memory.total_bytes) == before
    assert (exe.profile().cycles, exe.profile().memory.total_bytes) == before
    again = compile_module(hlo_of(model, *ARGS)[0], options={"guard_bytes": 8})
    assert again.profile().cycles == before[0]


def test_i4_what_is_timed_is_what_runs(exe):
    # Without a step the program is faster and does not give the result: timing reads the tables that run.
    program = exe.program
    index = int(np.flatnonzero(program.steps[:, 0] == COMPUTE)[-1])
    steps = program.steps.copy()
    steps[index, 2] = steps[index, 1]
    from ipu_keras.profile import profile

    assert profile(altered(program, steps=steps)).cycles < exe.profile().cycles


# ---- I6: same bits for any thread count, strict or not ----


def test_i6_same_bits_on_any_number_of_threads(exe):
    reference = run(exe.program, threads=1, strict=False)
    for options in ({"threads": 2}, {"threads": 3}, {"threads": 7}, {"strict": True}):
        got = run(exe.program, **{"strict": False, **options})
        for key, array in reference.items():
            assert array.tobytes() == got[key].tobytes(), options


def test_i6_rows_of_a_step_must_not_meet(exe):
    # All copies of an exchange sent to where the first one goes: each alone is legal, together they race.
    program = exe.program
    group = next(
        g
        for kind, first, last, _ in program.steps.tolist()
        for g in range(first, last)
        if kind == EXCHANGE and program.groups[g, 1] > 1
    )
    columns = program.columns.copy()
    for column in (1, 3):
        columns[int(program.groups[group, 4]) + column, 1] = 1
    with pytest.raises(StrictModeError, match="two rows write the same byte"):
        run(altered(program, columns=columns), strict=True)


def test_i6_a_step_s_groups_must_not_meet(exe):
    # A copy put into the step that computes what it copies.
    program = exe.program
    steps = program.steps.tolist()
    at = next(i for i in range(len(steps) - 1) if steps[i][0] == COMPUTE and steps[i + 1][0] == EXCHANGE)
    stride = int(program.header["used_bytes"]) + 64
    watch = Watch(program, np.zeros(stride * program.tile_count, np.uint8), stride)
    watch.begin(at)
    joined = program.steps.copy()
    joined[at, 2] = joined[at + 1, 2]
    watch.program = altered(program, steps=joined)
    watch.seen.clear()
    with pytest.raises(StrictModeError, match="a group reads what another writes"):
        watch.begin(at)


def test_i6_same_bits_again_and_again(exe):
    engine = Engine(exe.program, threads=2, strict=False)
    feeds = {i: np.stack([a, a + 1, a]) for i, a in enumerate(ARGS)}
    outs = engine.run(feeds, 3)
    once = run(exe.program, threads=2, strict=False)
    for key, array in outs.items():
        assert array[0].tobytes() == array[2].tobytes() == once[key][0].tobytes()
        assert array[1].tobytes() != array[0].tobytes()


def test_program_arrays_are_documented():
    assert set(Program.ARRAYS) == {"steps", "groups", "params", "columns", "data", "blob", "variables", "cells"}
