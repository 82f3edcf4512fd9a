"""Activations, sampled losses, CTC losses and the grouping of convolutions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ipu_keras.ops._ctc import ctc_loss_v2, ctc_loss_with_log_probs
from ipu_keras.ops._refusals import ArgumentTypeError
from ipu_keras.ops._sampling import nce_loss, sampled_softmax_loss

__all__ = [
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """Gaussian error linear unit.

    Args:
        x: floating-point tensor.
        approximate: the form with tanh; False: the form with erf.
        name: name scope.

    Example:
        >>> gelu(tf.constant([-1.0, 0.0, 1.0]))
    """
    with tf.name_scope(name or "gelu"):
        return tf.nn.gelu(tf.convert_to_tensor(x), approximate=approximate)


def softmax(x: Any, stable: bool = False, name: str | None = None) -> Any:
    """Softmax over the last axis.

    Args:
        x: floating-point tensor.
        stable: whether each row's maximum is taken off first. Without, as by default, an exponential that overflows
            gives NaN: above 88 in float32, above 11 in float16.
        name: name scope.

    Example:
        >>> softmax(tf.constant([[1.0, 2.0]]), stable=True)
    """
    with tf.name_scope(name or "softmax"):
        x = tf.convert_to_tensor(x)
        if stable:
            return tf.nn.softmax(x)
        powers = tf.exp(x)
        return powers / tf.reduce_sum(powers, -1, keepdims=True)


def hard_sigmoid(x: Any, name: str | None = None) -> Any:
    """``0.2 * x + 0.5``, held between 0 and 1; Keras 3's function of that name has another slope.

    Args:
        x: floating-point tensor.
        name: name scope.

    Example:
        >>> hard_sigmoid(tf.constant([-3.0, 0.0, 1.0]))
    """
    with tf.name_scope(name or "hard_sigmoid"):
        x = tf.convert_to_tensor(x)
        return tf.clip_by_value(x * tf.cast(0.2, x.dtype) + tf.cast(0.5, x.dtype), 0, 1)


def swish(x: Any, name: str | None = None) -> Any:
    """``x * sigmoid(x)``.

    Args:
        x: floating-point tensor.
        name: name scope.

    Example:
        >>> swish(tf.constant([-1.0, 0.0, 1.0]))
    """
    with tf.name_scope(name or "swish"):
        x = tf.convert_to_tensor(x)
        return x * tf.sigmoid(x)


def multi_conv(func: Callable[..., Any] | None = None, options: dict[str, str] | None = None) -> Any:
    """Decorator, with or without arguments, of a function whose convolutions do not need each other.

    Results are those of the plain function. The emulator joins what is independent anyway, function or not.

    Args:
        func: the function.
        options: options of the vendor's planner for several convolutions; checked to be a dict, and not used.

    Returns:
        the decorated function.

    Raises:
        ArgumentTypeError: `options` is not a dict, or `func` cannot be called.

    Example:
        >>> @multi_conv
        ... def both(a, b, wa, wb):
        ...     return tf.nn.conv2d(a, wa, 1, "SAME"), tf.nn.conv2d(b, wb, 1, "SAME")
    """
    if options is not None and not isinstance(options, dict):
        raise ArgumentTypeError(f"multi_conv: options must be a dict, not {type(options).__name__}.")
    if func is None:
        return functools.partial(multi_conv, options=options)
    if not callable(func):
        raise ArgumentTypeError(f"multi_conv: {func!r} is not a function.")

    @functools.wraps(func)
    def together(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope("multi_conv"):
            return func(*args, **kwargs)

    return together
