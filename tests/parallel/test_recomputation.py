"""Activations that backward stages work out again change no number: api.md 6."""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest

from ipu_keras import executable
from ipu_keras.keras.layers import RecomputationCheckpoint
from ipu_keras.pipelining import PipelineSchedule, RecomputationMode
from ipu_keras.profile.memory import variable_bytes
from tests.parallel import pipelines as pl
from tests.sweep import in_turns

LENGTH = 4
LAYERS = {
    "dense": lambda: keras.layers.Dense(6, activation="tanh"),
    "dropout": lambda: keras.layers.Dropout(0.4, seed=7),
    "norm": lambda: keras.layers.BatchNormalization(momentum=0.8),
    "loop": lambda: keras.layers.GRU(6, return_sequences=True),
    "attention": lambda: Attention(),
}


class Attention(keras.layers.Layer):
    """Of a value to itself, with dropout in it."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(2, 3, dropout=0.2, seed=5)

    def call(self, x):
        return self.inner(x, x)


def build_with(name):
    def build(stages, stage):
        x = inputs = keras.Input((LENGTH, pl.FEATURES))
        for k in range(stages):
            with stage(k):
                x = keras.layers.Dense(6, activation="tanh")(x)
                x = keras.layers.Dense(6)(LAYERS[name]()(x))
        return keras.Model(inputs, x, name="m")

    return build


@pytest.mark.parametrize("name", in_turns(LAYERS, 4, always=("dense", "norm", "dropout")))
@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 3, 6), pl.Plan("Interleaved", 2, 4, 2, "mean")], ids=str)
def test_the_same_numbers(plan, name):
    x, y = pl.normal(plan.samples, LENGTH, pl.FEATURES), pl.normal(plan.samples, LENGTH, 6, seed=1)
    models, logs, queued = [], [], []
    for again in (False, True):
        model = pl.in_scope(plan, build_with(name))
        initial = [w.copy() for w in model.get_weights()]
        if again:
            with pl.recomputing(pl.chips(plan.stages, plan.replicas)):
                found = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
                program = executable(model).program
        else:
            found = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
            program = executable(model).program
        models.append(model)
        logs.append(found.history["loss"][0])
        queued.append(sum(q["bytes"] for q in program.header["pipeline"]["queues"]))
    assert queued[1] < queued[0]  # it did something
    pl.assert_close(np.float32(logs[1]), np.float32(logs[0]), 1e-5)
    pl.assert_weights(models[1], pl.Reference(initial, models[0].get_weights(), np.zeros(0)))


def marked(stages, stage):
    """Blocks that widen and narrow again, each with a mark behind it."""
    x = inputs = keras.Input((pl.FEATURES,))
    for k in range(stages):
        with stage(k):
            for _ in range(4):
                wide = keras.layers.Dense(96, activation="gelu")(x)
                x = RecomputationCheckpoint()(keras.layers.Dense(6, activation="tanh")(wide))
    return keras.Model(inputs, x, name="m")


def bytes_times_steps(program):
    """How much of the forward pass lies on the tiles, and how long, besides what waits in queues."""
    labels, total = program.header["labels"], 0
    for (_, first, last, _, _, label), size in zip(program.variables, variable_bytes(program), strict=True):
        if 0 < first and last < len(program.steps) - 1 and "|forward|" in labels[label]:
            total += int(size) * int(last - first + 1)
    return total


def test_between_marks_activations_are_worked_out_when_they_are_wanted():
    plan = pl.Plan("Grouped", 2, 4, batch=16, updates=1)
    x, y = pl.normal(plan.samples, pl.FEATURES), pl.normal(plan.samples, 6, seed=1)
    weights, queued, kept = [], [], []
    for mode in (None, RecomputationMode.Auto, RecomputationMode.RecomputeAndBackpropagateInterleaved):
        model = pl.in_scope(plan, marked)
        kwargs = {} if mode is None else {"recomputation_mode": mode}
        model.set_pipelining_options(plan.micro, pipeline_schedule=PipelineSchedule.Grouped, **kwargs)
        with pl.recomputing(2) if mode is not None else nullcontext():
            model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
            exe = executable(model)
        weights.append(model.get_weights())
        queued.append(sum(q["bytes"] for q in exe.program.header["pipeline"]["queues"]))
        kept.append(bytes_times_steps(exe.program))
    for each in weights[1:]:
        for found, expected in zip(each, weights[0], strict=True):
            pl.assert_close(found, expected, 1e-5)
    # Marked values wait in queues, one for each block; what lies between them lives for a block only.
    assert queued[1] < queued[2] < queued[0]
    assert kept[2] - kept[0] < 0.5 * (kept[1] - kept[0]), kept
