"""Matrix products in parts, and sums of segments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError

__all__ = ["segment_sum", "serialized_matmul"]

_DIMENSIONS = ("a_columns", "a_rows_b_columns", "b_rows")


def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Any:
    """A matrix product, cut into `serialization_factor` smaller ones; so is its gradient.

    Args:
        a: tensor of shape [..., m, k], after the transposition.
        b: tensor of shape [..., k, n], after the transposition.
        serialization_factor: number of parts.
        serialization_dimension: what is cut: ``"a_columns"`` is m, ``"a_rows_b_columns"`` is k (the parts are added
            up), ``"b_rows"`` is n.
        transpose_a: whether the last two dimensions of `a` are swapped first.
        transpose_b: whether the last two dimensions of `b` are swapped first.
        name: name scope.

    Returns:
        a tensor of shape [..., m, n].

    Raises:
        ArgumentError: there is no such dimension, or the factor does not divide its size.

    Example:
        >>> serialized_matmul(tf.ones((4, 6)), tf.ones((6, 2)), 3, "a_rows_b_columns")
    """
    if serialization_dimension not in _DIMENSIONS:
        allowed = ", ".join(map(repr, _DIMENSIONS))
        raise ArgumentError(
            f"serialized_matmul: serialization_dimension is {serialization_dimension!r}; it must be one of {allowed}."
        )
    with tf.name_scope(name or "serialized_matmul"):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        a = tf.linalg.matrix_transpose(a) if transpose_a else a
        b = tf.linalg.matrix_transpose(b) if transpose_b else b
        size = {"a_columns": a.shape[-2], "a_rows_b_columns": a.shape[-1], "b_rows": b.shape[-1]}[
            serialization_dimension
        ]
        if serialization_factor < 1 or size is None or size % serialization_factor:
            raise ArgumentError(
                f"serialized_matmul: serialization_factor {serialization_factor} must divide the size {size} of "
                f"{serialization_dimension!r}."
            )
        if serialization_dimension == "a_columns":
            return tf.concat([part @ b for part in tf.split(a, serialization_factor, axis=-2)], axis=-2)
        if serialization_dimension == "b_rows":
            return tf.concat([a @ part for part in tf.split(b, serialization_factor, axis=-1)], axis=-1)
        left, right = (tf.split(x, serialization_factor, axis=i) for x, i in ((a, -1), (b, -2)))
        return tf.add_n([x @ y for x, y in zip(left, right)])


def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Any:
    """Sums of the rows that have the same segment number.

    Args:
        data: tensor of shape [rows, ...].
        segment_ids: int tensor of shape [rows], ascending.
        num_segments: how many segments there are, a Python int above 0.
        name: name scope.

    Returns:
        a tensor of shape [num_segments, ...]; zeros for a segment without rows.

    Raises:
        ArgumentError: `num_segments` is not above 0, or the shapes do not fit.

    Example:
        >>> segment_sum(tf.constant([1.0, 2.0, 4.0]), [0, 0, 2], 3)
    """
    if num_segments <= 0:
        raise ArgumentError(f"segment_sum: num_segments is {num_segments}; it must be greater than 0.")
    with tf.name_scope(name or "segment_sum"):
        data, segment_ids = tf.convert_to_tensor(data), tf.convert_to_tensor(segment_ids)
        if segment_ids.shape.rank != 1 or not data.shape[:1].is_compatible_with(segment_ids.shape):
            raise ArgumentError(
                f"segment_sum: segment_ids of shape {tuple(segment_ids.shape)} must have an entry a row of data, "
                f"whose shape is {tuple(data.shape)}."
            )
        return tf.math.unsorted_segment_sum(data, segment_ids, num_segments)
