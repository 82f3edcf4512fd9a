"""Sums and means over replicas, inside a device program."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.frontend import collectives
from ipu_keras.keras import adapter
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def replicas_here() -> int:
    """Replicas of the program that is being traced; 1 on the host."""
    tracer = adapter.current_tracer()
    return tracer.gradients.replicas if tracer is not None and tracer.gradients is not None else 1


def cross_replica_sum(x: Any, replica_group_size: int | None = None, name: str | None = None) -> Any:
    """The sum of a value over groups of consecutive replicas; each gets it.

    Args:
        x: a tensor, in fp16, fp32 or int32.
        replica_group_size: replicas of a group, which divides their number; None for all.
        name: accepted.

    Raises:
        ValueError: groups of this size do not hold all replicas.

    Example:
        >>> strategy.run(tf.function(lambda: cross_replica_sum(tf.constant(1.0))))  # the number of replicas
    """
    del name
    x = tf.convert_to_tensor(x)
    replicas, size = replicas_here(), _group(replica_group_size)
    if size == 1:
        return tf.identity(x)

    @tf.custom_gradient
    def total(value: Any) -> Any:
        # Every replica's result holds every replica's value: the gradients are summed in the same way.
        return collectives.all_reduce(value, replicas, size), lambda grad: collectives.all_reduce(grad, replicas, size)

    return total(x)


def cross_replica_mean(x: Any, replica_group_size: int | None = None, name: str | None = None) -> Any:
    """The mean of a value over groups of consecutive replicas; each gets it.

    Args:
        x: a tensor, in fp16 or fp32.
        replica_group_size: as for `cross_replica_sum`.
        name: accepted.

    Raises:
        ValueError: as for `cross_replica_sum`.
    """
    x = tf.convert_to_tensor(x)
    # Divided first: a sum of fp16 values may overflow where their mean does not.
    return cross_replica_sum(x / tf.cast(_group(replica_group_size), x.dtype), replica_group_size, name)


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Marks tensors that are the same on all replicas; gives them back.

    Args:
        tensors: a structure.
        inplace: accepted.
    """
    del inplace
    return tf.nest.map_structure(tf.identity, tensors)


def _group(size: int | None) -> int:
    replicas = replicas_here()
    if size is None:
        return replicas
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or replicas % size:
        raise ArgumentError(
            f"replica_group_size is {size!r}; it must divide the number of replicas, which is {replicas}."
        )
    return size
