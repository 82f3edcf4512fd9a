"""What fit does with batches that do not divide among replicas, and with options that it cannot follow."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

import ipu_keras as ipu
from ipu_keras.errors import ConfigError, UnsupportedError


def model_on(ipus, **options):
    keras.utils.set_random_seed(4)
    with ipu.IPUStrategy(ipus=ipus).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


def data(batches):
    rng = np.random.default_rng(batches)
    return tuple(rng.normal(size=(2 * batches, n)).astype(np.float32) for n in (3, 2))


def test_validation_takes_whole_rounds(caplog):
    """Five batches for two replicas: two rounds, as evaluate of the first four has it."""
    model = model_on(2, steps_per_execution=2)
    with caplog.at_level(logging.WARNING, "ipu_keras"):
        history = model.fit(*data(4), batch_size=2, validation_data=data(5), epochs=2, shuffle=False, verbose=0).history
    assert "do not divide among 2 replicas" in caplog.text and len(history["val_loss"]) == 2
    x, y = data(5)
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(x[:8], y[:8], batch_size=2, verbose=0), rel=1e-6)


def test_dtype_of_sums_by_variable():
    """Kernels summed in fp16 round; biases, in fp32, do not: the numbers say which is which."""
    found = []
    for dtype in (None, "float16", lambda variable: "float16" if len(variable.shape) == 2 else "float32"):
        model = model_on(1, steps_per_execution=4)
        model.set_gradient_accumulation_options(4, dtype=dtype)
        model.fit(*data(4), batch_size=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    exact, half, mixed = found
    assert (mixed[0] == half[0]).all() and not (mixed[0] == exact[0]).all()
    assert (mixed[1] == exact[1]).all() and not (half[1] == exact[1]).all()


@pytest.mark.parametrize(
    "name", ["offload_gradient_accumulation_buffers", "offload_weights", "replicated_weight_sharding"]
)
def test_placements_that_are_not_there(name):
    with ipu.IPUStrategy(ipus=2).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=4)
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(4, **{name: True})
    with pytest.raises(UnsupportedError, match=name):
        model.fit(*data(4), batch_size=2, verbose=0)


def test_options_for_stages_without_stages_are_told(caplog):
    model = model_on(1)
    model.set_pipelining_options(4)
    with caplog.at_level(logging.WARNING, "ipu_keras"):
        model.fit(*data(2), batch_size=2, verbose=0)
    assert "no pipeline stages" in caplog.text


@pytest.mark.parametrize("steps", ["auto", 0])
def test_steps_per_execution_is_a_number(steps):
    with pytest.raises((ConfigError, ValueError)):
        model_on(1, steps_per_execution=steps).fit(*data(2), batch_size=2, verbose=0)
