"""A dense layer whose product is cut into smaller ones."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.math_ops import serialized_matmul

__all__ = ["SerialDense"]

_DIMENSIONS = {"input_columns": "a_columns", "input_rows_kernel_columns": "a_rows_b_columns", "kernel_rows": "b_rows"}


@keras.saving.register_keras_serializable("ipu_keras")
class SerialDense(keras.layers.Dense):
    """``activation(inputs @ kernel + bias)``, the product cut into `serialization_factor` smaller ones.

    Args:
        units: size of the result's last dimension.
        serialization_factor: number of products; must divide what is cut.
        serialization_dimension: what is cut: ``"input_columns"`` is the inputs' rows of features (the dimension before
            the last), ``"input_rows_kernel_columns"`` the features, whose products are added up, ``"kernel_rows"`` the
            units.
        activation: as of ``keras.layers.Dense``.
        use_bias: as of ``keras.layers.Dense``.
        **kwargs: other arguments of ``keras.layers.Dense``.

    Raises:
        ArgumentError: there is no such dimension, or the factor does not divide it.

    Example:
        >>> SerialDense(8, 4, "kernel_rows", activation="relu")(tf.ones((2, 3))).shape
        TensorShape([2, 8])
    """

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        activation: Any = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        if serialization_dimension not in _DIMENSIONS:
            allowed = ", ".join(map(repr, _DIMENSIONS))
            raise ArgumentError(
                f"SerialDense: serialization_dimension is {serialization_dimension!r}; it must be one of {allowed}."
            )
        super().__init__(units, activation=activation, use_bias=use_bias, **kwargs)
        self.serialization_factor = serialization_factor
        self.serialization_dimension = serialization_dimension

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The product, the bias and the activation.

        Args:
            inputs: tensor of shape [..., features].
            training: not used.
        """
        del training
        inputs, kernel = tf.convert_to_tensor(inputs), tf.convert_to_tensor(self.kernel)
        x = serialized_matmul(inputs, kernel, self.serialization_factor, _DIMENSIONS[self.serialization_dimension])
        if self.use_bias:
            x = x + tf.convert_to_tensor(self.bias)
        return x if self.activation is None else self.activation(x)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {
            **super().get_config(),
            "serialization_factor": self.serialization_factor,
            "serialization_dimension": self.serialization_dimension,
        }
