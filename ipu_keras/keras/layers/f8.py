"""Layers of the C600's 8-bit floats: casts from and to them, and a dense layer that multiplies in them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.f8_ops import Format, QuarterTensor, convert_from_f8, convert_to_f8, create_metadata, f8_matmul

__all__ = ["ConvertFromF8", "ConvertToF8", "Dense"]

_NAN = 0x80


@keras.saving.register_keras_serializable("ipu_keras")
class ConvertToF8(keras.layers.Layer):
    """Casts to 8-bit floats, through float16; see `f8_ops.convert_to_f8`. No gradient passes it.

    Args:
        **kwargs: arguments of ``keras.layers.Layer``.

    Example:
        >>> ConvertToF8()(tf.ones((2, 4)), metadata=create_metadata(Format.F143))  # [data, metadata]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def call(self, data: Any, metadata: Any) -> list[Any]:
        """Data and metadata, both uint8.

        Args:
            data: a tensor of floating-point numbers.
            metadata: of `f8_ops.create_metadata`.
        """
        return list(convert_to_f8(data, metadata))

    def compute_output_spec(self, data: Any, metadata: Any) -> list[Any]:
        """Shapes and dtypes of data and metadata.

        Args:
            data: a Keras tensor.
            metadata: not used.
        """
        del metadata
        return [keras.KerasTensor(data.shape, "uint8"), keras.KerasTensor((), "uint8")]


@keras.saving.register_keras_serializable("ipu_keras")
class ConvertFromF8(keras.layers.Layer):
    """Casts 8-bit floats to another dtype, through float16; see `f8_ops.convert_from_f8`.

    Args:
        dtype: of the result.
        **kwargs: other arguments of ``keras.layers.Layer``.

    Example:
        >>> ConvertFromF8()(ConvertToF8()(tf.ones((2, 4)), metadata=create_metadata(Format.F143)))
    """

    def __init__(self, dtype: Any = "float16", **kwargs: Any) -> None:
        named = dtype.name if isinstance(dtype, tf.DType) else dtype
        super().__init__(dtype=named, autocast=False, **kwargs)

    def call(self, inputs: list[Any]) -> Any:
        """The values.

        Args:
            inputs: data and metadata.
        """
        return convert_from_f8(QuarterTensor(*inputs), dtype=self.compute_dtype)

    def compute_output_spec(self, inputs: list[Any]) -> Any:
        """The data's shape, the layer's dtype.

        Args:
            inputs: Keras tensors of data and metadata.
        """
        return keras.KerasTensor(inputs[0].shape, self.compute_dtype)


@keras.saving.register_keras_serializable("ipu_keras")
class Dense(keras.layers.Dense):
    """``keras.layers.Dense``, which multiplies in 8-bit floats where its input is the list that `ConvertToF8` gives.

    Then the weights are ``kernel_data`` and ``kernel_metadata``, uint8, which no optimizer changes, and a float16 bias.

    Args:
        units: size of the result's last dimension.
        kernel_format: of the kernel, a `f8_ops.Format`.
        kernel_scale: of the kernel, from -32 to 31: its values are the codes' times two to it.
        kernel_data_initializer: gives the kernel's codes, uint8; None for random ones that are no NaN.
        **kwargs: other arguments of ``keras.layers.Dense``.

    Raises:
        ArgumentError: the scale is out of range, or the arguments are such as a kernel of 8-bit floats cannot have.

    Example:
        >>> Dense(3)(ConvertToF8()(tf.ones((2, 4)), metadata=create_metadata(Format.F143))).dtype
        tf.float16
    """

    def __init__(
        self,
        units: int,
        kernel_format: Format | int = Format.F143,
        kernel_scale: int = 0,
        kernel_data_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        create_metadata(kernel_format, kernel_scale)  # refuses what is out of range
        self.kernel_format, self.kernel_scale = Format(kernel_format), int(kernel_scale)
        self.kernel_data_initializer = (
            None if kernel_data_initializer is None else keras.initializers.get(kernel_data_initializer)
        )
        super().__init__(units, **kwargs)
        self.input_spec = None  # one tensor, or the two of 8-bit floats

    def build(self, input_shape: Any) -> None:
        """Makes the weights, by what the input is.

        Args:
            input_shape: a shape, or a list of the data's and of the metadata's.
        """
        if not _is_list(input_shape):
            super().build(input_shape)
            return
        if self.kernel_regularizer is not None or self.kernel_constraint is not None:
            raise ArgumentError(
                f"Dense {self.name!r}: a kernel of 8-bit floats takes no regularizer or constraint: nothing trains it."
            )
        shape = (input_shape[0][-1], self.units)
        data = self.kernel_data_initializer or _random_codes
        metadata = create_metadata(self.kernel_format, self.kernel_scale)
        self.kernel_data = self.add_weight(
            name="kernel_data", shape=shape, dtype="uint8", initializer=data, trainable=False
        )
        self.kernel_metadata = self.add_weight(
            name="kernel_metadata", shape=(), dtype="uint8", initializer=keras.initializers.Constant(metadata),
            trainable=False,
        )  # fmt: skip
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), dtype="float16", initializer=self.bias_initializer,
                regularizer=self.bias_regularizer, constraint=self.bias_constraint,
            )  # fmt: skip
        self.built = True

    @property
    def _in_f8(self) -> bool:
        return hasattr(self, "kernel_data")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The product, the bias and the activation.

        Args:
            inputs: tensor of shape [..., features], or a list of such data and its metadata.
            training: not used.
        """
        if not _is_list(inputs):
            return super().call(inputs, training=training)
        data, metadata = (tf.convert_to_tensor(v) for v in inputs)
        kernel = QuarterTensor(tf.convert_to_tensor(self.kernel_data), tf.convert_to_tensor(self.kernel_metadata))
        rows = tf.reshape(data, (-1, data.shape[-1])) if data.shape.rank != 2 else data
        x = f8_matmul(QuarterTensor(rows, metadata), kernel)
        if data.shape.rank != 2:
            x = tf.reshape(x, tf.concat([tf.shape(data)[:-1], [self.units]], 0))
            x.set_shape([*data.shape[:-1], self.units])
        x = x if self.bias is None else x + tf.cast(tf.convert_to_tensor(self.bias), tf.float16)
        return x if self.activation is None else self.activation(x)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Shape and dtype of the result.

        Args:
            inputs: a Keras tensor, or a list of two.
            training: not used.
        """
        if not _is_list(inputs):
            return super().compute_output_spec(inputs, training=training)
        return keras.KerasTensor((*inputs[0].shape[:-1], self.units), "float16")

    def save_own_variables(self, store: Any) -> None:
        """Writes the weights to a file; Keras calls it.

        Args:
            store: of the file.
        """
        if self._in_f8:
            keras.layers.Layer.save_own_variables(self, store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the weights from a file; Keras calls it.

        Args:
            store: of the file.
        """
        if self._in_f8:
            keras.layers.Layer.load_own_variables(self, store)
        else:
            super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        given = self.kernel_data_initializer
        return {
            **super().get_config(),
            "kernel_format": int(self.kernel_format),
            "kernel_scale": self.kernel_scale,
            "kernel_data_initializer": None if given is None else keras.initializers.serialize(given),
        }


def _is_list(inputs: Any) -> bool:
    """Whether these are data and metadata (or the shapes of both)."""
    return isinstance(inputs, (list, tuple)) and len(inputs) == 2 and not isinstance(inputs[0], (int, type(None)))


def _random_codes(shape: Any, dtype: Any = "uint8") -> Any:
    """Codes of any number: the NaN becomes zero."""
    codes = np.random.randint(0, 256, tuple(shape))
    return tf.cast(np.where(codes == _NAN, 0, codes), dtype)
