"""Rules for the data of fit, evaluate and predict: static shapes, whole batches, whole executions; and their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.errors import DataError
from ipu_keras.frontend import tfapi
from ipu_keras.keras import adapter
from ipu_keras.keras.steps import plan_steps
from ipu_keras.pipelining import PipelineSchedule

__all__ = ["Plan", "Share", "batch_of", "leaf_array", "plan", "split_lengths"]

DEFAULT_BATCH = 32
_WAY_OUT = (
    'or let a second program be compiled for it: IPUStrategy(partial_batch="compile") (it costs a compilation, and the '
    "device's throughput while it runs)"
)


@dataclass
class Plan:
    """How a call of fit, evaluate or predict will run.

    Attributes:
        steps: number of batches of an epoch, over all replicas; None when unknown.
        steps_per_execution: batches of an execution of this call, over all replicas.
        left_over: whether the data has more batches than the call takes.
    """

    steps: int | None
    steps_per_execution: int
    left_over: bool = False


@dataclass(frozen=True)
class Share:
    """How a call's batches are shared.

    Attributes:
        replicas: among which they are dealt out.
        accumulation: batches of a replica for one weight update.
        training: whether weights are updated.
        stages: of a pipeline, 0 without.
        schedule: of the pipeline.
        device_mapping: chip of each stage, None for the stage's number.
    """

    replicas: int = 1
    accumulation: int = 1
    training: bool = False
    stages: int = 0
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    device_mapping: tuple[int, ...] | None = None

    @property
    def alone(self) -> bool:
        """Whether there is nothing to share: every batch is an iteration."""
        return self == Share(training=self.training)

    def plan(self, what: str, steps: int | None, length: int | None, steps_per_execution: int) -> Plan:
        """Steps of an epoch and of an execution.

        Args:
            what: the call, for messages.
            steps: that were asked for, None for all there are.
            length: batches of the data, None when unknown.
            steps_per_execution: as compiled.

        Raises:
            DataError, StepsError, IPUError: see `steps.plan_steps`.
        """
        found = plan_steps(
            what,
            steps=steps or None,
            length=length,
            steps_per_execution=steps_per_execution,
            replicas=self.replicas,
            accumulation=self.accumulation,
            training=self.training,
            stages=self.stages,
            schedule=self.schedule,
            device_mapping=self.device_mapping,
        )
        asked = steps or length
        return Plan(found.batches, found.batches_per_execution, found.batches is not None and found.batches != asked)


def plan(
    what: str,
    x: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    steps_per_execution: int,
    partial: bool,
    length: int | None = None,
    share: Share | None = None,
) -> Plan:
    """Checks the data of a call before anything runs.

    Args:
        what: for messages, such as ``"fit"`` or ``"the validation data of fit"``.
        x: the argument `x`.
        batch_size: the argument.
        steps: the argument steps_per_epoch, steps or validation_steps.
        steps_per_execution: as compiled.
        partial: whether a partial last batch gets a program of its own.
        length: number of samples, if not that of the arrays.
        share: how the batches are shared among replicas, weight updates and stages.

    Raises:
        DataError: with the numbers, and what to do.
    """
    share = share or Share()
    if isinstance(x, tf.data.Dataset):
        return _plan_dataset(what, x, steps, steps_per_execution, partial, share)
    if adapter.is_py_dataset(x):
        known = x.num_batches
        return share.plan(what, steps, int(known) if known else None, steps_per_execution)
    samples = length if length is not None else _samples(x)
    if samples is None:  # a generator: its shapes are seen as it runs
        return share.plan(what, steps, None, steps_per_execution)
    for leaf in tf.nest.flatten(x):
        if leaf is not None and np.asarray(leaf).dtype.kind in "OSU" if isinstance(leaf, np.ndarray) else False:
            raise DataError(_string_message(what, leaf.dtype))
    return _plan_arrays(what, samples, batch_size or DEFAULT_BATCH, steps, steps_per_execution, partial, share)


def _plan_arrays(what: str, samples: int, batch: int, steps: int | None, spe: int, partial: bool, share: Share) -> Plan:
    full, rest = divmod(samples, batch)
    if steps is not None and steps > full + (rest > 0):
        raise DataError(
            f"{what}: {samples} samples in batches of {batch} does not have enough data for {steps} steps; there are "
            f"{full + (rest > 0)} batches."
        )
    reaches_rest = rest and (steps is None or steps > full)
    if reaches_rest and not partial:
        drop = f"drop {rest} sample(s) (x[:{full * batch}]), " if full else ""
        raise DataError(
            f"{what}: {samples} samples with batch_size={batch} has a partial batch of {rest} sample(s) at the end, "
            f"and a device program has one batch size. Choose a batch_size that divides {samples} (such as "
            f"{_near_divisor(samples, batch)}), {drop}{_WAY_OUT}."
        )
    length = full + (1 if rest and partial else 0)
    if not (steps or length):
        raise DataError(f"{what}: there are no samples.")
    return share.plan(what, steps, length, spe)


def _plan_dataset(what: str, dataset: Any, steps: int | None, spe: int, partial: bool, share: Share) -> Plan:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
                kind = type(spec).__name__.removesuffix("Spec")
                raise DataError(f"{what}: the dataset has {kind}s; convert them (.to_tensor(shape=...)).")
            continue
        if spec.dtype == tf.string:
            raise DataError(_string_message(what, "string"))
        if not spec.shape.is_fully_defined() and not (partial and _only_batch_unknown(spec.shape)):
            raise DataError(
                f"{what}: the dataset's elements have shape {spec.shape}, which is not fully defined, and a "
                "device program has fixed shapes. Use .batch(n, drop_remainder=True) (and pad what varies in length), "
                + _WAY_OUT
                + "."
            )
    length = int(dataset.cardinality())
    if length == 0:
        raise DataError(
            f"{what}: the dataset has no batches (with drop_remainder=True a batch larger than it leaves none)."
        )
    return share.plan(what, steps, None if length == tf.data.UNKNOWN_CARDINALITY else length, spe)


def batch_of(x: Any, batch_size: int | None) -> int | None:
    """Samples of a batch, None where only the data knows.

    Args:
        x: the argument `x`.
        batch_size: the argument.
    """
    if isinstance(x, tf.data.Dataset):
        shapes = [s.shape for s in tf.nest.flatten(x.element_spec) if isinstance(s, tf.TensorSpec) and s.shape.rank]
        return shapes[0][0] if shapes else None
    return (batch_size or DEFAULT_BATCH) if _samples(x) is not None else None


def split_lengths(x: Any, validation_split: float) -> tuple[int, int] | None:
    """Samples left for training and for validation by ``validation_split``.

    Args:
        x: the argument `x` of fit.
        validation_split: the argument.
    """
    samples = _samples(x)
    if samples is None:
        return None
    train = math.floor(samples * (1.0 - validation_split))
    return train, samples - train


def leaf_array(leaf: Any, what: str) -> np.ndarray | None:
    """One tensor of a batch as an array in a dtype that a device program takes, without copying where possible.

    Args:
        leaf: eager tensor, array or number; None and empty optionals give None.
        what: for messages.

    Raises:
        DataError: strings, ragged or sparse tensors.
    """
    if isinstance(leaf, tf.Tensor):
        array = np.asarray(tfapi.view(leaf))
    elif leaf is None or isinstance(leaf, tf.experimental.Optional):
        return None
    elif isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise DataError(f"{what}: a {type(leaf).__name__} has no fixed shape; convert it to a dense tensor first.")
    else:
        array = np.asarray(leaf)
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize == 8:
        return array.astype(np.float32)
    if kind in "OSU":
        raise DataError(_string_message(what, array.dtype))
    return array


def _samples(x: Any) -> int | None:
    leaves = [leaf for leaf in tf.nest.flatten(x) if leaf is not None]
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return None
    shape = leaves[0].shape
    return int(shape[0]) if len(shape) else None


def _only_batch_unknown(shape: tf.TensorShape) -> bool:
    return shape.rank is not None and shape.rank > 0 and shape[1:].is_fully_defined()


def _near_divisor(samples: int, batch: int) -> int:
    divisors = [d for i in range(1, math.isqrt(samples) + 1) if samples % i == 0 for d in (i, samples // i)]
    return min(divisors, key=lambda d: (abs(math.log(d / batch)), d))


def _string_message(what: str, dtype: Any) -> str:
    return (
        f"{what}: the data has string tensors ({dtype}); a device has none. Turn them into numbers in the tf.data "
        "pipeline (tf.keras.layers.StringLookup, a tokenizer), outside the model."
    )
