"""Rows of a table, with a dense gradient."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._names import gradient_scope
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["embedding_lookup"]


def embedding_lookup(
    params: Any, ids: Any, serialization_factor: int = 1, indices_are_sorted: bool = False, name: str | None = None
) -> Any:
    """Rows of a table.

    The gradient is a dense tensor like `params`, not ``tf.IndexedSlices``: the IPU's optimizers take dense ones.

    Args:
        params: the table, of shape [rows, ...]; a tensor or a variable.
        ids: int tensor of any shape, of row numbers.
        serialization_factor: into how many parts the rows may be cut; must divide them. No result depends on it.
        indices_are_sorted: a promise about `ids`, which no result depends on.
        name: name scope.

    Returns:
        a tensor of shape ``ids.shape + params.shape[1:]``.

    Raises:
        ArgumentError: `serialization_factor` is below 1 or does not divide the rows.

    Example:
        >>> embedding_lookup(tf.constant([[1.0, 2.0], [3.0, 4.0]]), [1, 0, 1])
    """
    del indices_are_sorted
    with tf.name_scope(name or "embedding_lookup"):
        table = tf.convert_to_tensor(params)
        ids = tf.convert_to_tensor(ids)
        rows = table.shape[0]
        if serialization_factor < 1:
            raise ArgumentError(f"embedding_lookup: serialization_factor is {serialization_factor}; it must be >= 1.")
        if rows % serialization_factor:
            raise ArgumentError(
                f"embedding_lookup: serialization_factor {serialization_factor} does not divide the {rows} rows of the "
                "table."
            )

        backward_scope = gradient_scope()

        @tf.custom_gradient
        def lookup(values: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                with backward_scope():
                    flat = tf.reshape(upstream, tf.concat([[-1], tf.shape(values)[1:]], 0))
                    return tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), rows)

            return tf.gather(values, ids), gradient

        return lookup(table)
