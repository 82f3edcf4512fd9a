"""Losses over a few sampled classes instead of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.ops import _seeds
from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.embedding_ops import embedding_lookup

__all__ = ["log_uniform_candidates", "nce_loss", "sampled_softmax_loss"]


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str | None = "sampled_softmax_loss",
    seed: Any = None,
) -> Any:
    """Softmax cross entropy over the true classes and a sample of the others; for training.

    Sampled classes that are true ones do not count.

    Args:
        weights: tensor or variable of shape [num_classes, dim].
        biases: tensor or variable of shape [num_classes].
        labels: int tensor of shape [batch, num_true].
        inputs: tensor of shape [batch, dim].
        num_sampled: how many classes are sampled for the whole batch, all different.
        num_classes: how many classes there are, the frequent ones first.
        num_true: true classes of an example.
        sampled_values: (sampled classes, expected count of each true class, expected count of each sampled class), as
            ``tf.random``'s candidate samplers give; None: sampled here, log-uniformly.
        name: name scope.
        seed: two int32; the same seed samples the same classes. None: others each time, from the device's seed.

    Returns:
        a tensor of shape [batch].

    Raises:
        ArgumentError: more classes are to be sampled than there are.

    Example:
        >>> sampled_softmax_loss(weights, biases, labels, hidden, num_sampled=64, num_classes=10_000)
    """
    with tf.name_scope(name or "sampled_softmax_loss"):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, seed, drop_hits=True
        )
        return tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(targets), logits)


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    name: str | None = "nce_loss",
) -> Any:
    """Noise-contrastive loss: a true class against a sample of all, each with a sigmoid.

    Args:
        weights: tensor or variable of shape [num_classes, dim].
        biases: tensor or variable of shape [num_classes].
        labels: int tensor of shape [batch, num_true].
        inputs: tensor of shape [batch, dim].
        num_sampled: how many classes are sampled for the whole batch, all different.
        num_classes: how many classes there are, the frequent ones first.
        num_true: true classes of an example.
        sampled_values: as in `sampled_softmax_loss`.
        name: name scope.

    Returns:
        a tensor of shape [batch].

    Raises:
        ArgumentError: more classes are to be sampled than there are.

    Example:
        >>> nce_loss(weights, biases, labels, hidden, num_sampled=64, num_classes=10_000)
    """
    with tf.name_scope(name or "nce_loss"):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, None, drop_hits=False
        )
        return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits), 1)


def log_uniform_candidates(num_sampled: int, num_classes: int, seed: Any) -> tuple[Any, np.ndarray]:
    """Different classes, drawn with probability log(1 + 1 / (class + 1)) / log(classes + 1).

    Args:
        num_sampled: how many.
        num_classes: of how many.
        seed: two int32.

    Returns:
        (int32 tensor of shape [num_sampled], how often each class is expected in a sample, for all classes).

    Raises:
        ArgumentError: more are to be sampled than there are.
    """
    if not 0 < num_sampled <= num_classes:
        raise ArgumentError(f"num_sampled is {num_sampled}; it must be from 1 to the number of classes, {num_classes}.")
    numbers = np.arange(num_classes, dtype=np.float64)
    probability = np.log1p(1 / (numbers + 1)) / np.log(num_classes + 1)
    # The largest of (log p + Gumbel noise) are a sample without replacement: no loop that draws again is needed.
    uniform = tf.random.stateless_uniform((num_classes,), seed, minval=np.finfo(np.float32).tiny)
    noisy = tf.constant(np.log(probability), tf.float32) - tf.math.log(-tf.math.log(uniform))
    return tf.math.top_k(noisy, num_sampled).indices, _expected(probability, num_sampled)


def _expected(probability: np.ndarray, count: int) -> np.ndarray:
    """P(class in the sample) = 1 - (1 - p)^tries, the number of tries being what gives `count` different ones."""
    if count == len(probability):
        return np.ones_like(probability)
    low, high = float(count), float(count) * 2
    while -np.expm1(high * np.log1p(-probability)).sum() < count:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if -np.expm1(middle * np.log1p(-probability)).sum() < count:
            low = middle
        else:
            high = middle
    return -np.expm1(high * np.log1p(-probability))


def _logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    seed: Any,
    drop_hits: bool,
) -> tuple[Any, Any]:
    inputs = tf.convert_to_tensor(inputs)
    dtype, batch = inputs.dtype, inputs.shape[0]
    labels = tf.reshape(tf.cast(labels, tf.int32), [batch, num_true])
    if sampled_values is None:
        seed = _seeds.next_seed() if seed is None else tf.convert_to_tensor(seed, tf.int32)
        sampled, counts = log_uniform_candidates(num_sampled, num_classes, seed)
        table = tf.constant(counts, tf.float32)
        true_count, sampled_count = tf.gather(table, labels), tf.gather(table, sampled)
    else:
        sampled, true_count, sampled_count = (tf.stop_gradient(tf.convert_to_tensor(v)) for v in sampled_values)
        sampled = tf.cast(sampled, tf.int32)
    numbers = tf.concat([tf.reshape(labels, [-1]), sampled], 0)
    rows, offsets = embedding_lookup(weights, numbers), embedding_lookup(biases, numbers)
    split = batch * num_true
    true_rows = tf.reshape(rows[:split], [batch, num_true, -1])
    true = tf.reduce_sum(inputs[:, None] * true_rows, -1) + tf.reshape(offsets[:split], [batch, num_true])
    other = tf.matmul(inputs, rows[split:], transpose_b=True) + offsets[split:]
    true -= tf.cast(tf.math.log(true_count), dtype)
    other -= tf.cast(tf.math.log(sampled_count), dtype)
    if drop_hits:
        hit = tf.reduce_any(labels[:, :, None] == sampled[None, None], 1)
        other = tf.where(hit, tf.constant(dtype.min, dtype), other)
    targets = tf.concat([tf.ones_like(true) / num_true, tf.zeros_like(other)], 1)
    return tf.concat([true, other], 1), targets
