"""Where a model stops fitting: once, as it grows, and up to there it runs."""

import numpy as np
import tensorflow as tf

from ipu_keras import errors
from ipu_keras.compiler import compile_module
from ipu_keras.target import Target
from tests.harness import hlo_of

rng = np.random.default_rng(3)
TILES, WIDTH, NBYTES = 4, 40, 34_000


def stack(n):
    """A step of training of `n` dense layers, its arguments, and its module."""

    def step(x, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            h = x
            for w in weights:
                h = tf.tanh(h @ w)
            loss = tf.reduce_mean(tf.square(h))
        return loss, [w - 0.1 * g for w, g in zip(weights, tape.gradient(loss, weights), strict=True)]

    args = [rng.normal(size=s).astype(np.float32) / 4 for s in [(6, WIDTH), *[(WIDTH, WIDTH)] * n]]
    return step, args, hlo_of(step, *args)[0]


def compiled(model, nbytes):
    """The program for tiles of a size, or None."""
    _, args, module = model
    target = Target("small", tiles=TILES, bytes_per_tile=nbytes, executable_bytes=nbytes)
    try:
        return compile_module(module, target=target, state={i: i for i in range(1, len(args))})
    except errors.IPUOutOfMemoryError as error:
        assert error.need > error.have
        return None


def check_run(exe, model):
    """The loss and the new weights are TensorFlow's; IPU_RUNTIME_STRICT watches every access."""
    step, args, _ = model
    engine = exe.engine(strict=True)
    for i, value in enumerate(args[1:], 1):
        engine.write_state(i, value)
    (loss,) = (v[0] for v in engine.run({0: args[0][None]}).values())
    want, weights = step(*(tf.constant(a) for a in args))
    np.testing.assert_allclose(loss, want, rtol=1e-4)
    for i, w in enumerate(weights, 1):
        np.testing.assert_allclose(engine.read_state(i), w, rtol=1e-3, atol=1e-5)


def test_a_growing_model_stops_fitting_once():
    fits, last = [], None
    for n in range(1, 12):
        model = stack(n)
        exe = compiled(model, NBYTES)
        fits.append(exe is not None)
        if exe is not None:
            last = exe, model
    count = sum(fits)
    assert fits == [True] * count + [False] * (len(fits) - count) and 4 <= count <= 9
    # The last ones that fit do so with their products outlined.
    assert last[0].program.again.any()
    check_run(*last)


def test_a_chip_that_is_nearly_full_runs():
    model = stack(3)
    low, high = 20_000, 40_000
    assert compiled(model, low) is None and compiled(model, high) is not None
    while high > 1.02 * low:
        middle = (low + high) // 2 // 8 * 8
        low, high = (low, middle) if compiled(model, middle) is not None else (middle, high)
    exe = compiled(model, high)
    memory = exe.profile().memory
    assert 0.95 * high <= memory.max_tile_bytes <= high
    check_run(exe, model)
