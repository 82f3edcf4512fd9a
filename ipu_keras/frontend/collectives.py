"""Operations that TensorFlow has no public name for: sums over micro-batches and replicas, a replica's number.

They are traced as XLA's own operations, so they are in the HLO module and nowhere else. Outside a program for several
replicas each is what it is for one.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla

from ipu_keras.compiler.parallel.spec import ACCUMULATE, CHECKPOINT, PIPELINE, Parallel
from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend import effects, tfapi
from ipu_keras.pipelining import PipelineSchedule

__all__ = ["accumulate", "all_reduce", "announce", "announced", "checkpoint", "replica_index"]


def accumulate(value: Any, method: str = "SUM", dtype: Any = None) -> Any:
    """Marks a gradient: it is summed over the micro-batches of an iteration, and what follows is done once.

    Args:
        value: a dense tensor with a full shape, or IndexedSlices.
        method: ``"SUM"``, ``"MEAN"`` or ``"RUNNING_MEAN"`` (api.md 6.1).
        dtype: of the sum; None for that of the value.

    Returns:
        the sum, in its dtype.
    """
    value = tf.convert_to_tensor(value)
    kind = tf.as_dtype(dtype or value.dtype)
    config = json.dumps({"method": method})
    shape = [] if value.shape.rank == 0 else value.shape
    (total,) = _xla.xla_custom_call_v2([value], ACCUMULATE, config, False, [kind], [shape])
    total.set_shape(value.shape)
    return total


def checkpoint(value: Any) -> Any:
    """Marks a value of a forward stage that is kept for the backward stage, which works the others out again.

    Args:
        value: a tensor with a full shape.

    Returns:
        the value; its gradient is the result's.
    """

    @tf.custom_gradient
    def marked(x: Any) -> Any:
        (same,) = _xla.xla_custom_call_v2([x], CHECKPOINT, "", False, [x.dtype], [x.shape])
        same.set_shape(x.shape)
        return same, lambda upstream: upstream

    return marked(tf.convert_to_tensor(value))


def all_reduce(value: Any, replicas: int, group: int | None = None, op: str = "Add") -> Any:
    """Combines a value over groups of consecutive replicas.

    Args:
        value: a tensor.
        replicas: of the program.
        group: replicas of a group, None for all.
        op: ``"Add"``, ``"Max"`` or ``"Min"``.
    """
    value = tf.convert_to_tensor(value)
    size = group or replicas
    groups = [list(range(first, first + size)) for first in range(0, replicas, size)]
    return _xla.xla_all_reduce(value, tf.constant(groups, tf.int32), op, "CrossReplica")


def announce(spec: Parallel, repeat: int) -> None:
    """Says in the program that is being traced how it is spread.

    Args:
        spec: stages and micro-batches.
        repeat: weight updates of an execution.
    """
    config = {**dataclasses.asdict(spec), "repeat": repeat}
    effects.keep(effects.call(PIPELINE, [], config, [effects.TOKEN]))


def announced(module: bytes) -> tuple[Parallel, int] | None:
    """What `announce` has said in a module.

    Args:
        module: a serialized HloModuleProto.

    Raises:
        UnsupportedError: it was said several times: a program has one pipeline.
    """
    if PIPELINE.encode() not in module:
        return None
    found = [
        instruction.backend_config
        for computation in tfapi.parse(module).computations
        for instruction in computation.instructions
        if instruction.custom_call_target == PIPELINE
    ]
    if len(found) > 1:
        raise UnsupportedError(
            f"A device program is one pipeline; this one has {len(found)}. Run them one after the other.",
            [f"{len(found)} pipelines in one program"],
        )
    config = json.loads(found[0])
    repeat = int(config.pop("repeat"))
    del config["site"]
    config["device_mapping"] = tuple(config["device_mapping"])
    config["stage_options"] = tuple(tuple(map(tuple, options)) for options in config["stage_options"])
    config["schedule"] = PipelineSchedule(config["schedule"])
    return Parallel(**config), repeat


def replica_index() -> Any:
    """The replica's number, an int32 scalar."""
    return _xla.xla_replica_id()
