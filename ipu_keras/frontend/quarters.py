"""Operations on quarters, the chip's 8-bit floats, in a program that is being traced for it.

TensorFlow has no name for them: each is a custom call, whose numbers are the tiles'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla

from ipu_keras.compiler.passes.quarters import FROM_QUARTER, QUARTER_CONVOLUTION, QUARTER_DOT, TO_QUARTER

__all__ = ["convolution", "dot", "from_quarter", "to_quarter"]


def _call(target: str, operands: list[Any], dtype: Any, shape: Sequence[int], config: Any = None) -> Any:
    text = json.dumps(config or {})
    (result,) = _xla.xla_custom_call_v2(operands, target, text, False, [dtype], [list(shape)])
    result.set_shape(shape)
    return result


def to_quarter(values: Any, metadata: Any) -> Any:
    """Codes of float16 values.

    Args:
        values: a float16 tensor with a full shape.
        metadata: a scalar uint8 tensor.
    """
    return _call(TO_QUARTER, [values, metadata], tf.uint8, values.shape)


def from_quarter(codes: Any, metadata: Any) -> Any:
    """The float16 values of codes.

    Args:
        codes: a uint8 tensor with a full shape.
        metadata: a scalar uint8 tensor.
    """
    return _call(FROM_QUARTER, [codes, metadata], tf.float16, codes.shape)


def dot(a: Any, b: Any, a_metadata: Any, b_metadata: Any) -> Any:
    """Matrix product, float16.

    Args:
        a, b: uint8 tensors of shapes [m, k] and [k, n], or both with groups in front.
        a_metadata, b_metadata: scalar uint8 tensors.
    """
    return _call(QUARTER_DOT, [a, b, a_metadata, b_metadata], tf.float16, [*a.shape[:-1], b.shape[-1]])


def convolution(x: Any, w: Any, x_metadata: Any, w_metadata: Any, window: Sequence[Sequence[int]]) -> Any:
    """Convolution, float16.

    Args:
        x: uint8 tensor of shape [batch, spatial.., channels].
        w: uint8 tensor of shape [taps.., channels of a group, outputs].
        x_metadata, w_metadata: scalar uint8 tensors.
        window: for each spatial dimension size, stride, padding before and after, dilation.
    """
    outs = [
        (n + low + high - (size - 1) * dilation - 1) // stride + 1
        for n, (size, stride, low, high, dilation) in zip(x.shape[1:-1], window, strict=True)
    ]
    shape = [x.shape[0], *outs, w.shape[-1]]
    return _call(QUARTER_CONVOLUTION, [x, w, x_metadata, w_metadata], tf.float16, shape, {"window": window})
