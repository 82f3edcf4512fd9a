"""Accumulating optimizers on the tiles against sums in double precision and against larger batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.keras.optimizers import (
    ALSGradientAccumulationOptimizer,
    ALSOptimizer,
    GradientAccumulationOptimizer,
    SGDIpuOptimizer,
)
from tests.api.optimizers.formulas import GRADIENTS, START, on_tiles


@pytest.mark.parametrize("method", ["sum", "MEAN", GradientAccumulationReductionMethod.RUNNING_MEAN])
def test_weights_move_at_every_third_step_by_what_the_gradients_make(method):
    optimizer = GradientAccumulationOptimizer(SGDIpuOptimizer(0.1, momentum=0.5), 3, reduction_method=method)
    ours = on_tiles(optimizer)
    parts = 1 if method == "sum" else 3
    steps = GRADIENTS.astype(np.float64).reshape(2, 3, *START.shape).sum(1) / parts
    first = START - 0.1 * steps[0]
    second = first - 0.5 * 0.1 * steps[0] - 0.1 * steps[1]
    np.testing.assert_array_equal(ours[:2], [START, START])
    np.testing.assert_allclose(ours[2:], [first, first, first, second], rtol=1e-4, atol=1e-5)
    assert int(optimizer.iterations) == 2


def test_a_half_accumulator_overflows_unless_it_keeps_a_running_mean():
    large = np.full((4, 4, 3), 30000, np.float32)

    def last(method, dtype):
        inner = SGDIpuOptimizer(2.0**-15)
        return on_tiles(GradientAccumulationOptimizer(inner, 4, dtype=dtype, reduction_method=method), grads=large)[-1]

    assert np.isinf(last("sum", tf.float16)).all()
    np.testing.assert_allclose(last("running_mean", lambda var: "float16"), START - 30000 / 2**15, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(last("sum", None), START - 4 * 30000 / 2**15, rtol=1e-5, atol=1e-5)


def test_arguments_and_configuration():
    inner = SGDIpuOptimizer(0.25)
    assert GradientAccumulationOptimizer(inner, 1) is inner
    for kind, opt in ((GradientAccumulationOptimizer, inner), (ALSGradientAccumulationOptimizer, ALSOptimizer(inner))):
        with pytest.raises(ValueError, match="num_mini_batches"):
            kind(opt, 0)
    for opt in ("sgd", ALSOptimizer(inner), GradientAccumulationOptimizer(inner, 2)):
        with pytest.raises(ValueError, match="opt is"):
            GradientAccumulationOptimizer(opt, 2)
    with pytest.raises(ValueError, match="als_optimizer"):
        ALSGradientAccumulationOptimizer(inner, 2)
    with pytest.raises(ValueError, match="Cannot parse"):
        GradientAccumulationOptimizer(inner, 2, reduction_method="median")
    optimizer = GradientAccumulationOptimizer(inner, 4, dtype=tf.float16, reduction_method="mean")
    config = optimizer.get_config()
    assert config["inner_optimizer_type"] == "ipu_keras>SGDIpuOptimizer"
    assert config["inner_optimizer_config"] == inner.get_config()
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert copy.get_config() == config
    optimizer.learning_rate = 0.5
    assert float(inner.learning_rate) == 0.5
    with pytest.raises(ValueError, match="function"):
        GradientAccumulationOptimizer(inner, 4, dtype=lambda var: "float16").get_config()


def _model(optimizer, **kwargs):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", **kwargs)
    return model


def test_fit_on_small_batches_is_fit_on_large_ones(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)
    with IPUStrategy().scope():
        small = _model(GradientAccumulationOptimizer(keras.optimizers.Adam(0.01), 4, reduction_method="running_mean"))
    large = _model(keras.optimizers.Adam(0.01), jit_compile=False)
    small.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    large.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(small.get_weights(), large.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    small.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.optimizer.num_mini_batches == 4 and int(loaded.optimizer.iterations) == 6


def test_loss_scaling_once_an_update():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)
    als = ALSOptimizer(keras.optimizers.SGD(0.1), 4, update_frequency=1)
    with IPUStrategy().scope():
        model = _model(ALSGradientAccumulationOptimizer(als, 2, reduction_method="mean"))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    plain = _model(keras.optimizers.SGD(0.1), jit_compile=False)
    plain.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    optimizer = model.optimizer
    assert float(optimizer.loss_scaling_factor) == float(als.loss_scaling_factor) == 16
    assert float(optimizer.get_scaled_loss(2.0)) == 32 and optimizer.als_optimizer is als
    optimizer.increase_factor = 4
    assert als.decrease_factor == optimizer.decrease_factor == 1 / 4
    with pytest.raises(ValueError, match="read only"):
        optimizer.histogram = 0
    optimizer.reset()
    assert float(als.loss_scaling_factor) == 4
