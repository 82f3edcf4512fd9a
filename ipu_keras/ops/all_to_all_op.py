"""What every replica gives, brought to all of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.cross_replica_ops import cross_replica_sum, replicas_here
from ipu_keras.ops.replication_ops import replication_index

__all__ = ["all_gather", "all_to_all"]


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """The values of all replicas, in their order.

    It is a sum of arrays that are zero but for a replica's own part, so it costs what an all-reduce of the result does.

    Args:
        x: a tensor, or a list of them.
        replication_factor: number of replicas.
        name: accepted.

    Returns:
        for each tensor one with a leading axis of that size.

    Raises:
        ValueError: the program has another number of replicas.
    """
    del name
    _check(replication_factor)
    if isinstance(x, (list, tuple)):
        return [all_gather(value, replication_factor) for value in x]
    x = tf.convert_to_tensor(x)
    # Chosen, not multiplied: zero times another replica's infinity would be no zero.
    mine = tf.reshape(tf.range(replication_factor) == replication_index(), [-1] + [1] * x.shape.rank)
    return cross_replica_sum(tf.where(mine, x[None], tf.zeros_like(x[None])))


def all_to_all(
    x: Any, split_dimension: int, concat_dimension: int, replication_factor: int, name: str | None = None
) -> Any:
    """Each replica cuts its value in parts, one for each replica, and gets theirs for it.

    Args:
        x: a tensor.
        split_dimension: along which it is cut.
        concat_dimension: along which what comes is joined, in the order of the replicas.
        replication_factor: number of replicas, which divides the size of `split_dimension`.
        name: accepted.

    Raises:
        ValueError: it does not, or the program has another number of replicas.
    """
    del name
    _check(replication_factor)
    x = tf.convert_to_tensor(x)
    if x.shape[split_dimension] % replication_factor:
        raise ArgumentError(
            f"all_to_all: dimension {split_dimension} of size {x.shape[split_dimension]} does not divide among "
            f"{replication_factor} replicas."
        )
    parts = all_gather(tf.stack(tf.split(x, replication_factor, split_dimension)), replication_factor)
    mine = tf.gather(parts, replication_index(), axis=1)
    return tf.concat(tf.unstack(mine), concat_dimension)


def _check(factor: int) -> None:
    if factor != replicas_here():
        raise ArgumentError(f"replication_factor is {factor!r}; the program has {replicas_here()} replica(s).")
