"""Evaluate and predict through a pipeline are those of plain Keras, and keep the order of the data: api.md 5.2, 5.3."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy, executable
from ipu_keras.keras.pipeline import PipelineStage
from ipu_keras.pipelining import PipelineSchedule
from tests.parallel import pipelines as pl

EXECUTIONS = 2
CASES = [
    (schedule, stages, replicas)
    for n, (schedule, stages) in enumerate((s.name, k) for s in PipelineSchedule for k in (2, 3, 4))
    for replicas in ((1, 2) if n % 2 else (2, 4) if n % 3 else (1, 4))
]


def pair(schedule, stages, replicas, build=pl.mlp):
    """A model in stages and a plain one; steps_per_execution; batches of two executions."""
    steps = pl.rows(schedule, stages, training=False) * 2
    with IPUStrategy(strict=True, ipus=pl.chips(stages, replicas)).scope():
        keras.utils.set_random_seed(3)
        model = build(stages, PipelineStage)
        model.compile(loss="mse", metrics=["mae"], steps_per_execution=steps)
        model.set_pipelining_options(pipeline_schedule=PipelineSchedule[schedule])
    keras.utils.set_random_seed(3)
    plain = build(stages, pl.no_stage)
    plain.compile(loss="mse", metrics=["mae"], run_eagerly=True)
    return model, plain, steps, steps * replicas * EXECUTIONS


@pytest.mark.sweep(turns=3)
@pytest.mark.parametrize("schedule, stages, replicas", CASES)
def test_predict(schedule, stages, replicas):
    model, plain, steps, batches = pair(schedule, stages, replicas)
    x = pl.normal(batches * pl.BATCH, pl.FEATURES)
    found = model.predict(x, batch_size=pl.BATCH, verbose=0)
    expected = plain.predict(x, batch_size=len(x), verbose=0)
    assert len(np.unique(np.round(expected[:, 0], 5))) > len(x) * 0.9  # rows can be told apart
    pl.assert_close(found, expected, 1e-5)
    header = executable(model, "predict").program.header
    assert (header["micro_batches"], header["replicas"]) == (steps, replicas)


@pytest.mark.parametrize("schedule, stages, replicas", CASES[::2])
def test_evaluate(schedule, stages, replicas):
    """The host sees the last replica's metrics: of batches b with b mod R = R - 1."""
    model, plain, _, batches = pair(schedule, stages, replicas)
    x, y = pl.normal(batches * pl.BATCH, pl.FEATURES), pl.normal(batches * pl.BATCH, pl.CLASSES, seed=1)
    weight = np.random.default_rng(2).uniform(0.2, 3, len(x)).astype(np.float32)
    found = model.evaluate(x, y, batch_size=pl.BATCH, sample_weight=weight, verbose=0, return_dict=True)
    last = (np.arange(len(x)) // pl.BATCH) % replicas == replicas - 1
    parts = [a[last] for a in (x, y, weight)]
    plain.evaluate(*parts[:2], sample_weight=parts[2], batch_size=pl.BATCH, verbose=0)
    expected = plain.get_metrics_result()
    assert set(found) == set(expected) == {"loss", "mae"}
    for name in found:
        pl.assert_close(np.float32(found[name]), np.float32(expected[name]), 1e-5)


def test_several_outputs_in_the_order_of_a_dataset():
    import tensorflow as tf

    def build(stages, stage):
        inputs = keras.Input((pl.FEATURES,))
        with stage(0):
            x = keras.layers.Dense(4, activation="tanh")(inputs)
            early = keras.layers.Dense(2)(x)
        with stage(1):
            late = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, {"early": early, "late": late}, name="m")

    model, plain, _, batches = pair("Grouped", 2, 2, build)
    x = pl.normal(batches * pl.BATCH, pl.FEATURES)
    found = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(pl.BATCH, drop_remainder=True), verbose=0)
    expected = plain.predict(x, verbose=0)
    for name in ("early", "late"):
        pl.assert_close(found[name], expected[name], 1e-5)


def test_random_layers_are_still_in_inference():
    def build(stages, stage):
        inputs = keras.Input((pl.FEATURES,))
        with stage(0):
            x = keras.layers.Dropout(0.5)(keras.layers.Dense(5)(inputs))
        with stage(1):
            x = keras.layers.Dense(pl.CLASSES)(keras.layers.BatchNormalization()(x))
        return keras.Model(inputs, x, name="m")

    model, plain, _, batches = pair("Interleaved", 2, 2, build)
    before = [w.copy() for w in model.get_weights()]
    x = pl.normal(batches * pl.BATCH, pl.FEATURES)
    pl.assert_close(model.predict(x, batch_size=pl.BATCH, verbose=0), plain.predict(x, verbose=0), 1e-5)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


class Count(keras.layers.Layer):
    """Hands on how many batches there were before, as another shape of the state that it changes."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(2 * pl.CLASSES,), initializer="zeros", trainable=False)

    def call(self, x):
        before = keras.ops.reshape(self.seen, (2, pl.CLASSES))
        self.seen.assign(self.seen + 1)
        return x, before


@pytest.mark.parametrize("mapping", [(0, 1, 2), (0, 1, 0)], ids=["links", "queue"])
@pytest.mark.parametrize("schedule", list(PipelineSchedule), ids=lambda s: s.name)
def test_old_value_of_a_state_for_a_later_stage(schedule, mapping):
    with IPUStrategy(strict=True, ipus=pl.chips(max(mapping) + 1)).scope():
        inputs = keras.Input((pl.CLASSES,))
        with PipelineStage(0):
            x, before = Count()(inputs)
        with PipelineStage(1):
            x = 2 * x
        with PipelineStage(2):
            x = x + keras.ops.sum(before, 0)
        model = keras.Model(inputs, x)
        model.compile(steps_per_execution=6)
        model.set_pipelining_options(pipeline_schedule=schedule, device_mapping=list(mapping))
    x = pl.normal(12 * pl.BATCH, pl.CLASSES)
    batch = np.arange(len(x)) // pl.BATCH
    pl.assert_close(model.predict(x, batch_size=pl.BATCH, verbose=0), 2 * x + 2 * batch[:, None], 1e-6)


def test_training_goes_on_after_evaluating():
    """Weights that fit has left on the chips are those that evaluate and predict use, and fit again."""
    plan = pl.Plan("Grouped", 2, 4, 2)
    x, y = pl.normal(plan.samples, pl.FEATURES), pl.normal(plan.samples, pl.CLASSES, seed=1)
    model, plain = pl.in_scope(plan, pl.mlp), pl.outside(plan, pl.mlp)
    for _ in range(2):
        model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
        found = pl.reference(plan, plain, x, y)
        pl.assert_weights(model, found)
        predicted = model.predict(x, batch_size=plan.batch, verbose=0)
        pl.assert_close(predicted, plain.predict(x, verbose=0), 1e-5)
