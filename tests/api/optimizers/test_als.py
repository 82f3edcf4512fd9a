"""Automatic loss scaling on the tiles against the algorithm in plain Python."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras.optimizers import ALSOptimizer

RNG = np.random.default_rng(1)


def replay(steps, initial=1.0, every=8, inc=2.0, top=32768.0, accumulate=True, threshold=1e-5, alpha=0.0, edge=8192.0):
    """The factor, the counter and the counts after each step, and the divided gradients; `steps` hold arrays."""
    scale, counter, counts, seen = initial, 0, np.zeros(2), []
    for arrays in steps:
        half = [np.abs(a.astype(np.float64)) for a in arrays if a.dtype == np.float16]
        new = np.array([sum((a <= edge).sum() for a in half), sum((~(a <= edge)).sum() for a in half)], np.float64)
        divided = [a / np.asarray(scale, a.dtype) for a in arrays]
        due = every == 1 or (counter > 0 and counter % every == 0)
        new = new if accumulate or due else new * 0
        if due:
            total = counts + new
            ratio = total[1] / total.sum() if total.sum() else np.nan
            changed = scale / inc if ratio > threshold else scale * inc
            scale = changed if 1 <= changed < top else scale
            counter, counts = 0, np.zeros(2)
        else:
            counter, counts = counter + 1, alpha * counts + (1 - alpha) * (counts + new)
        seen.append((scale, counter, counts, divided))
    return seen


def on_tiles(steps, captured=None, **kwargs):
    """The same of an ALSOptimizer around SGD with a rate of 1, whose weights show the divided gradients."""
    weights = [keras.Variable(np.zeros(a.shape), dtype=a.dtype.name) for a in steps[0]]
    optimizer = ALSOptimizer(keras.optimizers.SGD(1.0), **kwargs)
    optimizer.build(weights)

    @tf.function
    def step(*grads):
        for weight in weights:
            weight.assign(tf.zeros_like(weight))
        optimizer.apply_gradients(zip(grads, weights), captured_grads=captured)
        return [tf.identity(weight.value) for weight in weights]

    strategy, seen = IPUStrategy(), []
    for arrays in steps:
        moved = strategy.run(step, tuple(arrays))
        state = float(optimizer.loss_scaling_factor), int(optimizer.update_counter), np.array(optimizer.histogram)
        seen.append((*state, [-np.asarray(m) for m in moved]))
    return optimizer, seen


def steps_of(count, dtypes=(np.float16, np.float32, np.float16), large=()):
    arrays = [[(RNG.normal(size=(3, 2)) * 100).astype(d) for d in dtypes] for _ in range(count)]
    for i in large:
        arrays[i][0][0, 0] = 20000
    return arrays


def assert_same(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a[:2] == b[:2], (i, a, b)
        np.testing.assert_allclose(a[2], b[2], rtol=1e-6)
        for x, y in zip(a[3], b[3], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)


CASES = {
    "every step": ({"update_frequency": 1}, {"every": 1}, steps_of(5, large=(2,))),
    "F + 1 steps": ({"update_frequency": 3}, {"every": 3}, steps_of(9, large=(1,))),
    "only the due ones": (
        {"update_frequency": 2, "accumulate_statistics_over_update_period": False},
        {"every": 2, "accumulate": False},
        steps_of(7, large=(1, 5)),
    ),
    "filtered": ({"update_frequency": 4, "lpf_alpha": 0.25}, {"every": 4, "alpha": 0.25}, steps_of(6, large=(0,))),
    "threshold": (
        {"update_frequency": 1, "ratio_threshold": 0.1},
        {"every": 1, "threshold": 0.1},
        steps_of(3, large=(1,)),
    ),
    "edge": ({"update_frequency": 1, "histogram_bin_edge": 50}, {"every": 1, "edge": 50}, steps_of(3)),
    "not half": ({"update_frequency": 1}, {"every": 1}, steps_of(3, dtypes=(np.float32,), large=(0, 1, 2))),
    "bounds": (
        {"update_frequency": 1, "initial_loss_scaling_factor": 4, "increase_factor": 4, "max_loss_scaling_factor": 32},
        {"every": 1, "initial": 4.0, "inc": 4.0, "top": 32.0},
        steps_of(7, large=(3, 4, 5)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_factor_counter_counts_and_divided_gradients(name):
    arguments, same_arguments, steps = CASES[name]
    _, ours = on_tiles(steps, **arguments)
    assert_same(ours, replay(steps, **same_arguments))


def test_the_cases_reach_both_directions_and_both_bounds():
    factors = [step[0] for step in replay(CASES["bounds"][2], **CASES["bounds"][1])]
    assert factors == [16, 16, 16, 4, 1, 1, 4]
    assert [step[1] for step in replay(CASES["F + 1 steps"][2], every=3)] == [1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_values_that_are_not_finite_count_as_too_large():
    steps = steps_of(2)
    steps[0][0][0, 0], steps[1][0][0, 0] = np.inf, np.nan
    optimizer, ours = on_tiles(steps, update_frequency=1, initial_loss_scaling_factor=16)
    assert [s[0] for s in ours] == [8, 4] and float(optimizer.previous_loss_scaling_factor) == 8


def test_captured_gradients_are_counted():
    captured = {"a": tf.fill((6,), tf.constant(2.0**14, tf.float16)), "b": [tf.zeros((6,), tf.float16)]}
    steps = steps_of(1)
    optimizer, _ = on_tiles(steps, captured=captured, update_frequency=4)
    np.testing.assert_array_equal(optimizer.histogram, [18, 6])
    np.testing.assert_allclose(optimizer.normalized_histogram, [0.75, 0.25])
    only, _ = on_tiles(steps, captured=captured, update_frequency=4, captured_grads_only=True)
    np.testing.assert_array_equal(only.histogram, [6, 6])


def test_reset_configuration_and_read_only_properties():
    optimizer, _ = on_tiles(steps_of(3), update_frequency=1, initial_loss_scaling_factor=2, lpf_alpha=0.5)
    assert float(optimizer.loss_scaling_factor) == 16
    optimizer.reset()
    assert (float(optimizer.loss_scaling_factor), int(optimizer.update_counter)) == (2, 0)
    np.testing.assert_array_equal(optimizer.histogram, [0, 0])
    for name in (
        "histogram",
        "normalized_histogram",
        "loss_scaling_factor",
        "previous_loss_scaling_factor",
        "update_counter",
        "decrease_factor",
    ):
        with pytest.raises(ValueError, match="read only"):
            setattr(optimizer, name, 1.0)
    config = optimizer.get_config()
    assert "lpf_alpha" not in config
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert copy.get_config() == config and copy.lpf_alpha == 0 and copy.update_frequency == 1
    optimizer.increase_factor = 8
    assert optimizer.decrease_factor == 1 / 8
    with pytest.raises(ValueError, match="power of two"):
        optimizer.increase_factor = 3


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"update_frequency": 0}, "update_frequency"),
        ({"increase_factor": 3}, "power of two"),
        ({"initial_loss_scaling_factor": 3}, "power of two"),
        ({"max_loss_scaling_factor": 1000}, "power of two"),
        ({"initial_loss_scaling_factor": 32768}, "less than"),
        ({"initial_loss_scaling_factor": 16384}, "less than"),
        ({"ratio_threshold": 0.0}, "ratio_threshold"),
        ({"ratio_threshold": 1.0}, "ratio_threshold"),
        ({"ratio_threshold": float("nan")}, "ratio_threshold"),
        ({"lpf_alpha": 2.0}, "lpf_alpha"),
    ],
)
def test_arguments_that_do_not_fit(arguments, text):
    with pytest.raises(ValueError, match=text):
        ALSOptimizer(keras.optimizers.SGD(), **arguments)


def test_what_it_wraps():
    for opt in ("sgd", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())):
        with pytest.raises(ValueError, match="opt is"):
            ALSOptimizer(opt)


# --- whole steps --------------------------------------------------------------------------------------------------


def test_minimize_and_get_gradients_scale_the_loss():
    weight = keras.Variable(np.float32([1, 2]))
    optimizer = ALSOptimizer(keras.optimizers.SGD(0.5), initial_loss_scaling_factor=64, update_frequency=1)

    def loss():
        return tf.reduce_sum(weight.value**2)

    optimizer.minimize(loss, [weight])
    np.testing.assert_allclose(weight.numpy(), [0, 0])  # w - 0.5 * 2 w: the scale is gone again
    assert float(optimizer.get_scaled_loss(3.0)) == 3 * 128
    weight.assign([1, 2])
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.minimize(value, [weight], tape=tape)
    np.testing.assert_allclose(weight.numpy(), [0, 0])
    with pytest.raises(ValueError, match="tape"):
        optimizer.minimize(value, [weight])
    weight.assign([1, 2])
    (scaled,) = IPUStrategy().run(tf.function(lambda: optimizer.get_gradients(loss(), [weight])))
    np.testing.assert_allclose(scaled, [512, 1024])


def _data(dtype=np.float32):
    rng = np.random.default_rng(4)
    return rng.normal(size=(48, 5)).astype(dtype), rng.normal(size=(48, 2)).astype(dtype)


def _model(optimizer, dtype=None):
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(4, "tanh", dtype=dtype), keras.layers.Dense(2, dtype=dtype)]
    model = keras.Sequential([keras.Input((5,), dtype="float32" if dtype is None else "float16"), *layers])
    model.compile(optimizer, "mse", jit_compile=True)
    return model


def test_fit_in_single_precision_is_fit_without_scaling():
    x, y = _data()
    with IPUStrategy().scope():
        scaled = _model(ALSOptimizer(keras.optimizers.SGD(0.1, momentum=0.5), 2, update_frequency=1))
        plain = _model(keras.optimizers.SGD(0.1, momentum=0.5))
    for model in (scaled, plain):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(scaled.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)  # powers of two round nothing
    assert float(scaled.optimizer.loss_scaling_factor) == 2 * 2**6
    assert int(scaled.optimizer.iterations) == 6


def test_fit_in_half_precision_lowers_a_factor_that_is_too_large():
    x, y = _data(np.float16)
    with IPUStrategy().scope():
        model = _model(ALSOptimizer(keras.optimizers.SGD(0.01), 8192, 1, histogram_bin_edge=512), "float16")
    history = model.fit(x, y * 3, batch_size=8, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    assert 1 <= float(model.optimizer.loss_scaling_factor) < 8192
    assert all(v.dtype == "float16" for v in model.trainable_weights)


def test_keras_does_not_scale_once_more_in_mixed_precision(tmp_path):
    x, y = _data()
    with IPUStrategy().scope():
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = _model(ALSOptimizer(keras.optimizers.SGD(0.1), 1024, update_frequency=2))
        finally:
            keras.config.set_dtype_policy("float32")
    assert type(model.optimizer) is ALSOptimizer
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    plain = _model(keras.optimizers.SGD(0.1))
    plain.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert float(loaded.optimizer.loss_scaling_factor) == float(model.optimizer.loss_scaling_factor) == 4096
