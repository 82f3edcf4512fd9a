"""Runs of rows copied from one tensor to another, their places known only when the program runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError

__all__ = ["sequence_slice", "sequence_slice_pack", "sequence_slice_unpack"]


def sequence_slice(
    dst: Any,
    src: Any,
    num_elems: Any,
    src_offsets: Any,
    dst_offsets: Any,
    zero_unused: bool,
    name: str | None = None,
) -> Any:
    """Copies runs of rows; where they overlap in the result, the later one stays.

    Args:
        dst: tensor of shape [rows, ...], of at least two dimensions: what stays where no run goes.
        src: tensor of shape [source rows, ...], its other dimensions those of `dst`.
        num_elems: int tensor of shape [runs]: rows of each run.
        src_offsets: int tensor of shape [runs]: first row of each in `src`.
        dst_offsets: int tensor of shape [runs]: first row of each in the result.
        zero_unused: whether rows that no run reaches become zero, instead of keeping what `dst` has.
        name: name scope.

    Returns:
        a tensor like `dst`.

    Raises:
        ArgumentError: the shapes do not fit.

    Example:
        >>> sequence_slice(tf.zeros((4, 2)), tf.ones((3, 2)), [2], [1], [0], zero_unused=True)
    """
    with tf.name_scope(name or "sequence_slice"):
        dst, src = tf.convert_to_tensor(dst), tf.convert_to_tensor(src)
        if dst.shape.rank is None or dst.shape.rank < 2 or src.shape.rank != dst.shape.rank:
            raise ArgumentError(
                f"sequence_slice: dst and src must have one rank, at least 2; {dst.shape}, {src.shape}."
            )
        if dst.shape[1:] != src.shape[1:]:
            raise ArgumentError(
                f"sequence_slice: dst and src may differ in their first dimension only; {dst.shape}, {src.shape}."
            )
        counts, sources, places = _runs(num_elems, src_offsets, dst_offsets)
        used, rows = _rows(int(dst.shape[0]), counts, sources, places)
        copied = tf.gather(src, tf.clip_by_value(rows, 0, int(src.shape[0]) - 1))
        used = tf.reshape(used, [-1] + [1] * (dst.shape.rank - 1))
        return tf.where(used, copied, tf.zeros((), dst.dtype) if zero_unused else dst)


def sequence_slice_unpack(
    src: Any, num_elems: Any, src_offsets: Any, total_elements: int, name: str | None = None
) -> Any:
    """Puts runs of rows one after the other.

    Args:
        src: tensor of shape [rows, ...], of at least two dimensions.
        num_elems: int tensor of shape [runs]: rows of each run.
        src_offsets: int tensor of shape [runs]: first row of each in `src`.
        total_elements: rows of the result, a Python int; what is left at the end is zero.
        name: name scope.

    Returns:
        a tensor of shape [total_elements, ...].

    Raises:
        ArgumentError: the shapes do not fit.

    Example:
        >>> sequence_slice_unpack(tf.reshape(tf.range(8.0), (4, 2)), [1, 2], [3, 0], total_elements=3)
    """
    src = tf.convert_to_tensor(src)
    dst = tf.zeros([total_elements, *src.shape[1:]], src.dtype)
    ends = tf.cumsum(tf.cast(num_elems, tf.int32), exclusive=True)
    return sequence_slice(dst, src, num_elems, src_offsets, ends, True, name or "sequence_slice_unpack")


def sequence_slice_pack(
    dst: Any, src: Any, num_elems: Any, dst_offsets: Any, zero_unused: bool, name: str | None = None
) -> Any:
    """Takes runs of rows that lie one after the other to their places.

    Args:
        dst: tensor of shape [rows, ...], of at least two dimensions.
        src: tensor of shape [source rows, ...], which holds the runs in order.
        num_elems: int tensor of shape [runs]: rows of each run.
        dst_offsets: int tensor of shape [runs]: first row of each in the result.
        zero_unused: whether rows that no run reaches become zero, instead of keeping what `dst` has.
        name: name scope.

    Returns:
        a tensor like `dst`.

    Raises:
        ArgumentError: the shapes do not fit.

    Example:
        >>> sequence_slice_pack(tf.zeros((4, 2)), tf.ones((3, 2)), [1, 2], [0, 2], zero_unused=True)
    """
    starts = tf.cumsum(tf.cast(num_elems, tf.int32), exclusive=True)
    return sequence_slice(dst, src, num_elems, starts, dst_offsets, zero_unused, name or "sequence_slice_pack")


def _runs(*numbers: Any) -> list[Any]:
    tensors = [tf.cast(n, tf.int32) for n in numbers]
    if any(t.shape.rank != 1 or t.shape != tensors[0].shape for t in tensors):
        shapes = [tuple(t.shape) for t in tensors]
        raise ArgumentError(f"sequence_slice: counts and offsets must have one shape of one dimension, not {shapes}.")
    return tensors


def _rows(total: int, counts: Any, sources: Any, places: Any) -> tuple[Any, Any]:
    """Whether each row of the result is in a run, and which row of the source it then is."""
    numbers = tf.range(total)[:, None]
    inside = (numbers >= places[None]) & (numbers < (places + counts)[None])
    run = tf.reduce_max(tf.where(inside, tf.range(counts.shape[0])[None], -1), 1)
    return run >= 0, tf.gather(sources - places, tf.maximum(run, 0)) + tf.range(total)
