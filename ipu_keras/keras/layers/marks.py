"""Layers that change nothing and tell the compiler something."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras import adapter

__all__ = ["AssumeEqualAcrossReplicas", "RecomputationCheckpoint"]


class _Identity(keras.layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The inputs.

        Args:
            inputs: a tensor or a nested structure of tensors.
        """
        return tf.nest.map_structure(tf.identity, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape.

        Args:
            input_shape: of the input.
        """
        return input_shape


@keras.saving.register_keras_serializable("ipu_keras")
class RecomputationCheckpoint(_Identity):
    """Marks what is kept where activations are computed again in the backward pass; the inputs pass unchanged.

    It counts in a pipeline's training step with `IPUConfig.allow_recompute`, by the mode
    `RecomputeAndBackpropagateInterleaved`: what lies between two marks is then computed again just before its gradients
    are. Elsewhere it does nothing.

    Example:
        >>> x = RecomputationCheckpoint()(x)
    """

    def call(self, inputs: Any) -> Any:
        """The inputs.

        Args:
            inputs: a tensor or a nested structure of tensors.
        """
        return adapter.checkpointed(super().call(inputs))


@keras.saving.register_keras_serializable("ipu_keras")
class AssumeEqualAcrossReplicas(_Identity):
    """Promises that the inputs are the same on all replicas; they pass unchanged.

    Args:
        inplace: accepted; no copy is made either way.
        **kwargs: arguments of ``keras.layers.Layer``.

    Example:
        >>> x = AssumeEqualAcrossReplicas()(x)
    """

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inplace = inplace

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "inplace": self.inplace}
