"""How many replicas a device holds, and how the steps of a call are shared among replicas, executions and updates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ipu_keras.errors import ConfigError, DataError, IPUError
from ipu_keras.pipelining import PipelineSchedule, check_iterations

__all__ = ["INFINITE", "Steps", "StepsError", "effective_batch", "plan_steps", "replica_count", "shards"]

logger = logging.getLogger("ipu_keras")

INFINITE = -1
"""Length of a dataset that does not end, as `tf.data` has it."""


class StepsError(IPUError, RuntimeError):
    """The steps of an execution do not make whole weight updates."""


def shards(stages: int = 0, device_mapping: Sequence[int] | None = None) -> int:
    """IPUs that one replica uses.

    Args:
        stages: number of pipeline stages, 0 without.
        device_mapping: IPU of each stage.
    """
    return max(device_mapping) + 1 if device_mapping else max(stages, 1)


def replica_count(
    what: str,
    ipus: int,
    *,
    stages: int = 0,
    device_mapping: Sequence[int] | None = None,
    instances: int = 1,
) -> int:
    """Replicas that a device holds: a replica occupies a power of two of its IPUs.

    Args:
        what: the model, for messages.
        ipus: IPUs of the strategy's device.
        stages: number of pipeline stages, 0 without.
        device_mapping: IPU of each stage, None for the stage's number.
        instances: processes that share the device's IPUs.

    Raises:
        ConfigError: the device has too few IPUs, or a number that replicas do not fill; a ValueError.

    Example:
        >>> replica_count("model 'm'", 4, stages=3)
        1
    """
    if device_mapping and stages and len(device_mapping) != stages:
        raise ConfigError(
            f"{what}: device_mapping {list(device_mapping)} has {len(device_mapping)} entries, and the model has "
            f"{stages} pipeline stages. Each stage must be mapped to an IPU in set_pipelining_options(device_mapping=)."
        )
    needed = shards(stages, device_mapping)
    occupied = 1 << (needed - 1).bit_length()
    there = ipus // instances
    if occupied > there or there % occupied:
        rounded = "" if occupied == needed else f" (for {needed}, as a device has a power of two)"
        why = f"device_mapping {list(device_mapping)}" if device_mapping else f"{max(stages, 1)} pipeline stage(s)"
        raise ConfigError(
            f"{what} requires a multiple of {occupied} IPUs{rounded} for its {why}, and the strategy's device has "
            f"{there}{' in each instance' if instances > 1 else ''}. Set IPUConfig.auto_select_ipus to "
            f"{max(1, there // occupied + 1) * occupied * instances}, or use fewer stages."
        )
    return there // occupied


@dataclass(frozen=True)
class Steps:
    """How a call runs.

    Attributes:
        per_replica: steps of each replica in an epoch; None when nobody knows how many batches there are.
        steps_per_execution: steps of each replica in one execution, of this call.
        replicas: number of replicas.
        accumulation: steps of each replica for one weight update; 1 when none is accumulated.
    """

    per_replica: int | None
    steps_per_execution: int
    replicas: int = 1
    accumulation: int = 1

    @property
    def batches(self) -> int | None:
        """Batches of the data that an epoch takes."""
        return None if self.per_replica is None else self.per_replica * self.replicas

    @property
    def batches_per_execution(self) -> int:
        """Batches of the data that one execution takes."""
        return self.steps_per_execution * self.replicas

    @property
    def updates_per_execution(self) -> int:
        """Weight updates, in training."""
        return self.steps_per_execution // self.accumulation

    @property
    def executions(self) -> int | None:
        """Executions of an epoch."""
        return None if self.per_replica is None else self.per_replica // self.steps_per_execution


def plan_steps(
    what: str,
    *,
    steps: int | None,
    length: int | None,
    steps_per_execution: int,
    replicas: int = 1,
    accumulation: int = 1,
    training: bool = False,
    stages: int = 0,
    schedule: PipelineSchedule = PipelineSchedule.Grouped,
    device_mapping: Sequence[int] | None = None,
    io_tiles: bool = False,
) -> Steps:
    """Shares the batches of a call among replicas and executions.

    Args:
        what: the call, for messages, such as ``"m.fit"``.
        steps: the argument steps_per_epoch, steps or validation_steps: batches over all replicas.
        length: batches of the data, None when unknown, `INFINITE`.
        steps_per_execution: of `compile`, steps of each replica.
        replicas: number of replicas.
        accumulation: steps of each replica for one weight update, which matters in training only.
        training: whether weights are updated.
        stages: number of pipeline stages, 0 without.
        schedule: of the pipeline.
        device_mapping: IPU of each stage, None for one each.
        io_tiles: whether the pipeline overlaps transfers on I/O tiles.

    Raises:
        DataError: the data does not make whole executions; a ValueError.
        StepsError: an execution does not make whole weight updates; a RuntimeError.
        IPUError: an execution does not fill the pipeline; a FailedPreconditionError.

    Example:
        >>> plan_steps("m.fit", steps=None, length=64, steps_per_execution=8, replicas=2, accumulation=4, training=True)
        Steps(per_replica=32, steps_per_execution=8, replicas=2, accumulation=4)
    """
    accumulation = accumulation if training else 1
    plain = replicas == 1 and accumulation == 1 and not stages
    total = _total(what, steps, length, plain)
    inferred = None if total is None else _per_replica(what, total, replicas, known=length not in (None, INFINITE))
    used = _per_execution(what, inferred, steps_per_execution, accumulation, replicas)
    if training and used % accumulation:
        kind = "The pipelined model" if stages else "The model"
        reduced = "" if used == steps_per_execution else f" (reduced from {steps_per_execution} for this call)"
        raise StepsError(
            f"{kind} has steps_per_execution={used}{reduced}, which is not divisible by "
            f"`gradient_accumulation_steps_per_replica`={accumulation} ({what}). An execution makes whole weight "
            f"updates: compile(steps_per_execution={max(1, used // accumulation) * accumulation})."
        )
    if stages:
        argument = "gradient_accumulation_steps_per_replica" if training else "steps_per_execution"
        number = accumulation if training else used
        if not training and used != steps_per_execution:
            argument = f"steps_per_execution, reduced from {steps_per_execution} to the batches that a replica has,"
        check_iterations(
            what, argument, number, schedule, stages,
            training=training, device_mapping=device_mapping, io_tiles=io_tiles,
        )  # fmt: skip
    return Steps(inferred, used, replicas, accumulation)


def _total(what: str, steps: int | None, length: int | None, plain: bool) -> int | None:
    if length == INFINITE:
        if steps is None:
            raise DataError(
                f"{what}: When providing an infinite dataset, say how many batches to take: steps_per_epoch= in fit, "
                "steps= in evaluate and predict, validation_steps= for validation data."
            )
        return steps
    if length is None:
        if steps is None and not plain:
            raise DataError(
                f"{what}: the length of the data is unknown, and replicas, gradient accumulation and pipelines need "
                "whole executions. Say how many batches to take (steps_per_epoch=, steps=), or give the dataset a "
                "length with tf.data.experimental.assert_cardinality."
            )
        return steps
    if steps is not None and steps > length:
        raise DataError(
            f"{what}: the dataset does not have enough data: {steps} batches asked for, {length} there. Use .repeat(), "
            "or fewer steps."
        )
    return length if steps is None else steps


def _per_replica(what: str, total: int, replicas: int, known: bool) -> int:
    inferred, rest = divmod(total, replicas)
    if inferred == 0:
        raise DataError(
            f"{what}: {total} batch(es) for {replicas} replicas leave some of them without a step. Give at least "
            f"{replicas}, or use a smaller batch size."
        )
    if rest and known:
        logger.warning(
            "%s: %d batches do not divide among %d replicas; the last %d of each epoch are dropped.",
            what,
            total,
            replicas,
            rest,
        )
    return inferred


def _per_execution(what: str, inferred: int | None, steps_per_execution: int, accumulation: int, replicas: int) -> int:
    of_each = " of each replica" if replicas > 1 else ""
    if inferred is None or steps_per_execution == 1:
        return steps_per_execution
    if steps_per_execution > inferred:
        logger.warning(
            "%s: steps_per_execution=%d is more than the %d step(s)%s of this call; using %d for it.",
            what,
            steps_per_execution,
            inferred,
            of_each,
            inferred,
        )
        return inferred
    if inferred % steps_per_execution:
        divisors = [d for d in range(1, inferred + 1) if inferred % d == 0]
        near = min(divisors, key=lambda d: (d % accumulation != 0, abs(d - steps_per_execution)))
        raise DataError(
            f"{what}: steps_per_execution={steps_per_execution} must be a divisor of the {inferred} "
            f"steps{of_each}: each device execution runs that many. Try compile(steps_per_execution={near}), or "
            f"{inferred // steps_per_execution * steps_per_execution} steps{of_each}."
        )
    return steps_per_execution


def effective_batch(batch: int, accumulation: int, replicas: int, instances: int = 1) -> str:
    """What `fit` logs as it starts: the samples of one weight update.

    Args:
        batch: samples of a batch.
        accumulation: steps of each replica for one weight update.
        replicas: number of replicas.
        instances: number of processes.

    Example:
        >>> effective_batch(4, 8, 2)
        'One weight update sees 64 samples: batch size 4 x 8 accumulation steps x 2 replicas.'
    """
    of_processes = f" x {instances} instances" if instances > 1 else ""
    return (
        f"One weight update sees {batch * accumulation * replicas * instances} samples: batch size {batch} x "
        f"{accumulation} accumulation steps x {replicas} replicas{of_processes}."
    )
