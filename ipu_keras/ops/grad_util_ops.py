"""Marks of tensors whose gradients are wanted beside those of the weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._capture import place, record

__all__ = ["capture_upstream_gradients"]


def capture_upstream_gradients(args: Any, tag: str = "") -> Any:
    """The tensors unchanged; the gradients that arrive at them are recorded.

    They are in ``captured_gradients`` of the innermost GradientCaptureContext or GradientCaptureTape that is open now.
    Without one, the step's optimizer gets them as `captured_grads`, if it takes them.

    Args:
        args: a tensor or a nested structure of tensors.
        tag: name of the record, whose structure is that of `args`.

    Returns:
        the same structure.

    Raises:
        NotOnIPUError: when a gradient is computed inside a loop or a branch.

    Example:
        >>> with GradientCaptureTape() as tape:
        ...     loss = tf.reduce_sum(capture_upstream_gradients(w * x, tag="product"))
    """
    store, graph = place()
    store.pop(tag, None)

    @tf.custom_gradient
    def marked(*values: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            record(tag, tf.nest.pack_sequence_as(args, upstream), store, graph)
            return list(upstream)

        return [tf.identity(v) for v in values], gradient

    return tf.nest.pack_sequence_as(args, marked(*(tf.convert_to_tensor(t) for t in tf.nest.flatten(args))))
