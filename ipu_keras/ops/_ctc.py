"""Connectionist temporal classification: the loss, as a recurrence over time in log space."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops._scan import scan

__all__ = ["ctc_loss_v2", "ctc_loss_with_log_probs"]

_NEVER = -1e30  # log of an impossible path; finite, so that its gradient is 0 and not NaN


def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """The CTC loss of each sequence of a batch, from logits.

    Args:
        labels: int tensor of shape [batch, max_label_length].
        logits: float tensor of shape [times, batch, classes].
        label_length: int tensor of shape [batch].
        logit_length: int tensor of shape [batch].
        blank_index: the class that stands for no label.
        out_dtype: dtype of the loss; None for that of `logits`.
        name: name scope.

    Returns:
        a tensor of shape [batch]; inf where the labels do not fit the times.

    Raises:
        ArgumentError: float32 logits and a float16 loss; or shapes that do not fit.

    Example:
        >>> ctc_loss_v2([[1, 2]], tf.zeros((4, 1, 3)), [2], [4], blank_index=0)
    """
    with tf.name_scope(name or "ctc_loss"):
        logits = tf.convert_to_tensor(logits)
        dtype = _out_dtype(logits.dtype, out_dtype)
        data = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        return tf.cast(_loss(labels, data, label_length, logit_length, blank_index), dtype)


def ctc_loss_with_log_probs(
    labels: Any,
    data: Any,
    label_length: Any,
    data_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """The CTC loss of each sequence of a batch, from log probabilities.

    Args:
        labels: int tensor of shape [batch, max_label_length].
        data: float tensor of shape [times, batch, classes], of logs of probabilities.
        label_length: int tensor of shape [batch].
        data_length: int tensor of shape [batch].
        blank_index: the class that stands for no label.
        out_dtype: dtype of the loss; None for that of `data`.
        name: name scope.

    Returns:
        a tensor of shape [batch]; inf where the labels do not fit the times.

    Raises:
        ArgumentError: float32 data and a float16 loss; or shapes that do not fit.

    Example:
        >>> ctc_loss_with_log_probs([[1]], tf.math.log(tf.fill((2, 1, 2), 0.5)), [1], [2], blank_index=0)
    """
    with tf.name_scope(name or "ctc_loss"):
        data = tf.convert_to_tensor(data)
        dtype = _out_dtype(data.dtype, out_dtype)
        return tf.cast(_loss(labels, tf.cast(data, tf.float32), label_length, data_length, blank_index), dtype)


def _out_dtype(given: Any, asked: Any) -> Any:
    dtype = given if asked is None else tf.as_dtype(asked)
    if given == tf.float32 and dtype == tf.float16:
        raise ArgumentError("CTC: float32 data with a float16 loss is not supported; cast the data, or the loss.")
    return dtype


def _loss(labels: Any, data: Any, label_length: Any, data_length: Any, blank: int) -> Any:
    labels = tf.cast(labels, tf.int32)
    label_length, data_length = tf.cast(label_length, tf.int32), tf.cast(data_length, tf.int32)
    if data.shape.rank != 3 or not data.shape.is_fully_defined() or labels.shape.rank != 2:
        raise ArgumentError(
            f"CTC: data must have a known shape [times, batch, classes] and labels [batch, length]; they have "
            f"{data.shape} and {labels.shape}."
        )
    times, batch, classes = data.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"CTC: blank_index is {blank}; there are {classes} classes.")
    # Blanks stand between the labels, before them and after them.
    blanks = tf.fill(tf.shape(labels), blank)
    path = tf.concat([tf.reshape(tf.stack([blanks, labels], 2), [batch, -1]), blanks[:, :1]], 1)
    places = tf.range(tf.shape(path)[1])[None]
    data = tf.maximum(data, _NEVER)
    emitted = tf.einsum("tbc,bsc->tbs", data, tf.one_hot(path, classes, dtype=data.dtype))
    two_back = tf.pad(path, [[0, 0], [2, 0]], constant_values=blank)[:, :-2]
    jump = tf.where((path != blank) & (path != two_back), 0.0, _NEVER)
    start = tf.where(places < 2, emitted[0], _NEVER)
    if times == 1:
        last = start
    else:
        running = tf.cast(tf.range(1, times)[:, None] < data_length[None], tf.float32)[:, :, None]
        last = scan(_step, [start], [emitted[1:], running], [jump])[0][-1]
    end = 2 * label_length[:, None]
    total = tf.reduce_logsumexp(tf.where((places == end) | (places == end - 1), last, _NEVER), 1)
    return tf.where(total < _NEVER / 10, float("inf"), -total)


def _step(states: list[Any], now: list[Any], weights: list[Any]) -> list[Any]:
    (alpha,), (emitted, running), (jump,) = states, now, weights
    padded = tf.pad(alpha, [[0, 0], [2, 0]], constant_values=_NEVER)
    ways = tf.stack([alpha, padded[:, 1:-1], padded[:, :-2] + jump])
    new = tf.maximum(tf.reduce_logsumexp(ways, 0) + emitted, _NEVER)
    return [tf.where(running > 0, new, alpha)]
