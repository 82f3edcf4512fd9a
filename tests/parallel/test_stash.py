"""Activations that wait for their backward stage in streaming memory: the same numbers, less tile memory, more time."""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest

import ipu_keras as ipu
from ipu_keras.ops.pipelining_ops import PipelineSchedule
from ipu_runtime.program import STREAM_IN, STREAM_OUT
from tests.parallel.pipelines import recomputing

BATCH, UNITS, STAGES = 4, 48, 3


def trained(schedule, away, micro=8, replicas=1, recompute=False):
    keras.utils.set_random_seed(2)
    with recomputing(4 * replicas) if recompute else nullcontext():
        return pipelined(schedule, away, micro, replicas)


def pipelined(schedule, away, micro, replicas):
    with ipu.IPUStrategy(ipus=4 * replicas).scope():
        x = inputs = keras.Input((UNITS,))
        for stage in range(STAGES):
            with ipu.keras.PipelineStage(stage):
                x = keras.layers.Dense(UNITS, activation="tanh")(x)
                x = keras.layers.Dense(UNITS, activation="sigmoid")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=micro * replicas)
        model.set_pipelining_options(
            micro, gradient_accumulation_reduction_method="mean", pipeline_schedule=schedule, offload_activations=away
        )
    data = np.random.default_rng(0).normal(size=(2, 2 * micro * replicas * BATCH, UNITS)).astype(np.float32)
    history = model.fit(*data, batch_size=BATCH, shuffle=False, epochs=2, verbose=0).history
    return model, history["loss"]


@pytest.mark.parametrize(
    ("schedule", "replicas", "recompute"),
    [
        (PipelineSchedule.Grouped, 1, False),
        pytest.param(PipelineSchedule.Interleaved, 1, False, marks=pytest.mark.sweep(turns=3)),
        pytest.param(PipelineSchedule.Grouped, 2, True, marks=pytest.mark.sweep(turns=3)),
    ],
)
def test_stashed_activations_change_no_bit(schedule, replicas, recompute):
    (on_tiles, loss), (away, same_loss) = (
        trained(schedule, away, micro=12, replicas=replicas, recompute=recompute) for away in (False, True)
    )
    assert loss == same_loss and loss[-1] < loss[0]
    for mine, theirs in zip(on_tiles.get_weights(), away.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    here, there = (ipu.executable(model) for model in (on_tiles, away))
    queued = {(q["from"], q["to"], q["depth"]) for q in here.program.header["pipeline"]["queues"] if q["bytes"] >= 128}
    stashes = there.program.header["stashes"]
    assert queued and {(s["from"], s["to"], s["depth"]) for s in stashes} <= queued
    assert there.profile().memory.total_bytes < here.profile().memory.total_bytes
    assert there.profile().cycles > here.profile().cycles


def test_what_waits_is_what_is_streamed():
    model, _ = trained(PipelineSchedule.Grouped, True, micro=12)
    program = ipu.executable(model).program
    stashes = {s["slot"]: s for s in program.header["stashes"]}
    # Grouped: stage s of S waits 2 (S - s - 1) slots for its backward stage, and one more is being made (api.md 6).
    assert all(s["depth"] in (2 * (STAGES - s["from"]) - 1, 2 * (STAGES - s["from"])) for s in stashes.values())
    assert {s["from"] for s in stashes.values()} >= {0, 1}
    for kind in (STREAM_IN, STREAM_OUT):
        sizes = dict.fromkeys(stashes, 0)
        for step, first, last, _ in program.steps.tolist():
            for g in (program.group(i) for i in range(first, last) if step == kind):
                if (slot := int(g.params[2])) in sizes:
                    n = np.ones(g.rows, np.int64)
                    for d in range(int(g.params[0])):
                        n = n * g.col(4 + 3 * d)
                    sizes[slot] += int(n.sum()) * int(g.params[1])
        assert sizes == {slot: 4 * int(np.prod(s["shape"])) for slot, s in stashes.items()}


def test_a_file_with_too_deep_a_stash_is_refused(tmp_path):
    model, _ = trained(PipelineSchedule.Grouped, True, micro=12)
    exe = ipu.executable(model)
    exe.program.header["stashes"][0]["depth"] = 13
    exe.save(tmp_path / "deep.ipu")
    with pytest.raises(ValueError, match="a stash holds"):
        ipu.hlo.load(tmp_path / "deep.ipu")
