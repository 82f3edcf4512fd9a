"""The C600's 8-bit floats, "quarters": casts, matrix products and convolutions.

A tensor of quarters is a uint8 tensor and a metadata byte with its format and scale. On the device they are the tiles'
own operations, on a chip that has them (the C600); on the host TensorFlow computes them. No gradient passes a cast to
quarters, as uint8 has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import quarters, trace
from ipu_keras.ops import _quarters
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = [
    "Format",
    "QuarterTensor",
    "convert_from_f8",
    "convert_to_f8",
    "create_metadata",
    "f8_conv_1d",
    "f8_conv_2d",
    "f8_conv_3d",
    "f8_matmul",
]


class Format(IntEnum):
    """Layouts of a quarter's bits.

    Attributes:
        F143: sign, 4 bits of exponent, 3 bits of fraction; up to 240.
        F152: sign, 5 bits of exponent, 2 bits of fraction; up to 57344.
    """

    F143 = 0
    F152 = 1


def create_metadata(fmt: Format | int, scale: int = 0) -> int:
    """The metadata byte of a format and a scale: a quarter's value is its code's times two to the scale.

    Args:
        fmt: one of `Format`.
        scale: from -32 to 31.

    Returns:
        a number that fits uint8: bit 7 is set for F143, the scale is in the low six bits.

    Raises:
        ArgumentError: there is no such format, or the scale is out of range.

    Example:
        >>> create_metadata(Format.F143, -1)
        191

    Source: graphcore/tensorflow, tensorflow/python/ipu/ops/f8_ops.py.
    """
    if fmt not in tuple(Format):
        raise ArgumentError(f"create_metadata: the format is {fmt!r}; it must be Format.F143 or Format.F152.")
    if isinstance(scale, bool) or not isinstance(scale, (int, np.integer)) or not -32 <= scale <= 31:
        raise ArgumentError(f"create_metadata: the scale is {scale!r}; it must be a whole number from -32 to 31.")
    return (128 if fmt == Format.F143 else 0) | (int(scale) & 63)


class QuarterTensor:
    """A tensor of quarters.

    Args:
        data: a uint8 tensor, or an array, which becomes a variable.
        metadata: of `create_metadata`, or a scalar uint8 tensor.

    Raises:
        ArgumentTypeError: the data is not uint8.

    Example:
        >>> QuarterTensor(np.uint8([0x40, 0x48]), create_metadata(Format.F143))
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, metadata: Any) -> None:
        self.data = _codes(data)
        self.metadata = metadata

    def numpy(self) -> list[Any]:
        """Data, as an array, and metadata."""
        return [self.data.numpy(), self.metadata]

    def assign(self, new_values: Sequence[Any], **kwargs: Any) -> None:
        """Takes other data and metadata.

        Args:
            new_values: as `numpy` gives them.
            **kwargs: not used.
        """
        del kwargs
        self.data, self.metadata = _codes(new_values[0]), new_values[1]

    @property
    def shape(self) -> Any:
        """The data's."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """uint8."""
        return tf.uint8

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuarterTensor):
            return NotImplemented
        same = np.array_equal(self.data.numpy(), other.data.numpy())
        return same and int(np.asarray(self.metadata)) == int(np.asarray(other.metadata))

    def __len__(self) -> int:
        return int(self.data.shape[0])

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __iter__(self) -> Iterator[Any]:
        return iter([self.data, self.metadata])


def _codes(data: Any) -> Any:
    data = tf.Variable(data) if isinstance(data, np.ndarray) else data
    if getattr(data, "dtype", None) not in (tf.uint8, "uint8"):
        raise ArgumentTypeError(
            f"QuarterTensor: the data is {getattr(data, 'dtype', type(data).__name__)}; it must be uint8, as "
            "convert_to_f8 gives it."
        )
    return data


def convert_to_f8(values: Any, metadata: Any, name: str | None = None) -> QuarterTensor:
    """Casts to quarters, through float16 if the values are of another dtype.

    The nearest quarter, the even one where two are as near. What is too large becomes the largest one; NaN and what is
    infinite become NaN.

    Args:
        values: a tensor of any number dtype.
        metadata: of `create_metadata`, or a scalar uint8 tensor.
        name: name scope.

    Returns:
        a QuarterTensor.

    Example:
        >>> convert_to_f8(tf.constant([1.0, 3.2]), create_metadata(Format.F143)).data
    """
    with tf.name_scope(name or "convert_to_f8"):
        values = tf.cast(tf.convert_to_tensor(values), tf.float16)
        metadata = _metadata(metadata)
        return QuarterTensor(_where(values).to_quarter(values, metadata), metadata)


def convert_from_f8(packed_input: Any, dtype: Any = tf.float16, name: str | None = None) -> Any:
    """Casts quarters to another dtype, through float16.

    Args:
        packed_input: a QuarterTensor, or data and metadata.
        dtype: of the result.
        name: name scope.

    Returns:
        a tensor.

    Example:
        >>> convert_from_f8(convert_to_f8(tf.constant([1.0, 3.2]), create_metadata(Format.F143)))
    """
    with tf.name_scope(name or "convert_from_f8"):
        codes, metadata = packed_input
        codes, metadata = _operand(QuarterTensor(codes, metadata), "convert_from_f8")
        return tf.cast(_where(codes).from_quarter(codes, metadata), dtype)


def f8_matmul(lhs: Any, rhs: Any, name: str = "f8_matmul") -> Any:
    """Matrix product of quarters.

    On the device partial sums are fp16; each block of 32 input channels is exact and rounded once.

    Args:
        lhs: QuarterTensor of shape [m, k] or [groups, m, k]; or its data alone, which is F152 without scale.
        rhs: the same of shape [k, n] or [groups, k, n].
        name: name scope.

    Returns:
        a float16 tensor of shape [m, n] or [groups, m, n].

    Raises:
        ArgumentTypeError: an operand is not uint8.
        ArgumentError: the shapes do not fit.

    Example:
        >>> x = convert_to_f8(tf.ones((4, 32)), create_metadata(Format.F143))
        >>> f8_matmul(x, QuarterTensor(tf.transpose(x.data), x.metadata))
    """
    with tf.name_scope(name):
        (a, a_meta), (b, b_meta) = _operand(lhs, "f8_matmul"), _operand(rhs, "f8_matmul")
        if (
            a.shape.rank not in (2, 3)
            or b.shape.rank not in (2, 3)
            or not a.shape[-1:].is_compatible_with(b.shape[-2:-1])
        ):
            raise ArgumentError(
                f"f8_matmul: shapes {a.shape} and {b.shape}; they must be [m, k] and [k, n], or both with groups in "
                "front."
            )
        flat = a.shape.rank == 2
        if a.shape.rank != b.shape.rank:
            a, b = (v if v.shape.rank == 3 else v[None] for v in (a, b))
        if a.shape.rank == 3 and not a.shape[:1].is_compatible_with(b.shape[:1]):
            raise ArgumentError(f"f8_matmul: {a.shape[0]} groups on the left and {b.shape[0]} on the right.")
        product = _where(a, b).dot(a, b, a_meta, b_meta)
        return product[0] if flat and product.shape.rank == 3 else product


def f8_conv_1d(
    inputs: Any, filters: Any, strides: Any, padding: str, data_format: str = "NWC", dilations: Any = (1,),
    name: str = "f8_conv_1d",
) -> Any:  # fmt: skip
    """One-dimensional convolution of quarters; numbers as of `f8_matmul`, a block of channels does not cross a tap.

    Args:
        inputs: QuarterTensor of shape [batch, width, channels] (or in the order of `data_format`), or its data.
        filters: QuarterTensor of shape [width, channels, outputs], or its data.
        strides: a number, or one in a list, or one for each dimension of the inputs.
        padding: ``"SAME"`` or ``"VALID"``.
        data_format: ``"NWC"`` or ``"NCW"``.
        dilations: as `strides`.
        name: name scope.

    Returns:
        a float16 tensor.

    Raises:
        ArgumentTypeError: an operand is not uint8.
        ArgumentError: an argument that it cannot take.
    """
    return _convolution(inputs, filters, strides, padding, data_format, dilations, name, 1, "f8_conv_1d")


def f8_conv_2d(
    inputs: Any, filters: Any, strides: Any, padding: Any, data_format: str = "NHWC", dilations: Any = (1, 1, 1, 1),
    name: str = "f8_conv_2d",
) -> Any:  # fmt: skip
    """Two-dimensional convolution of quarters; see `f8_conv_1d`.

    Args:
        inputs: QuarterTensor of shape [batch, height, width, channels] (or in the order of `data_format`), or its data.
        filters: QuarterTensor of shape [height, width, channels, outputs], or its data.
        strides: a number, or one for each spatial dimension, or one for each dimension of the inputs.
        padding: ``"SAME"``, ``"VALID"``, or a pair [before, after] for each dimension of the inputs.
        data_format: ``"NHWC"`` or ``"NCHW"``.
        dilations: as `strides`.
        name: name scope.

    Returns:
        a float16 tensor.

    Raises:
        ArgumentTypeError: an operand is not uint8.
        ArgumentError: an argument that it cannot take.
    """
    return _convolution(inputs, filters, strides, padding, data_format, dilations, name, 2, "f8_conv_2d")


def f8_conv_3d(
    inputs: Any, filters: Any, strides: Any, padding: str, data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1), name: str = "f8_conv_3d",
) -> Any:  # fmt: skip
    """Three-dimensional convolution of quarters; see `f8_conv_1d`.

    Args:
        inputs: QuarterTensor of shape [batch, depth, height, width, channels] (or in the order of `data_format`), or
            its data.
        filters: QuarterTensor of shape [depth, height, width, channels, outputs], or its data.
        strides: one for each dimension of the inputs.
        padding: ``"SAME"`` or ``"VALID"``.
        data_format: ``"NDHWC"`` or ``"NCDHW"``.
        dilations: as `strides`.
        name: name scope.

    Returns:
        a float16 tensor.

    Raises:
        ArgumentTypeError: an operand is not uint8.
        ArgumentError: an argument that it cannot take.
    """
    return _convolution(inputs, filters, strides, padding, data_format, dilations, name, 3, "f8_conv_3d")


def _convolution(
    inputs: Any, filters: Any, strides: Any, padding: Any, data_format: str, dilations: Any, name: str, nd: int,
    op: str,
) -> Any:  # fmt: skip
    last, first = f"N{'DHW'[3 - nd :]}C", f"NC{'DHW'[3 - nd :]}"
    if data_format not in (last, first):
        raise ArgumentError(f"{op}: data_format is {data_format!r}; it must be {last!r} or {first!r}.")
    with tf.name_scope(name):
        (x, x_meta), (w, w_meta) = _operand(inputs, op), _operand(filters, op)
        if x.shape.rank != nd + 2 or w.shape.rank != nd + 2 or not x.shape.is_fully_defined():
            raise ArgumentError(
                f"{op}: inputs of shape {x.shape} and filters of shape {w.shape}; both must have {nd + 2} dimensions, "
                "all known."
            )
        turned = data_format == first
        axes = [0, *range(2, nd + 2), 1]
        x = tf.transpose(x, axes) if turned else x
        if x.shape[-1] % w.shape[-2] or w.shape[-1] % (x.shape[-1] // w.shape[-2]):
            raise ArgumentError(
                f"{op}: {x.shape[-1]} channels of the inputs, {w.shape[-2]} of a filter and {w.shape[-1]} outputs do "
                "not fit each other."
            )
        steps, holes = (
            _spatial(v, nd, turned, f"{op}: {label}") for v, label in ((strides, "strides"), (dilations, "dilations"))
        )
        pads = _padding(padding, x.shape[1:-1], w.shape[:nd], steps, holes, turned, op)
        window = [[int(v) for v in each] for each in zip(w.shape[:nd], steps, *zip(*pads), holes)]
        y = _where(x, w).convolution(x, w, x_meta, w_meta, window)
        return tf.transpose(y, np.argsort(axes)) if turned else y


def _spatial(values: Any, nd: int, turned: bool, label: str) -> list[int]:
    """Of strides or dilations those of the spatial dimensions."""
    given = [int(v) for v in np.atleast_1d(values)]
    if len(given) == nd + 2:
        outer = (given[0], given[1] if turned else given[-1])
        if outer != (1, 1):
            raise ArgumentError(f"{label} of batch and channels must be 1, not {outer}.")
        given = given[2:] if turned else given[1:-1]
    given = given * nd if len(given) == 1 else given
    if len(given) != nd or min(given) < 1:
        raise ArgumentError(f"{label} are {values!r}; they must be 1, {nd} or {nd + 2} positive numbers.")
    return given


def _padding(
    padding: Any, ins: Any, taps: Any, strides: list[int], dilations: list[int], turned: bool, op: str
) -> list[tuple[int, int]]:
    """What is put before and after each spatial dimension."""
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ArgumentError(f"{op}: padding is {padding!r}; it must be 'SAME' or 'VALID'.")
        if padding.upper() == "VALID":
            return [(0, 0)] * len(strides)
        found = []
        for n, k, stride, dilation in zip(ins, taps, strides, dilations):
            total = max((-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n, 0)
            found.append((total // 2, total - total // 2))
        return found
    pairs = [tuple(int(v) for v in pair) for pair in padding]
    if len(strides) != 2 or len(pairs) != 4 or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ArgumentError(f"{op}: padding is {padding!r}; it must be 'SAME' or 'VALID', of 2-d also four pairs.")
    inner = pairs[2:] if turned else pairs[1:-1]
    if sum(map(sum, pairs)) != sum(map(sum, inner)):
        raise ArgumentError(f"{op}: padding is {padding!r}; batch and channels cannot be padded.")
    return [(low, high) for low, high in inner]


def _metadata(metadata: Any) -> Any:
    """A scalar uint8 tensor."""
    if isinstance(metadata, int) and not 0 <= metadata < 256:
        raise ArgumentError(f"the metadata of quarters is {metadata}; it is a byte, which create_metadata makes.")
    return tf.reshape(tf.cast(tf.convert_to_tensor(metadata), tf.uint8), ())


def _operand(value: Any, op: str) -> tuple[Any, Any]:
    """Codes and metadata; a tensor alone has metadata 0."""
    data, metadata = value if isinstance(value, QuarterTensor) else (tf.convert_to_tensor(value), 0)
    data = tf.convert_to_tensor(data)
    if data.dtype != tf.uint8:
        raise ArgumentTypeError(
            f"{op}: an operand is {data.dtype.name}; it must be a QuarterTensor, or uint8 data of one. Cast it with "
            "convert_to_f8 first."
        )
    return data, _metadata(metadata)


def _where(*tensors: Any) -> Any:
    """The tiles' operations in a program that is traced for the device, else TensorFlow's own."""
    on_device = trace.for_tiles() and all(t.shape.is_fully_defined() for t in tensors)
    return quarters if on_device else _quarters
