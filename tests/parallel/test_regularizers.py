"""Regularizers of any stage: the loss, which is of the last one, adds up what each stage makes of its weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ipu_keras as ipu
from ipu_keras.errors import DataError
from ipu_runtime.codelets import copy_model

STAGES, MICRO, UNITS, BATCH = 3, 6, 12, 2


def build(stage):
    keras.utils.set_random_seed(2)
    x = inputs = keras.Input((UNITS,))
    for k in range(STAGES):
        with stage(k):
            # Kernels of 5 KB: no chip may have a copy of another's weight.
            x = keras.layers.Dense(110, "tanh", kernel_regularizer="l2", bias_regularizer="l1")(x)
            # A single number, which is a weight nonetheless.
            x = keras.layers.PReLU("ones", alpha_regularizer="l2", shared_axes=[1])(x)
    with stage(STAGES - 1):
        x = keras.layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.1))(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("schedule", list(ipu.pipelining.PipelineSchedule))
def test_each_stage_has_its_own(schedule):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(MICRO * BATCH, n)).astype(np.float32) for n in (UNITS, 2))
    with ipu.IPUStrategy(ipus=4).scope():
        model = build(ipu.keras.PipelineStage)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=MICRO)
        model.set_pipelining_options(MICRO, pipeline_schedule=schedule, gradient_accumulation_reduction_method="mean")
    loss = model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0).history["loss"]
    with ipu.IPUStrategy().scope():
        twin = build(_no_stage)
        twin.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=MICRO)
        twin.set_gradient_accumulation_options(MICRO, "mean")
    expected = twin.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for mine, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    links = [
        g for g, label in enumerate(ipu.executable(model).program.header["group_labels"]) if _is_link(model, label)
    ]
    program = ipu.executable(model).program
    sent = max(int(copy_model.elements(program.group(g)).sum()) for g in links)
    assert 0 < sent < 110 * UNITS  # no kernel went over a link


def _is_link(model, label):
    return "|link|" in ipu.executable(model).program.header["labels"][label]


class _no_stage:
    def __init__(self, number):
        del number

    def __enter__(self):
        return None

    def __exit__(self, *error):
        return None


def test_predictions_are_of_all_samples_or_refused():
    with ipu.IPUStrategy(ipus=2).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=2)
    x = np.ones((12, 3), np.float32)
    assert model.predict(x[:8], batch_size=2, verbose=0).shape == (8, 2)
    with pytest.raises(DataError, match="do not divide among 2 replicas"):
        model.predict(x[:10], batch_size=2, verbose=0)
