"""How an optimizer adds one more gradient to those of the mini-batches before."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod as Method

__all__ = ["accumulated"]


def accumulated(old: Any, gradient: Any, index: Any, count: int, method: Method) -> Any:
    """The accumulator after one more gradient; at the first of the mini-batches it starts from zero.

    Args:
        old: the accumulator, a float tensor.
        gradient: a tensor of its shape, or IndexedSlices.
        index: number of the mini-batch from 0, an int32 scalar.
        count: mini-batches of an update.
        method: how they are reduced.
    """
    gradient = tf.cast(tf.convert_to_tensor(gradient), old.dtype)
    old = tf.where(tf.equal(index, 0), tf.zeros_like(old), old)
    if method is Method.MEAN:
        return old + gradient * tf.cast(1 / count, old.dtype)
    if method is Method.RUNNING_MEAN:
        seen = tf.cast(index, tf.float32)
        return old * tf.cast(seen / (seen + 1), old.dtype) + gradient * tf.cast(1 / (seen + 1), old.dtype)
    return old + gradient
