"""Dropout of the IPU API."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ipu_keras.ops import _seeds
from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.rand_ops import dropout

__all__ = ["Dropout"]


@keras.saving.register_keras_serializable("ipu_keras")
class Dropout(keras.layers.Layer):
    """In training, elements become zero at random and the others are scaled by ``1 / (1 - rate)``.

    Args:
        rate: share of the elements that become zero, in [0, 1).
        noise_shape: shape of the mask, which is broadcast: an entry for each dimension of the input, its size, 1 or
            None.
        seed: a pair of int32: each call has the same mask. None: a new mask each time, from the device's seed.
        ref: accepted: the gradient has the mask of the forward pass, whichever it is.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: an argument that does not fit.

    Example:
        >>> Dropout(0.5)(tf.ones((2, 3)), training=True)
    """

    def __init__(self, rate: float, noise_shape: Any = None, seed: Any = None, ref: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ArgumentError(f"Dropout: rate is {rate}; it must be in [0, 1).")
        if seed is not None and np.shape(seed) != (2,):
            raise ArgumentError(f"Dropout: seed is {seed!r}; it must be a pair of int32.")
        self.rate = rate
        self.noise_shape = noise_shape
        self.seed = None if seed is None else [int(s) for s in np.asarray(seed)]
        self.ref = ref
        self.seed_generator = _seeds.generator() if seed is None else None
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Drops elements.

        Args:
            inputs: floating-point tensor of any shape.
            training: False or None gives the inputs.
        """
        if not training or self.rate == 0:
            return inputs
        seed = _seeds.draw(self.seed_generator) if self.seed is None else self.seed
        return dropout(inputs, self.rate, self.noise_shape, seed, ref=self.ref)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape.

        Args:
            input_shape: of the input.
        """
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        config = {"rate": self.rate, "noise_shape": self.noise_shape, "seed": self.seed}
        return {**super().get_config(), **config}
