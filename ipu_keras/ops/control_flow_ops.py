"""Ordering of operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

__all__ = ["barrier"]


def barrier(tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None) -> Any:
    """The tensors unchanged; what reads one of them waits for all of them.

    It becomes HLO's ``opt-barrier``.

    Args:
        tensors: a tensor or a nested structure of tensors.
        insert_barrier_for_gradients: whether the tensors' gradients wait for each other too.
        name: name scope.

    Returns:
        the same structure.

    Example:
        >>> a, b = barrier((tf.ones(2), tf.zeros(3)))
    """
    with tf.name_scope(name or "barrier"):
        flat = [tf.convert_to_tensor(t) for t in tf.nest.flatten(tensors)]

        @tf.custom_gradient
        def wait(*values: Any) -> Any:
            def gradient(*upstream: Any) -> Any:
                if not insert_barrier_for_gradients:
                    return list(upstream)
                return gen_xla_ops.xla_optimization_barrier(input=list(upstream))

            return gen_xla_ops.xla_optimization_barrier(input=list(values)), gradient

        return tf.nest.pack_sequence_as(tensors, wait(*flat))
