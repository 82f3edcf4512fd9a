"""Embedding of the IPU API, whose gradient is dense."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, NotOnIPUError
from ipu_keras.ops.embedding_ops import embedding_lookup

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable("ipu_keras")
class Embedding(keras.layers.Layer):
    """Rows of a table by number.

    Args:
        input_dim: rows of the table.
        output_dim: size of a row.
        embeddings_initializer: initializer of the table.
        embeddings_regularizer: must be None.
        activity_regularizer: must be None.
        embeddings_constraint: must be None.
        mask_zero: must be False.
        input_length: must be None.
        serialization_factor: into how many parts the rows may be cut; must divide them. No result depends on it.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        NotOnIPUError: something that must be None or False is not.
        ArgumentError: `serialization_factor` does not fit; or the input is not of rank 2.

    Example:
        >>> Embedding(1000, 64)(tf.constant([[1, 5, 2]])).shape
        TensorShape([1, 3, 64])
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        unsupported = {
            "embeddings_regularizer": embeddings_regularizer,
            "activity_regularizer": activity_regularizer,
            "embeddings_constraint": embeddings_constraint,
            "mask_zero": mask_zero,
            "input_length": input_length,
        }
        for name, value in unsupported.items():
            if value:
                raise NotOnIPUError(f"Embedding: {name} is not supported by the IPU API's layer; leave it out.")
        if serialization_factor < 1 or input_dim % serialization_factor:
            raise ArgumentError(
                f"Embedding: serialization_factor {serialization_factor} must be at least 1 and divide input_dim "
                f"{input_dim}."
            )
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.serialization_factor = serialization_factor

    def build(self, input_shape: Any) -> None:
        """Makes the table.

        Args:
            input_shape: [batch, length].
        """
        self._check_rank(len(input_shape))
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim), initializer=self.embeddings_initializer, name="embeddings"
        )

    def call(self, inputs: Any, inputs_are_sorted: bool = False) -> Any:
        """Looks rows up.

        Args:
            inputs: tensor of shape [batch, length] of row numbers; what is not an integer is cast to one.
            inputs_are_sorted: a promise about the inputs, which no result depends on.

        Returns:
            tensor of shape [batch, length, output_dim], in the layer's compute dtype.
        """
        ids = tf.convert_to_tensor(inputs)
        self._check_rank(ids.shape.rank)
        ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)
        rows = embedding_lookup(self.embeddings.value, ids, self.serialization_factor, inputs_are_sorted)
        return tf.cast(rows, self.compute_dtype)

    def _check_rank(self, rank: int | None) -> None:
        if rank != 2:
            raise ArgumentError(f"Embedding: the input must have a rank of 2, [batch, length]; it has {rank}.")

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, length, output_dim].

        Args:
            input_shape: [batch, length].
        """
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "serialization_factor": self.serialization_factor,
        }
