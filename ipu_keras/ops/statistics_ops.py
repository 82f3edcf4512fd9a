"""Histograms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = ["fixed_width_bins", "histogram", "histogram_normalize", "histogram_update"]


def histogram(inputs: Any, levels: Any, absolute_of_input: bool = False) -> Any:
    """How many values lie between levels.

    Args:
        inputs: float16 or float32 tensor of shape [count].
        levels: tensor of shape [n], ascending, of the same dtype.
        absolute_of_input: whether absolute values are counted.

    Returns:
        float32 tensor of shape [n + 1]: values below the first level, from it to below the second, ..., from the
        last on.

    Raises:
        ArgumentError: a shape does not fit.
        ArgumentTypeError: a dtype does not fit.

    Example:
        >>> histogram(tf.constant([0.1, 0.5, 0.9]), tf.constant([0.5]))
    """
    with tf.name_scope("histogram"):
        inputs, levels = _line("inputs", inputs), _line("levels", levels)
        if inputs.dtype != levels.dtype:
            raise ArgumentTypeError(f"histogram: inputs are {inputs.dtype.name}, levels {levels.dtype.name}.")
        inputs = tf.abs(inputs) if absolute_of_input else inputs
        reached = tf.reduce_sum(tf.cast(inputs[None] >= levels[:, None], tf.float32), 1)
        count = tf.cast(tf.size(inputs), tf.float32)
        return tf.concat([[count], reached], 0) - tf.concat([reached, [0.0]], 0)


def histogram_update(hist: Any, inputs: Any, levels: Any, absolute_of_input: bool = False) -> Any:
    """A histogram with more values counted.

    Args:
        hist: float32 tensor of shape [n + 1].
        inputs: float16 or float32 tensor of shape [count].
        levels: tensor of shape [n], ascending, of the same dtype.
        absolute_of_input: whether absolute values are counted.

    Returns:
        float32 tensor of shape [n + 1].

    Raises:
        ArgumentError: a shape does not fit.
        ArgumentTypeError: a dtype does not fit.

    Example:
        >>> histogram_update(tf.zeros(2), tf.constant([0.1, 0.5, 0.9]), tf.constant([0.5]))
    """
    hist, new = _line("hist", hist), histogram(inputs, levels, absolute_of_input)
    if hist.dtype != tf.float32:
        raise ArgumentTypeError(f"histogram_update: hist is {hist.dtype.name}; it must be float32.")
    if not hist.shape.is_compatible_with(new.shape):
        raise ArgumentError(f"histogram_update: hist of shape {hist.shape} must have one entry more than levels.")
    return hist + new


def fixed_width_bins(inputs: Any, n_bins: int) -> Any:
    """Levels that cut the range of some values into bins of one width.

    Args:
        inputs: float16 or float32 tensor of shape [count].
        n_bins: how many bins, at least 2.

    Returns:
        a tensor of shape [n_bins - 1] of the inputs' dtype: the borders between the bins.

    Raises:
        ArgumentError: there is no border, or a shape does not fit.

    Example:
        >>> fixed_width_bins(tf.constant([0.0, 4.0]), 4)
    """
    inputs = _line("inputs", inputs)
    if n_bins < 2:
        raise ArgumentError(f"fixed_width_bins: n_bins is {n_bins}; it must be at least 2.")
    low, high = tf.reduce_min(inputs), tf.reduce_max(inputs)
    return low + (high - low) / n_bins * tf.cast(tf.range(1, n_bins), inputs.dtype)


def histogram_normalize(hist: Any) -> Any:
    """A histogram's shares, which add up to 1; NaN if nothing was counted.

    Args:
        hist: float32 tensor of shape [bins].

    Example:
        >>> histogram_normalize(tf.constant([1.0, 3.0]))
    """
    hist = _line("hist", hist)
    return hist / tf.reduce_sum(hist)


def _line(label: str, value: Any) -> Any:
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in (tf.float16, tf.float32):
        raise ArgumentTypeError(f"histogram: {label} is {tensor.dtype.name}; it must be float16 or float32.")
    if tensor.shape.rank != 1:
        raise ArgumentError(f"histogram: {label} must have one dimension; its shape is {tensor.shape}.")
    return tensor
