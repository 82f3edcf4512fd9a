"""Quarters in TensorFlow's own operations: what the tiles compute, for code that runs on the host.

Casts give the same bits as on the tiles. Products are made in fp32 and rounded once: the partial sums in fp16 and
their order are a plan's, and there is none on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["convolution", "dot", "from_quarter", "to_quarter"]

_BITS, _LOWEST = (2, 3), (112, 120)
"""Of 1.5.2 and of 1.4.3: bits of the fraction, and the exponent field of the least normal number in fp32."""


def _values() -> np.ndarray:
    """Of all codes without scale, 1.5.2 first."""
    codes = np.arange(256)
    tables = []
    for bits, lowest in zip(_BITS, _LOWEST, strict=True):
        exponent, fraction = (codes & 127) >> bits, codes & ((1 << bits) - 1)
        size = np.ldexp(fraction + (exponent > 0) * (1 << bits), np.maximum(exponent, 1) + lowest - 128 - bits)
        tables.append(np.where(codes == 128, np.nan, np.where(codes & 128, -size, size)))
    return np.concatenate(tables).astype(np.float32)


VALUES = _values()
SCALES = np.ldexp(np.float32(1), (np.arange(64) ^ 32) - 32).astype(np.float32)
"""2 to the scale, by the low six bits of the metadata."""


_SHIFT = np.array([23 - bits for bits in _BITS], np.int32)
_LEAST = np.array([lowest << 23 for lowest in _LOWEST], np.int32)
_MAGIC = np.array([(lowest + 23 - bits) << 23 for bits, lowest in zip(_BITS, _LOWEST, strict=True)], np.int32)
"""Added to a number below the least normal one, in fp32, it rounds at the step of the subnormal ones."""


def _is_143(metadata: Any) -> Any:
    return tf.bitwise.right_shift(tf.cast(metadata, tf.int32), 7)


def _scale(metadata: Any) -> Any:
    return tf.gather(SCALES, tf.bitwise.bitwise_and(tf.cast(metadata, tf.int32), 63))


def _wide(codes: Any, metadata: Any) -> Any:
    """The values in fp32, without the scale."""
    return tf.gather(VALUES, tf.cast(codes, tf.int32) + 256 * _is_143(metadata))


def to_quarter(values: Any, metadata: Any) -> Any:
    """Codes of float16 values: the nearest, to even where two are as near; too large: the largest; infinite: NaN.

    Args:
        values: a float16 tensor.
        metadata: a scalar uint8 tensor.
    """
    shift, least, magic = (tf.gather(table, _is_143(metadata)) for table in (_SHIFT, _LEAST, _MAGIC))
    word = tf.bitcast(tf.cast(values, tf.float32) / _scale(metadata), tf.int32)
    size = tf.bitwise.bitwise_and(word, 0x7FFFFFFF)
    small = tf.bitcast(tf.bitcast(size, tf.float32) + tf.bitcast(magic, tf.float32), tf.int32) - magic
    half = tf.bitwise.left_shift(1, shift - 1) - 1
    odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(size, shift), 1)
    normal = tf.bitwise.right_shift(size - (least - (1 << 23)) + half + odd, shift)
    code = tf.minimum(tf.where(size < least, small, normal), 127)
    code = tf.where((word < 0) & (code > 0), code + 128, code)
    return tf.cast(tf.where(size >= 0x7F800000, 128, code), tf.uint8)


def from_quarter(codes: Any, metadata: Any) -> Any:
    """The float16 values of codes.

    Args:
        codes: a uint8 tensor.
        metadata: a scalar uint8 tensor.
    """
    return tf.cast(_wide(codes, metadata) * _scale(metadata), tf.float16)


def dot(a: Any, b: Any, a_metadata: Any, b_metadata: Any) -> Any:
    """Matrix product, float16.

    Args:
        a, b: uint8 tensors of shapes [m, k] and [k, n], or both with groups in front.
        a_metadata, b_metadata: scalar uint8 tensors.
    """
    product = tf.matmul(_wide(a, a_metadata), _wide(b, b_metadata))
    return tf.cast(product * _scale(a_metadata) * _scale(b_metadata), tf.float16)


def convolution(x: Any, w: Any, x_metadata: Any, w_metadata: Any, window: Sequence[Sequence[int]]) -> Any:
    """Convolution, float16.

    Args:
        x: uint8 tensor of shape [batch, spatial.., channels].
        w: uint8 tensor of shape [taps.., channels of a group, outputs].
        x_metadata, w_metadata: scalar uint8 tensors.
        window: for each spatial dimension size, stride, padding before and after, dilation.
    """
    padded = tf.pad(_wide(x, x_metadata), [[0, 0], *([low, high] for _, _, low, high, _ in window), [0, 0]])
    whole = tf.nn.convolution(padded, _wide(w, w_metadata), 1, "VALID", dilations=[each[4] for each in window])
    # Strides after the product: TensorFlow takes them and dilations only apart.
    cut = (slice(None), *(slice(None, None, each[1]) for each in window), slice(None))
    return tf.cast(whole[cut] * _scale(x_metadata) * _scale(w_metadata), tf.float16)
