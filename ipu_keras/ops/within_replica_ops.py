"""Collectives over the shards of one replica: a list with the tensor of each chip."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "COLLECTIVE_OP_ADD": tf.add,
    "COLLECTIVE_OP_MUL": tf.multiply,
    "COLLECTIVE_OP_MIN": tf.minimum,
    "COLLECTIVE_OP_MAX": tf.maximum,
    "COLLECTIVE_OP_LOGICAL_AND": tf.logical_and,
    "COLLECTIVE_OP_LOGICAL_OR": tf.logical_or,
}


def all_gather(input_shards: Any, axis: int = 0) -> list[Any]:
    """Every shard gets all shards, joined.

    Args:
        input_shards: tensors of one rank, which may differ in their size along `axis`.
        axis: where they are joined.

    Returns:
        for each shard the joined tensor.

    Raises:
        ArgumentError: there are no shards.

    Example:
        >>> all_gather([tf.ones(2), tf.zeros(3)])
    """
    joined = tf.concat(_shards("all_gather", input_shards), axis)
    return [tf.identity(joined) for _ in input_shards]


def all_reduce(input_shards: Any, op: str) -> list[Any]:
    """Every shard gets all shards, combined.

    Args:
        input_shards: tensors of one shape and dtype.
        op: ``"COLLECTIVE_OP_ADD"``, or ``..._MUL``, ``..._MIN``, ``..._MAX``, ``..._LOGICAL_AND``, ``..._LOGICAL_OR``.

    Returns:
        for each shard the combined tensor.

    Raises:
        ArgumentError: there is no such `op`, or the shards do not fit.

    Example:
        >>> all_reduce([tf.ones(2), tf.ones(2)], "COLLECTIVE_OP_ADD")
    """
    combined = _combined("all_reduce", input_shards, op)
    return [tf.identity(combined) for _ in input_shards]


def reduce_scatter(input_shards: Any, op: str) -> list[Any]:
    """Every shard gets its part of all shards, combined; zeros fill the last parts.

    Args:
        input_shards: tensors of one shape [n] and one dtype.
        op: as of `all_reduce`.

    Returns:
        for each shard a tensor of shape [ceil(n / shards)].

    Raises:
        ArgumentError: there is no such `op`, or the shards do not fit.

    Example:
        >>> reduce_scatter([tf.ones(3), tf.ones(3)], "COLLECTIVE_OP_ADD")
    """
    combined, count = _combined("reduce_scatter", input_shards, op), len(input_shards)
    if combined.shape.rank != 1:
        raise ArgumentError(f"reduce_scatter: shards must have one dimension; their shape is {combined.shape}.")
    size = int(combined.shape[0])
    padded = tf.pad(combined, [[0, -size % count]])
    return list(tf.split(padded, count))


def _combined(name: str, input_shards: Any, op: str) -> Any:
    shards = _shards(name, input_shards)
    if op not in _COMBINE:
        raise ArgumentError(f"{name}: op is {op!r}; it must be one of {', '.join(map(repr, _COMBINE))}.")
    if any(s.shape != shards[0].shape or s.dtype != shards[0].dtype for s in shards):
        kinds = [f"{s.dtype.name}{list(s.shape)}" for s in shards]
        raise ArgumentError(f"{name}: shards must have one shape and dtype, not {', '.join(kinds)}.")
    return reduce(_COMBINE[op], shards)


def _shards(name: str, input_shards: Any) -> list[Any]:
    if not isinstance(input_shards, (list, tuple)) or not input_shards:
        raise ArgumentError(f"{name}: input_shards must be a list of tensors, one for each shard.")
    return [tf.convert_to_tensor(shard) for shard in input_shards]
