"""Replicas and steps: counts by arithmetic, and each row of the rules of the IPU API."""

import itertools

import pytest
import tensorflow as tf

from ipu_keras.keras.steps import INFINITE, effective_batch, plan_steps, replica_count, shards
from ipu_keras.pipelining import PipelineSchedule, check_iterations, offsets, rows

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule


@pytest.mark.parametrize(
    "ipus, stages, mapping, instances, replicas",
    [
        (4, 2, None, 1, 2),
        (4, 3, None, 1, 1),
        (4, 0, None, 1, 4),
        (4, 1, None, 1, 4),
        (1, 0, None, 1, 1),
        (16, 5, None, 1, 2),
        (4, 4, [0, 1, 1, 0], 1, 2),
        (4, 3, [0, 3, 1], 1, 1),
        (8, 2, None, 2, 2),
        (6, 2, None, 1, 3),
    ],
)
def test_replicas(ipus, stages, mapping, instances, replicas):
    assert replica_count("m", ipus, stages=stages, device_mapping=mapping, instances=instances) == replicas
    assert shards(stages, mapping) * replicas <= ipus // instances


@pytest.mark.parametrize(
    "ipus, stages, mapping, message",
    [
        (
            2,
            3,
            None,
            r"model 'm' requires a multiple of 4 IPUs \(for 3, .*3 pipeline stage.*has 2.*auto_select_ipus to 4",
        ),
        (1, 2, None, "requires a multiple of 2 IPUs for its 2 pipeline stage.*auto_select_ipus to 2"),
        (2, 3, [0, 1, 2], r"requires a multiple of 4 IPUs .*device_mapping \[0, 1, 2\]"),
        (6, 4, None, "requires a multiple of 4 IPUs.*has 6.*auto_select_ipus to 8"),
        (4, 3, [0, 1], "Each stage must be mapped"),
    ],
)
def test_too_few_ipus(ipus, stages, mapping, message):
    with pytest.raises(ValueError, match=message):
        replica_count("model 'm'", ipus, stages=stages, device_mapping=mapping)


def plan(length=None, steps=None, spe=1, **kwargs):
    return plan_steps("m.fit", steps=steps, length=length, steps_per_execution=spe, **kwargs)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("executions", [1, 5])
@pytest.mark.parametrize("given", ["length", "steps"])
def test_counts(replicas, accumulation, updates, executions, given):
    spe = accumulation * updates
    batches = replicas * executions * spe
    found = plan(
        spe=spe,
        replicas=replicas,
        accumulation=accumulation,
        training=True,
        length=batches if given == "length" else INFINITE,
        steps=batches if given == "steps" else None,
    )
    assert (found.per_replica, found.executions, found.batches) == (executions * spe, executions, batches)
    assert found.updates_per_execution == updates
    assert found.batches_per_execution * found.executions == batches


def test_a_remainder_of_replicas_is_dropped_with_a_warning(caplog):
    with caplog.at_level("WARNING", "ipu_keras"):
        found = plan(length=11, replicas=4, spe=2)
    assert (found.per_replica, found.batches, found.executions) == (2, 8, 1)
    assert "the last 3 of each epoch are dropped" in caplog.text
    caplog.clear()
    assert plan(length=INFINITE, steps=11, replicas=4).per_replica == 2 and not caplog.text


def test_a_long_execution_is_reduced_with_a_warning(caplog):
    with caplog.at_level("WARNING", "ipu_keras"):
        found = plan(length=8, replicas=2, spe=256)
    assert found.steps_per_execution == 4 and "using 4 for it" in caplog.text
    with pytest.raises(RuntimeError, match=r"steps_per_execution=4 \(reduced from 8 for this call\), which is not"):
        plan(length=8, replicas=2, spe=8, accumulation=8, training=True)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"length": INFINITE}, "When providing an infinite dataset"),
        ({"length": None, "replicas": 2}, "length of the data is unknown"),
        ({"length": None, "accumulation": 2, "training": True, "spe": 2}, "length of the data is unknown"),
        ({"length": None, "stages": 2}, "length of the data is unknown"),
        ({"length": 3, "replicas": 4}, "leave some of them without a step"),
        ({"length": 0}, "without a step"),
        ({"length": 10, "spe": 4}, "must be a divisor of the 10 steps"),
        ({"length": 20, "spe": 4, "replicas": 2}, "must be a divisor of the 10 steps of each replica"),
        ({"length": 10, "steps": 12}, "does not have enough data: 12 batches asked for, 10 there"),
    ],
)
def test_data_that_does_not_fit(kwargs, message):
    with pytest.raises(ValueError, match=message):
        plan(**kwargs)


def test_what_is_advised_works():
    """The number that the message names makes whole executions and whole updates."""
    with pytest.raises(ValueError, match=r"Try compile\(steps_per_execution=8\)"):
        plan(length=24, spe=9, accumulation=4, training=True)
    assert plan(length=24, spe=8, accumulation=4, training=True).updates_per_execution == 2


def test_accumulation_is_of_training_alone():
    assert plan(length=6, spe=3, accumulation=2).accumulation == 1
    with pytest.raises(
        RuntimeError, match=r"The model has.*is not divisible by `gradient_accumulation_steps_per_replica`=2"
    ):
        plan(length=6, spe=3, accumulation=2, training=True)
    with pytest.raises(RuntimeError, match=r"The pipelined model has.*is not divisible by `gradient_acc"):
        plan(length=12, spe=6, accumulation=4, training=True, stages=2)


def test_unknown_length_is_fine_for_one_replica_without_updates_to_fill():
    assert plan(spe=4).per_replica is None and plan(spe=4).executions is None


PIPELINES = [(s, n, t) for s in (2, 3, 4) for n in range(1, 17) for t in (True, False)]


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_which_numbers_fill_a_pipeline(schedule):
    """Simulated: rows of mini-batches, each of which must have the same number of turns, and one at least."""
    for stages, number, training in PIPELINES:
        in_flight = {
            GROUPED: stages * (2 if training else 1),
            INTERLEAVED: stages,
            SEQUENTIAL: 1,
        }[schedule]
        assert rows(schedule, stages, training) == in_flight
        turns = [len(range(row, number, in_flight)) for row in range(in_flight)]
        fits = min(turns) == max(turns) >= 1
        call = {"accumulation": number} if training else {"spe": number}
        try:
            plan(length=number, training=training, stages=stages, schedule=schedule, **{"spe": number, **call})
            assert fits, (stages, number, training)
        except tf.errors.FailedPreconditionError as error:
            assert not fits, (stages, number, training)
            what = "gradient_accumulation_steps_per_replica" if training else "steps_per_execution"
            assert f"{what} is {number}" in str(error)
            least = f"number of iterations of the pipeline must be at least {in_flight}"
            multiple = f"number of iterations of the pipeline must be a multiple of {in_flight}"
            assert (least if number < in_flight else multiple) in str(error)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_interleaved_rows_never_meet_on_a_chip(stages):
    """Slot by slot: no two mini-batches are on one chip, and there is no room for another one."""
    for mapping, training in itertools.product(itertools.product(range(stages), repeat=stages), (True, False)):
        chips = mapping + mapping[::-1] if training else mapping

        def free(entries, chips=chips):
            return all(
                len({chips[(slot - entry) % len(chips)] for entry in entries}) == len(entries)
                for slot in range(len(chips))
            )

        entries = offsets(INTERLEAVED, chips)
        assert free(entries) and not any(free([*entries, late]) for late in range(len(chips)))
        assert rows(INTERLEAVED, stages, training, mapping) == len(entries)


@pytest.mark.parametrize("training, least", [(True, 6), (False, 4)])
def test_io_tiles_need_a_longer_pipeline_and_no_whole_rounds(training, least):
    for number in range(1, 12):
        if number >= least:
            check_iterations("m", "n", number, GROUPED, 2, training=training, io_tiles=True)
        else:
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"must be at least {least}"):
                check_iterations("m", "n", number, GROUPED, 2, training=training, io_tiles=True)


def test_the_effective_batch_is_said():
    assert "sees 64 samples" in effective_batch(4, 8, 2)
    assert effective_batch(4, 8, 2, 3).endswith("x 2 replicas x 3 instances.")
