"""What does not fit is refused before anything runs, what fits runs; bytes recounted from the program's own tables."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import errors
from ipu_keras.compiler import compile_module
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.target import Target
from ipu_runtime.program import CATEGORIES
from tests.harness import hlo_of

rng = np.random.default_rng(5)
SMALL = Target("small", tiles=6, bytes_per_tile=32 * 1024)


def floats(*shape):
    return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def network(x, w, v):
    with tf.name_scope("IPU.1."):
        h = tf.nn.relu(tf.matmul(x, w))
    with tf.name_scope("IPU.2."):
        return tf.matmul(h, v)


def inputs(width):
    return [floats(8, width), floats(width, width), floats(width, 10)]


NAMES = LayerNames(
    {"IPU.1.": "net/wide", "IPU.2.": "net/head"},
    {1: ("net/wide/kernel", "net/wide"), 2: ("net/head/kernel", "net/head")},
)


def compiled(width, target=SMALL):
    module = hlo_of(network, *inputs(width))[0]
    return compile_module(module, target=target, layers=NAMES, state={1: None, 2: None}, name="the model")


# ---- too large ----


@pytest.fixture(scope="module")
def refused():
    with pytest.raises(errors.IPUOutOfMemoryError) as caught:
        compiled(400)  # 640,000 bytes of weights; the chip has 196,608
    return caught.value


def test_it_is_an_error_of_ours_and_of_tensorflow(refused):
    assert isinstance(refused, errors.IPUError)
    assert isinstance(refused, tf.errors.ResourceExhaustedError)
    assert isinstance(refused, errors.IPUOutOfMemoryError)


def test_it_says_which_tile_and_by_how_much(refused):
    assert refused.have == 32 * 1024 < refused.need
    assert 0 <= refused.tile < 6
    text = str(refused)
    for number in (refused.tile, f"{refused.have:,}", f"{refused.need:,}", f"{refused.need - refused.have:,}"):
        assert str(number) in text
    assert "the model" in text and "small" in text


def test_it_names_the_largest_tensors_and_their_layers(refused):
    text = str(refused)
    assert "net/wide/kernel" in text and "of layer net/wide" in text
    listed = next(line for line in text.splitlines() if "net/wide/kernel" in line)
    nbytes = int(listed.split()[0].replace(",", ""))
    # 400 x 400 floats over 6 tiles: at least a sixth of them on the fullest.
    assert 400 * 400 * 4 / 6 <= nbytes <= 400 * 400 * 4
    assert "optimizer" in text or "batch" in text  # what to try


def test_it_carries_the_report(refused):
    report = refused.report
    assert not report.fits
    assert report.by_tile[refused.tile] == report.max_tile_bytes == refused.need
    assert report.total_bytes == report.by_tile.sum() > 640_000
    assert report.always_live_bytes >= 640_000 + 400 * 10 * 4


def test_the_same_model_fits_a_larger_chip():
    memory = compiled(400, Target("large", tiles=6, bytes_per_tile=1 << 20)).profile().memory
    assert memory.fits and memory.max_tile_bytes <= memory.limit == 1 << 20


def test_nothing_ran():
    import ipu_runtime.engine as engine

    before = engine.executions()
    with pytest.raises(errors.IPUOutOfMemoryError):
        compiled(400)
    assert engine.executions() == before


# ---- grown step by step ----


def test_it_flips_once_and_what_fits_runs():
    fits = []
    for width in (16, 32, 64, 96, 128, 160, 192, 256, 320):
        try:
            exe = compiled(width)
        except errors.IPUOutOfMemoryError as error:
            fits.append(False)
            assert error.need > error.have
            continue
        fits.append(True)
        memory = exe.profile().memory
        assert memory.fits and memory.max_tile_bytes <= SMALL.bytes_per_tile
        engine = exe.engine(strict=True)
        x, w, v = inputs(width)
        engine.write_state(1, w)
        engine.write_state(2, v)
        ((_, out),) = engine.run({0: x[None]}).items()
        np.testing.assert_allclose(out[0], np.maximum(x @ w, 0) @ v, rtol=1e-4, atol=1e-5)
    assert fits[0] and not fits[-1]
    assert fits == sorted(fits, reverse=True)  # never fits again once it did not


# ---- recounted ----


@pytest.fixture(scope="module")
def exe():
    return compiled(96)


def live_by_step(program):
    """Bytes of variables live at each step, one variable and one tile at a time."""
    live = [0] * len(program.steps)
    always = 0
    for _, first, last, cell, n, _ in program.variables.tolist():
        nbytes = sum(program.cells[cell + i, 2].item() for i in range(n))
        for step in range(first, last + 1):
            live[step] += nbytes
        if first == 0 and last == len(program.steps) - 1:
            always += nbytes
    return live, always


def test_peak_and_always_live(exe):
    report = exe.profile().memory
    fixed = sum(int(by_tile.sum()) for by_tile in report.fixed.values())
    live, always = live_by_step(exe.program)
    assert report.peak_bytes == max(live) + fixed
    assert live[report.peak_step] == max(live)
    assert report.always_live_bytes == always + fixed
    # Both weights live always, padded to 8 bytes on each tile.
    weights = 4 * (96 * 96 + 96 * 10)
    assert weights <= always <= weights + 2 * 6 * 8


def test_a_tile_needs_what_is_live_on_it(exe):
    report = exe.profile().memory
    program = exe.program
    by_tile = np.zeros((6, len(program.steps)), np.int64)
    for _, first, last, cell, n, _ in program.variables.tolist():
        for tile, _, nbytes in program.cells[cell : cell + n].tolist():
            by_tile[tile, first : last + 1] += nbytes
    fixed = sum(report.fixed.values())
    # Placement leaves gaps at worst; it can never need less than what lives at once.
    assert (report.by_tile >= by_tile.max(1) + fixed).all()


def test_the_largest_tensors_of_a_tile(exe):
    from ipu_keras.profile import largest_on_tile

    program = exe.program
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    for tile in range(6):
        found = largest_on_tile(program, tile, most=3)
        here = [(size, owner[i]) for i, (t, _, size) in enumerate(program.cells.tolist()) if t == tile]
        assert [t.nbytes for t in found] == sorted((s for s, _ in here), reverse=True)[: len(found)]
        assert all(t.category in CATEGORIES for t in found)
    kernel = [t for tile in range(6) for t in largest_on_tile(program, tile, 99) if t.name == "net/wide/kernel"]
    assert {t.layer for t in kernel} == {"net/wide"} and {t.category for t in kernel} == {"variable"}
    assert 96 * 96 * 4 <= sum(t.nbytes for t in kernel) <= 96 * 96 * 4 + 6 * 8


def test_optimizer_state_costs_its_bytes():
    def step(x, w, m):
        g = tf.reduce_sum(x, 0)[:, None] * tf.ones_like(w)
        m = 0.9 * m + g
        return w - 0.1 * m, m

    args = [floats(8, 64), floats(64, 64), floats(64, 64)]
    module = hlo_of(step, *args)[0]
    stateful = compile_module(module, target=SMALL, state={1: 0, 2: 1}).profile().memory
    _, always = live_by_step(compile_module(module, target=SMALL, state={1: 0, 2: 1}).program)
    assert 2 * 64 * 64 * 4 <= always <= 2 * 64 * 64 * 4 + 6 * 8 * 2 + 64
    assert stateful.always_live_bytes - always == sum(int(v.sum()) for v in stateful.fixed.values())
