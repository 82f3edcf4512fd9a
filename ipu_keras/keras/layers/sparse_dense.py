"""A dense layer whose kernel has non-zero blocks at fixed places only."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.sparse import BlockPattern, prune, random_pattern, static_matmul, values_from_dense

__all__ = ["SparseDense"]


@keras.saving.register_keras_serializable("ipu_keras")
class SparseDense(keras.layers.Layer):
    """``activation(inputs @ kernel + bias)`` with a block-sparse kernel.

    Only the blocks are variables: what is zero stays zero, and takes neither memory nor cycles on the tiles.

    Args:
        units: size of the result's last dimension.
        block_size: edge of a block, 1, 4, 8 or 16; must divide the features and `units`.
        density: share of the kernel that random blocks cover; for a layer without a `pattern`.
        pattern: where the blocks stand, an ``ipu.ops.sparse.BlockPattern`` of shape (features, units); it has its own
            block size.
        activation: as of ``keras.layers.Dense``.
        use_bias: as of ``keras.layers.Dense``.
        kernel_initializer: of a dense kernel, of which the blocks are taken.
        bias_initializer: as of ``keras.layers.Dense``.
        kernel_regularizer: of the blocks.
        bias_regularizer: as of ``keras.layers.Dense``.
        kernel_constraint: of the blocks.
        bias_constraint: as of ``keras.layers.Dense``.
        seed: of the places, for a layer without a `pattern`.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: neither or both of `density` and `pattern` are given, or sizes do not fit.

    Example:
        >>> SparseDense(32, block_size=8, density=0.25)(tf.ones((2, 64))).shape
        TensorShape([2, 32])
    """

    def __init__(
        self,
        units: int,
        block_size: int = 16,
        density: float | None = None,
        pattern: BlockPattern | dict[str, Any] | None = None,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (density is None) == (pattern is None):
            raise ArgumentError("SparseDense: give either density, for random blocks, or pattern.")
        if isinstance(pattern, dict):
            pattern = BlockPattern(**pattern)
        if pattern is not None and pattern.shape[1] != units:
            raise ArgumentError(
                f"SparseDense: the pattern has {pattern.shape[1]} columns, and there are {units} units."
            )
        self.units, self.density, self.seed = units, density, seed
        self.pattern: Any = pattern
        self.block_size = pattern.block_size if pattern is not None else block_size
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.kernel: Any = None
        self.bias: Any = None

    @classmethod
    def from_dense(cls, layer: Any, density: float, block_size: int = 16, **kwargs: Any) -> SparseDense:
        """A layer with the largest blocks of a dense layer's kernel (by sum of squares), and its bias.

        Args:
            layer: a built ``keras.layers.Dense``.
            density: share of blocks that stay, above 0 and at most 1.
            block_size: edge of a block.
            **kwargs: other arguments of this layer than the dense one's.

        Raises:
            ArgumentError: the layer has no weights yet, or blocks do not fit.

        Example:
            >>> dense = keras.layers.Dense(32)
            >>> dense.build((None, 64))
            >>> SparseDense.from_dense(dense, density=0.25, block_size=8).pattern.blocks
            8
        """
        if not layer.built:
            raise ArgumentError(
                f"SparseDense.from_dense: layer {layer.name} has no weights yet; call it, or its build(input_shape), "
                "first."
            )
        kernel = np.asarray(layer.kernel)
        config = layer.get_config()
        same = {
            name: config[name]
            for name in (
                "name", "trainable", "dtype", "activation", "use_bias", "kernel_initializer", "bias_initializer",
                "kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint",
            )
        }  # fmt: skip
        pattern = prune(kernel, block_size, density)
        made = cls(**keras.saving.deserialize_keras_object({**same, "units": layer.units}), pattern=pattern, **kwargs)
        made.build((None, kernel.shape[0]))
        made.kernel.assign(values_from_dense(kernel, pattern))
        if layer.use_bias:
            made.bias.assign(layer.bias)
        return made

    def build(self, input_shape: Any) -> None:
        """Makes the blocks and the bias.

        Args:
            input_shape: [..., features].
        """
        features = int(input_shape[-1])
        if self.pattern is None:
            self.pattern = random_pattern((features, self.units), self.block_size, self.density or 0.0, self.seed)
        if self.pattern.shape[0] != features:
            raise ArgumentError(
                f"SparseDense {self.name}: the pattern has {self.pattern.shape[0]} rows, and the input has {features} "
                "features."
            )
        pattern, dense = self.pattern, self.kernel_initializer

        def blocks(shape: Any, dtype: Any = None) -> Any:
            del shape
            return values_from_dense(dense(pattern.shape, dtype=dtype), pattern)

        self.kernel = self.add_weight(
            name="kernel",
            shape=pattern.values_shape,
            initializer=blocks,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: Any) -> Any:
        """The product, the bias and the activation.

        Args:
            inputs: tensor of shape [..., features].
        """
        x = static_matmul(tf.convert_to_tensor(inputs), tf.convert_to_tensor(self.kernel), self.pattern)
        if self.bias is not None:
            x = x + tf.convert_to_tensor(self.bias)
        return self.activation(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[..., units].

        Args:
            input_shape: [..., features].
        """
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer; once it is built, its places among them."""
        parts = {
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }
        return {
            **super().get_config(),
            "units": self.units,
            "block_size": self.block_size,
            "density": self.density if self.pattern is None else None,
            "pattern": None if self.pattern is None else self.pattern.get_config(),
            "use_bias": self.use_bias,
            "seed": self.seed,
            **parts,
        }
