"""What a pipeline cannot be is refused with the class and the words of api.md 4.2, 5 and 6."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.errors import IPUError, IPUOutOfMemoryError
from ipu_keras.keras.pipeline import PipelineStage
from ipu_keras.pipelining import PipelineSchedule
from ipu_keras.target import Target
from tests.parallel import pipelines as pl


def fit(schedule, stages, micro, *, ipus=None, mapping=None, spe=None, build=pl.mlp, **options):
    with IPUStrategy(ipus=ipus or pl.chips(stages), **options).scope():
        model = build(stages, PipelineStage)
        model.compile("sgd", "mse", steps_per_execution=spe or micro or 1)
        model.set_pipelining_options(micro, mapping, pipeline_schedule=PipelineSchedule[schedule])
    batches = (spe or micro or 1) * 4
    x, y = np.zeros((batches, *model.input_shape[1:])), np.zeros((batches, *model.output_shape[1:]))
    return model.fit(x, y, batch_size=1, verbose=0)


# Counts


@pytest.mark.parametrize(
    "schedule, stages, mapping, count, needed",
    [
        ("Grouped", 2, None, 6, 4),
        ("Grouped", 2, None, 9, 4),
        ("Grouped", 3, None, 9, 6),
        ("Grouped", 4, None, 12, 8),
        ("Grouped", 4, [0, 1, 1, 0], 12, 8),
        ("Interleaved", 2, None, 3, 2),
        ("Interleaved", 3, None, 4, 3),
        ("Interleaved", 4, None, 6, 4),
    ],
)
def test_no_whole_rounds(schedule, stages, mapping, count, needed):
    message = f"number of iterations of the pipeline must be a multiple of {needed}.*is {count}"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        fit(schedule, stages, count, mapping=mapping)


@pytest.mark.parametrize(
    "schedule, stages, count, needed", [("Grouped", 2, 2, 4), ("Grouped", 4, 4, 8), ("Interleaved", 3, 2, 3)]
)
def test_too_few(schedule, stages, count, needed):
    message = f"number of iterations of the pipeline must be at least {needed}.*is {count}"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        fit(schedule, stages, count)


@pytest.mark.parametrize("call", ["evaluate", "predict"])
@pytest.mark.parametrize("schedule", ["Grouped", "Interleaved"])
def test_steps_of_inference(schedule, call):
    """In inference steps_per_execution is the number, and only forward stages count."""
    with IPUStrategy(ipus=2).scope():
        model = pl.mlp(2, PipelineStage)
        model.compile("sgd", "mse", steps_per_execution=3)
        model.set_pipelining_options(4, pipeline_schedule=PipelineSchedule[schedule])
    x, y = np.zeros((12, pl.FEATURES)), np.zeros((12, pl.CLASSES))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"must be a multiple of 2.*steps_per_execution is 3"):
        model.predict(x, batch_size=1, verbose=0) if call == "predict" else model.evaluate(x, y, batch_size=1)


def test_no_whole_weight_updates():
    message = "The pipelined model.*is not divisible by `gradient_accumulation_steps_per_replica`"
    with pytest.raises(RuntimeError, match=message):
        fit("Grouped", 2, 4, spe=6)


def test_without_accumulation():
    with pytest.raises(ValueError, match="gradient accumulation"):
        fit("Grouped", 2, None)


# Chips


@pytest.mark.parametrize("mapping", [[0, 0], [1, 1]])
def test_interleaved_has_a_stage_on_each_chip(mapping):
    with pytest.raises(NotImplementedError, match="Interleaved"):
        fit("Interleaved", 2, 4, mapping=mapping)


@pytest.mark.parametrize("stages, ipus, needed", [(2, 1, 2), (3, 2, 4), (4, 2, 4), (2, 3, 2), (3, 6, 4)])
def test_chips_that_replicas_do_not_fill(stages, ipus, needed):
    with pytest.raises(ValueError, match=f"requires a multiple of {needed} IPUs"):
        fit("Grouped", stages, 2 * stages, ipus=ipus)


@pytest.mark.parametrize("mapping", [[0], [0, 1, 1]])
def test_a_mapping_of_another_length(mapping):
    with pytest.raises(ValueError, match="Each stage must be mapped"):
        fit("Grouped", 2, 4, mapping=mapping)


# Weights and states


def tied(stages, stage, width=40):
    """One layer, called in the first stage and in the last."""
    x = inputs = keras.Input((width,))
    layer = keras.layers.Dense(width, name="tied")
    for k in range(stages):
        with stage(k):
            x = layer(x) if k in (0, stages - 1) else keras.layers.Dense(width)(x)
    return keras.Model(inputs, x, name="m")


@pytest.mark.parametrize("width", [4, 40])
@pytest.mark.parametrize("schedule, stages, mapping", [("Grouped", 2, None), ("Sequential", 3, [0, 1, 1])])
def test_weights_shared_by_stages_on_two_chips(schedule, stages, mapping, width):
    message = r"(?s)tied.*an input can only be used by pipeline stages on the same IPU"
    with pytest.raises(IPUError, match=message):
        fit(schedule, stages, stages * 2, mapping=mapping, build=lambda *a: tied(*a, width=width))


def test_weights_shared_by_stages_on_one_chip():
    fit("Grouped", 3, 6, mapping=[0, 1, 0], build=tied)


@pytest.mark.parametrize("layer", ["norm", "dropout"])
def test_a_state_that_two_stages_change(layer):
    """Moving statistics, or the state of a generator, of one layer that is called in two stages."""

    def build(stages, stage):
        inputs = keras.Input((4,))
        shared = keras.layers.BatchNormalization(name="shared") if layer == "norm" else keras.layers.Dropout(0.5)
        with stage(0):
            x = shared(keras.layers.Dense(4)(inputs))
        with stage(1):
            x = shared(keras.layers.Dense(4)(x))
        return keras.Model(inputs, x, name="m")

    if layer == "dropout":  # seeds depend on nothing else, and are all drawn in the first stage
        fit("Grouped", 2, 4, mapping=[0, 0], build=build)
        return
    with pytest.raises(IPUError, match=r"(?s)used by one pipeline stage only.*shared.*moving_mean"):
        fit("Grouped", 2, 4, mapping=[0, 0], build=build)


# Memory


def wide(place):
    def build(stages, stage):
        x = inputs = keras.Input((4,))
        for k in range(stages):
            with stage(k):
                x = keras.layers.Dense(6000 if k == place else 4)(x)
        return keras.Model(inputs, x, name="m")

    return build


@pytest.mark.parametrize("place, chips", [(0, {0, 1}), (1, {1, 2}), (2, {2})])
def test_memory_of_a_chip(place, chips):
    """A wide layer has its weights, and those that read it, on the chips of two stages: one of them is named."""
    target = Target("small", tiles=4, bytes_per_tile=26_000, executable_bytes=26_000)
    with pytest.raises(IPUOutOfMemoryError) as error:
        fit("Sequential", 3, 2, build=wide(place), target=target)
    named = {c for c in range(4) if f"IPU {c}" in str(error.value)}
    assert error.value.tile // 4 in chips
    assert named and named <= chips
    assert error.value.need > error.value.have


def test_memory_of_the_same_model_without_the_wide_layer():
    target = Target("small", tiles=4, bytes_per_tile=26_000, executable_bytes=26_000)
    fit("Sequential", 3, 2, build=wide(-1), target=target)
