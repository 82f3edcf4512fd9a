"""Gradient descent with momentum, its state in a dtype of its own."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.optimizers.base import IpuOptimizerBase, optional_dtype

__all__ = ["SGDIpuOptimizer"]


@keras.saving.register_keras_serializable("ipu_keras")
class SGDIpuOptimizer(IpuOptimizerBase):
    """``v = momentum * v - lr * g`` and ``w += v``; with Nesterov's, ``w += momentum * v - lr * g``.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        momentum: share of the last step that is done again; 0 needs no state.
        nesterov: whether the step looks ahead.
        name: name of the optimizer.
        momentum_accum_dtype: dtype of v, None for the weight's.
        **kwargs: arguments of `IpuOptimizerBase`.

    Example:
        >>> model.compile(SGDIpuOptimizer(0.1, momentum=0.9, momentum_accum_dtype="float32"), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov
        self.momentum_accum_dtype = optional_dtype(momentum_accum_dtype)

    def build(self, variables: Any) -> None:
        """Makes the state.

        Args:
            variables: the weights.
        """
        if self.built:
            return
        super().build(variables)
        if self.momentum:
            for var in variables:
                self.add_slot_with_dtype(var, "momentum", self.momentum_accum_dtype)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one weight.

        Args:
            gradient: tensor of the weight's shape.
            variable: the weight.
            learning_rate: before its decay.
        """
        dtype = self.optimizer_compute_precisions[0]
        gradient, weight = tf.cast(gradient, dtype), tf.cast(variable, dtype)
        step = -tf.cast(self.decayed(learning_rate), dtype) * gradient
        if self.momentum:
            momentum = tf.cast(self.momentum, dtype)
            velocity = momentum * self.read_slot(variable, "momentum", dtype) + step
            self.assign(self.get_slot(variable, "momentum"), velocity)
            step = momentum * velocity + step if self.nesterov else velocity
        self.assign(variable, weight + step)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "momentum_accum_dtype": self.momentum_accum_dtype,
        }
