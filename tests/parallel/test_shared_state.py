"""Optimizer state that replicas share in streaming memory: the same numbers, fewer bytes from the host."""

from __future__ import annotations

import contextlib
from functools import cache

import keras
import numpy as np
import pytest

import ipu_keras as ipu
from ipu_runtime.opcodes import GATHER
from ipu_runtime.program import COLLECTIVE, STREAM_IN, STREAM_OUT

MICRO, UNITS = 3, 40
MOMENTS = 2 * 4 * UNITS * UNITS
"""Bytes of a kernel's two moments; a bias's 160 bytes each leave the chips, too."""


def trained(replicas, stages=0, shard=True, epochs=2):
    """Two dense layers with Adam, whose state lies in streaming memory."""
    keras.utils.set_random_seed(1)
    with ipu.IPUStrategy(ipus=replicas * max(1, stages)).scope():
        x = inputs = keras.Input((UNITS,))
        for i in range(2):
            with ipu.keras.PipelineStage(i) if stages else contextlib.nullcontext():
                x = keras.layers.Dense(UNITS, activation="tanh")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse", steps_per_execution=2 * MICRO)
        options = {"offload_weight_update_variables": True, "replicated_optimizer_state_sharding": shard}
        if stages:
            model.set_pipelining_options(
                2 * MICRO, gradient_accumulation_reduction_method="mean",
                pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Sequential, **options,
            )  # fmt: skip
        else:
            model.set_gradient_accumulation_options(MICRO, gradient_accumulation_reduction_method="mean", **options)
    data = np.random.default_rng(0).normal(size=(2, 4 * MICRO * replicas, UNITS)).astype(np.float32)
    model.fit(*data, batch_size=1, shuffle=False, epochs=epochs, verbose=0)
    return model


@cache
def two_replicas():
    return trained(2, epochs=1)


def numbers(model):
    return [*model.get_weights(), *(np.asarray(v) for v in model.optimizer.variables)]


@pytest.mark.parametrize(("replicas", "stages"), [(2, 0), (4, 0), (2, 2)])
def test_shared_state_changes_no_bit(replicas, stages):
    alone, shared = (trained(replicas, stages, shard) for shard in (False, True))
    for mine, theirs in zip(numbers(alone), numbers(shared), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert any(np.abs(v).max() > 0 for v in numbers(shared)[-4:])
    states = ipu.executable(shared).program.header["states"]
    assert {s.get("shared") for s in states if "remote" in s} == {replicas}
    assert not any("shared" in s for s in ipu.executable(alone).program.header["states"])


def streamed(program, kind):
    """For each replica the bytes of a kernel's moments that it streams, from the rows of the program."""
    remote = {s["remote"] for s in program.header["states"] if s["shape"] == [UNITS, UNITS] and "shared" in s}
    found = np.zeros(program.replicas)
    for step, a, b, _ in program.steps.tolist():
        for g in (program.group(i) for i in range(a, b) if step == kind):
            if int(g.params[2]) in remote:
                size = np.full(g.rows, int(g.params[1]))
                for d in range(int(g.params[0])):
                    size = size * g.col(4 + 3 * d)
                tiles = np.broadcast_to(g.col(1 if kind == STREAM_IN else 0), g.rows)
                found += np.bincount(tiles % program.replicas, size, program.replicas)
    return found


def test_each_replica_streams_its_part_and_gets_the_others():
    exe = ipu.executable(trained(4, epochs=1))
    program, profile = exe.program, exe.profile()
    for kind in (STREAM_IN, STREAM_OUT):
        parts = streamed(program, kind)
        assert parts.sum() == 2 * MOMENTS  # of two layers, each byte by one replica
        assert parts.max() <= 0.3 * parts.sum()
    # Of each stream the largest part is counted; a gather hands the largest part on in 3 rounds.
    target = program.header["target"]
    whole = {s["remote"]: 4 * int(np.prod(s["shape"])) for s in program.header["states"] if "remote" in s}
    gathers = 0
    for cycles, (kind, first, last, _) in zip(profile.steps, program.steps.tolist(), strict=True):
        groups = [program.group(i) for i in range(first, last)]
        if kind == COLLECTIVE and all(g.params[0] == GATHER for g in groups):
            gathers += len(groups)
            parts = [np.bincount(g.tiles % 4, np.broadcast_to(g.col(1), g.rows) * 4, 4) for g in groups]
            wire = 3 * sum(part.max() for part in parts) / target["link_bytes_per_second"] * target["clock_hz"]
            assert cycles.total == pytest.approx(wire + target["host_fixed_cycles"], abs=len(groups))
            assert cycles.compute == 0
        elif kind in (STREAM_IN, STREAM_OUT):
            for slot, moved in zip((int(g.params[2]) for g in groups), cycles.moved, strict=True):
                if slot in whole:  # a bias may lie on one tile
                    assert 0 < moved <= whole[slot] * (0.3 if whole[slot] == MOMENTS // 2 else 1)
    assert gathers == 8  # two moments of two kernels and two biases


def test_without_replicas_there_is_nothing_to_share():
    program = ipu.executable(trained(1, epochs=1)).program
    assert not any("shared" in s for s in program.header["states"])
    assert COLLECTIVE not in program.steps[:, 0]


@pytest.mark.parametrize("number", [1, 3, True, 2.0, "2"])
def test_a_file_with_another_number_of_sharers_is_refused(tmp_path, number):
    """With one, each replica would look for a copy of its own, and the host's array has none."""
    exe = ipu.executable(two_replicas())
    states = [state for state in exe.program.header["states"] if "shared" in state]
    for state in states:
        state["shared"] = number
    try:
        exe.save(tmp_path / "changed.ipu")
    finally:
        for state in states:
            state["shared"] = 2
    with pytest.raises(ValueError, match="replicas that share a state"):
        ipu.hlo.load(tmp_path / "changed.ipu")
