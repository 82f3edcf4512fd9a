"""Stochastic rounding on the tiles: unbiased, by the seed alone, for what a scope says, equal on replicas if asked."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras.compiler import compile_module
from ipu_keras.target import Target
from ipu_runtime.rounding import COMMON, NEAREST, STOCHASTIC
from tests.harness import hlo_of
from tests.precision.half import IDENTICAL, OFF, ON, data, equal, replicas_weights, small, system, weights

rng = np.random.default_rng(7)
ULP = 2.0**-10  # between 1 and 2


def run(fn, *arrays, threads=None, seed=0, target="gc200", **options):
    engine = compile_module(hlo_of(fn, *arrays)[0], target=target, options=options).engine(
        threads=threads, strict=threads is None
    )
    engine.reset_seed(seed)
    return engine.run({i: a[None] for i, a in enumerate(arrays)})[0][0]


OPERATIONS = {
    "map": (lambda x, y: x + y, 1.0, 0.3 * ULP),
    "cast": (lambda x, y: tf.cast(tf.cast(x, tf.float32) + 0.3 * ULP, tf.float16) + y, 1.0, 0.0),
    "reduce": (lambda x, y: tf.reduce_sum(tf.stack([x, y], -1), -1), 1.0, 0.3 * ULP),
    "scatter": (lambda x, y: tf.tensor_scatter_nd_add(x, tf.range(64)[:, None], y), 1.0, 0.3 * ULP),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_right_on_average(name):
    fn, first, second = OPERATIONS[name]
    x, y = np.full((64, 64), first, np.float16), np.full((64, 64), second, np.float16)
    found = run(fn, x, y, stochastic_rounding="on").astype(np.float64)
    assert set(found.ravel().tolist()) == {1.0, 1 + ULP}
    exact = 1 + (float(y[0, 0]) or 0.3 * ULP)
    p = (exact - 1) / ULP
    assert abs(found.mean() - exact) < 4 * ULP * np.sqrt(p * (1 - p) / found.size)
    assert (run(fn, x, y) == 1).all()  # to nearest


def test_products_with_half_partials_round_each_block_at_random():
    """Each of 4 blocks of 16 channels adds 0.3 steps to 1: right on average, where rounding to nearest loses it all."""
    x = np.zeros((512, 80), np.float16)
    x[:, 0], x[:, 16:80:16] = 1, 1
    w = np.zeros((80, 8), np.float16)
    w[0], w[16:80:16] = 1, 0.3 * ULP
    exact = 1 + 4 * float(w[16, 0])
    one = Target("one", tiles=1, bytes_per_tile=1 << 20)  # on several, small sums would be exact before they meet the 1
    half = {"target": one, "matmul_partials": "half"}
    found = run(lambda a, b: a @ b, x, w, stochastic_rounding="on", **half).astype(np.float64)
    p = float(w[16, 0]) / ULP
    assert abs(found.mean() - exact) < 4 * ULP * np.sqrt(4 * p * (1 - p) / found.size)
    assert abs(found.var() / ULP**2 - 4 * p * (1 - p)) < 0.1
    assert (run(lambda a, b: a @ b, x, w, **half) == 1).all()


def test_the_seed_decides_and_the_threads_do_not():
    x, w = (rng.normal(size=s).astype(np.float16) for s in ((96, 80), (80, 64)))

    def fn(a, b):
        return tf.nn.softmax(tf.tanh(a @ b) * 1.1)

    on = {"stochastic_rounding": "on", "matmul_partials": "half"}
    first = run(fn, x, w, **on)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(first, run(fn, x, w, threads=threads, **on))
    assert (first != run(fn, x, w, seed=1, **on)).any()
    engine = compile_module(hlo_of(fn, x, w)[0], options=on).engine()
    executions = [engine.run({0: x[None], 1: w[None]})[0][0] for _ in range(2)]
    assert (executions[0] != executions[1]).any()  # bits are drawn once
    engine.reset_seed(0)
    np.testing.assert_array_equal(engine.run({0: x[None], 1: w[None]})[0][0], executions[0])
    repeated = engine.run({0: np.stack([x, x]), 1: np.stack([w, w])}, repeat=2)[0]
    assert (repeated[0] != repeated[1]).any()


def test_a_loop_draws_anew_each_turn():
    x = np.full(64, 1, np.float16)

    def fn(a):
        return tf.while_loop(lambda i, v: i < 200, lambda i, v: (i + 1, v + tf.cast(0.25 * ULP, tf.float16)), [0, a])[1]

    found = run(fn, x, stochastic_rounding="on").astype(np.float64)
    steps = (found - 1) / ULP  # 200 draws with p = 1/4: 50 on average, of variance 37.5
    assert abs(steps.mean() - 50) < 4 * np.sqrt(37.5 / 64) and 10 < steps.var() < 100
    assert (run(fn, x) == 1).all()


def test_scopes_decide_for_what_is_in_them_and_for_gradients():
    x, y = np.full((64, 64), 1, np.float16), np.full((64, 64), 0.3 * ULP, np.float16)

    def fn(a, b):
        with ipu.scopes.stochastic_rounding(True):
            one = a + b
            with ipu.scopes.stochastic_rounding(False):
                two = a + b
        return one, two, a + b

    for option, wanted in (("off", (2, 1, 1)), ("on", (2, 1, 2))):
        engine = compile_module(hlo_of(fn, x, y)[0], options={"stochastic_rounding": option}).engine()
        outs = engine.run({0: x[None], 1: y[None]})
        assert tuple(len(np.unique(outs[k])) for k in range(3)) == wanted, option

    def gradient(a, b):
        with tf.GradientTape() as tape:
            tape.watch(a)
            with ipu.scopes.stochastic_rounding(True):
                z = a * b
            loss = tf.reduce_sum(z * tf.cast(1.001, tf.float16))
        return tape.gradient(loss, a)

    gradients = run(gradient, x, np.full((64, 64), 1.0009765625, np.float16))
    assert len(np.unique(gradients)) == 2


def test_partials_of_a_scope():
    x, w = np.ones((4, 80), np.float16), np.zeros((80, 8), np.float16)
    w[0], w[16:80:16] = 1, 0.3 * ULP

    def fn(a, b):
        with ipu.scopes.partials_type(np.float16):
            half = a @ b
        with ipu.scopes.partials_type(np.float32):
            single = a @ b
        return half, single

    one = Target("one", tiles=1, bytes_per_tile=1 << 20)
    for option in ("float", "half"):
        half, single = compile_module(hlo_of(fn, x, w)[0], target=one, options={"matmul_partials": option}).run(x, w)
        assert (half == 1).all() and (single == np.float16(1 + 4 * float(w[16, 0]))).all(), option


def test_a_model_trains_by_the_seed():
    def trained(seed, esr=ON):
        with system(esr=esr):
            model = small(steps_per_execution=2)
            ipu.utils.reset_ipu_seed(seed)
            model.fit(*data(), batch_size=8, epochs=2, verbose=0, shuffle=False)
            return weights(model)

    first = trained(1)
    assert equal(first, trained(1))
    assert not equal(first, trained(2)) and not equal(first, trained(1, OFF))


@pytest.mark.parametrize(
    ("esr", "stable", "alike", "same"),
    [(OFF, False, False, True), (ON, False, False, False), (ON, True, False, True), (ON, False, True, True),
     (IDENTICAL, False, False, True)],
)  # fmt: skip
def test_replicas_keep_equal_weights_where_they_shall(esr, stable, alike, same):
    with system(ipus=2, esr=esr, stable=stable):
        model = small(steps_per_execution=2)
        ipu.utils.reset_ipu_seed(5, experimental_identical_replicas=alike)
        model.fit(*data(), batch_size=4, epochs=2, verbose=0, shuffle=False)
        first, second = replicas_weights(model, 2)
        assert equal(first, second) == same
        kinds = set(model.train_function.session.latest.executable.program.groups[:, 6].tolist())
    wanted = {OFF: {NEAREST}, IDENTICAL: {NEAREST, COMMON}}.get(esr)
    assert kinds == (wanted or ({NEAREST, STOCHASTIC, COMMON} if stable else {NEAREST, STOCHASTIC}))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0),
        lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=2),
        lambda: keras.optimizers.SGD(0.01, use_ema=True, ema_overwrite_frequency=2),
    ],
    ids=["loss scale", "accumulation", "averages"],
)
def test_updates_in_branches_keep_replicas_equal(optimizer):
    with system(ipus=2, esr=ON, stable=True):
        model = small(optimizer(), steps_per_execution=2)
        model.fit(*data(), batch_size=4, epochs=4, verbose=0, shuffle=False)
        assert equal(*replicas_weights(model, 2))


def test_updates_in_loops_keep_replicas_equal():
    with system(ipus=2, esr=ON, stable=True):
        strategy = ipu.IPUStrategy()
        weight = tf.Variable(tf.ones(64, tf.float16))

        @tf.function
        def step():
            def turn(i, v):
                return i + 1, v + tf.cast(0.3 * ULP, tf.float16)

            weight.assign(tf.while_loop(lambda i, v: i < 50, turn, [0, weight])[1])

        strategy.run(step)
        program = strategy.executable(step).program
    assert {NEAREST, COMMON} == set(program.groups[:, 6].tolist())
    assert len(np.unique(weight.numpy())) > 3
