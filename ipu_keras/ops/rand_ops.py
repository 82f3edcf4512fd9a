"""Dropout with a mask that a seed determines."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops import _seeds
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["dropout"]


def dropout(
    x: Any, rate: float = 0.5, noise_shape: Any = None, seed: Any = None, name: str | None = None, ref: bool = True
) -> Any:
    """Sets elements to zero at random and scales the others by ``1 / (1 - rate)``.

    Args:
        x: floating-point tensor of any shape.
        rate: share of the elements that become zero, in [0, 1).
        noise_shape: shape of the mask, which is broadcast: an entry for each dimension of `x`, its size, 1 or None.
        seed: two int32; the same seed gives the same mask. None: a new mask each time, from the device's seed.
        name: name scope.
        ref: accepted: the gradient uses the mask of the forward pass, whichever it is.

    Returns:
        a tensor like `x`.

    Raises:
        ArgumentError: `rate` is outside [0, 1); `noise_shape` or the shape of `seed` does not fit.

    Example:
        >>> dropout(tf.ones((2, 3)), rate=0.25, seed=[1, 2])
    """
    del ref
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout: rate is {rate}; it must be in [0, 1).")
    with tf.name_scope(name or "dropout"):
        x = tf.convert_to_tensor(x)
        shape = _mask_shape(x, noise_shape)
        seed = _seeds.next_seed() if seed is None else tf.convert_to_tensor(seed, tf.int32)
        if seed.shape.rank is not None and seed.shape != (2,):
            raise ArgumentError(f"dropout: seed has the shape {tuple(seed.shape)}; it must be [2], a pair of int32.")
        keep = tf.random.stateless_uniform(shape, seed=seed) >= rate
        return tf.where(keep, x * tf.cast(1.0 / (1.0 - rate), x.dtype), tf.zeros((), x.dtype))


def _mask_shape(x: Any, noise_shape: Any) -> Any:
    actual = tf.shape(x)
    if noise_shape is None:
        return x.shape if x.shape.is_fully_defined() else actual
    entries = list(noise_shape)
    if len(entries) != x.shape.rank:
        raise ArgumentError(
            f"dropout: noise_shape {entries} has {len(entries)} entries; x of shape {tuple(x.shape)} needs one a "
            "dimension."
        )
    for entry, size in zip(entries, x.shape):
        if entry is not None and entry != 1 and size is not None and entry != size:
            raise ArgumentError(
                f"dropout: noise_shape {entries} does not fit x of shape {tuple(x.shape)}; each entry must be 1 or the "
                "size of its dimension."
            )
    return tuple(
        (actual[i] if x.shape[i] is None else x.shape[i]) if entry is None else entry for i, entry in enumerate(entries)
    )
