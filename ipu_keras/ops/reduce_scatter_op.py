"""Sums over replicas of which each keeps its part."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.cross_replica_ops import cross_replica_mean, cross_replica_sum, replicas_here
from ipu_keras.ops.replication_ops import replication_index

__all__ = ["reduce_scatter"]


def reduce_scatter(x: Any, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None) -> Any:
    """Adds a vector up over all replicas; replica r gets chunk r of the result.

    Args:
        x: a vector of n elements, or a list of them.
        replication_factor: number of replicas R.
        op: ``"COLLECTIVE_OP_ADD"`` or ``"COLLECTIVE_OP_MEAN"``.
        name: accepted.

    Returns:
        a vector of ceil(n / R) elements, padded with zeros.

    Raises:
        ValueError: `x` is no vector, the operation is another, or the program has another number of replicas.
    """
    del name
    if isinstance(x, (list, tuple)):
        return [reduce_scatter(value, replication_factor, op) for value in x]
    if replication_factor != replicas_here():
        raise ArgumentError(f"replication_factor is {replication_factor!r}; there are {replicas_here()} replica(s).")
    combine = {"COLLECTIVE_OP_ADD": cross_replica_sum, "COLLECTIVE_OP_MEAN": cross_replica_mean}.get(op)
    if combine is None:
        raise ArgumentError(f"op is {op!r}; there are COLLECTIVE_OP_ADD and COLLECTIVE_OP_MEAN.")
    x = tf.convert_to_tensor(x)
    if x.shape.rank != 1:
        raise ArgumentError(f"reduce_scatter takes a vector; this has the shape {x.shape}.")
    chunk = -(-x.shape[0] // replication_factor)
    padded = tf.pad(combine(x), [[0, chunk * replication_factor - x.shape[0]]])
    return tf.gather(tf.reshape(padded, (replication_factor, chunk)), replication_index())
