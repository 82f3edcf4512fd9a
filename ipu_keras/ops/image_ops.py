"""Normalisation of images as they come from a file."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = ["normalise_image"]


def normalise_image(
    image: Any, channel_offsets: Any, channel_scales: Any, scale: float = 1, name: str | None = None
) -> Any:
    """``(image * scale - channel_offsets) * channel_scales``, with a fourth channel of zeros.

    The arithmetic is in the result's dtype.

    Args:
        image: tensor of shape [..., 3]: uint8, float16 or float32.
        channel_offsets: three numbers.
        channel_scales: three numbers.
        scale: a number that the image is multiplied with first, such as 1/255.
        name: name scope.

    Returns:
        a tensor of shape [..., 4]: float16 for uint8, else of the image's dtype.

    Raises:
        ArgumentTypeError: the image has another dtype.
        ArgumentError: a shape does not fit.

    Example:
        >>> normalise_image(tf.zeros((8, 8, 3), tf.uint8), [0.5, 0.5, 0.5], [4.0, 4.0, 4.0], scale=1 / 255)
    """
    with tf.name_scope(name or "normalise_image"):
        image = tf.convert_to_tensor(image)
        if image.dtype not in (tf.uint8, tf.float16, tf.float32):
            raise ArgumentTypeError(
                f"normalise_image: the image is {image.dtype.name}; it must be uint8, float16 or float32."
            )
        if image.shape.rank is None or image.shape[-1] != 3:
            raise ArgumentError(f"normalise_image: the image's last dimension must be 3; its shape is {image.shape}.")
        dtype = tf.float16 if image.dtype == tf.uint8 else image.dtype
        offsets, scales = tf.cast(channel_offsets, dtype), tf.cast(channel_scales, dtype)
        for label, value in (("channel_offsets", offsets), ("channel_scales", scales)):
            if value.shape != (3,):
                raise ArgumentError(f"normalise_image: {label} must have the shape [3], not {tuple(value.shape)}.")
        result = (tf.cast(image, dtype) * tf.cast(scale, dtype) - offsets) * scales
        return tf.pad(result, [[0, 0]] * (image.shape.rank - 1) + [[0, 1]])
