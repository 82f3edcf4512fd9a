"""Automatic loss scaling where the optimizer's state is of scaled gradients: the state follows the factor.

Dividing half-precision gradients by the factor loses their smallest values; here only the step of a weight is divided.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.optimizers.als import ALSOptimizer
from ipu_keras.keras.optimizers.base import IpuOptimizerBase

__all__ = ["ALSOptimizerAdam", "ALSOptimizerRMSProp", "ALSOptimizerSGD"]


class _OfScaled(IpuOptimizerBase):
    """An optimizer of gradients that are too large by `scale`, and were by ``scale / ratio`` in its last step."""

    slots: tuple[str, ...] = ()
    scale: Any = 1.0
    ratio: Any = 1.0

    def __init__(self, learning_rate: Any, **arguments: Any) -> None:
        super().__init__(learning_rate=learning_rate)
        self.arguments = arguments

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        for var in variables:
            for slot in self.slots:
                self.add_slot_with_dtype(var, slot, "float32")  # squares of scaled gradients do not fit half precision

    def moved(self, variable: Any, slot: str, keep: float, value: Any, power: int) -> Any:
        """A mean of (powers of) gradients with one more of them."""
        state = keep * self.read_slot(variable, slot, "float32") * self.ratio**power + value
        self.assign(self.get_slot(variable, slot), state)
        return state

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        step = self.step(tf.cast(gradient, tf.float32), variable, tf.cast(learning_rate, tf.float32))
        self.assign(variable, tf.cast(variable, tf.float32) - step)

    def step(self, gradient: Any, variable: Any, rate: Any) -> Any:
        """What is taken off a weight."""
        raise NotImplementedError


class _SGD(_OfScaled):
    slots = ("momentum",)

    def step(self, gradient: Any, variable: Any, rate: Any) -> Any:
        momentum = self.arguments["momentum"]
        velocity = self.moved(variable, "momentum", momentum, rate * gradient, 1)
        ahead = momentum * velocity + rate * gradient if self.arguments["nesterov"] else velocity
        return ahead / self.scale


class _Adam(_OfScaled):
    slots = ("m", "v", "vhat")

    def step(self, gradient: Any, variable: Any, rate: Any) -> Any:
        beta_1, beta_2 = self.arguments["beta_1"], self.arguments["beta_2"]
        count = tf.cast(tf.convert_to_tensor(self.iterations) + 1, tf.float32)
        m = self.moved(variable, "m", beta_1, (1 - beta_1) * gradient, 1)
        v = self.moved(variable, "v", beta_2, (1 - beta_2) * gradient * gradient, 2)
        if self.arguments["amsgrad"]:
            v = tf.maximum(self.read_slot(variable, "vhat", "float32") * self.ratio**2, v)
            self.assign(self.get_slot(variable, "vhat"), v)
        rate *= tf.sqrt(1 - tf.pow(beta_2, count)) / (1 - tf.pow(beta_1, count))
        return rate * m / (tf.sqrt(v) + self.arguments["epsilon"] * self.scale)


class _RMSProp(_OfScaled):
    slots = ("square", "mean", "momentum")

    def step(self, gradient: Any, variable: Any, rate: Any) -> Any:
        rho = self.arguments["rho"]
        square = self.moved(variable, "square", rho, (1 - rho) * gradient * gradient, 2)
        if self.arguments["centered"]:
            square -= self.moved(variable, "mean", rho, (1 - rho) * gradient, 1) ** 2
        step = rate * gradient * tf.math.rsqrt(square + self.arguments["epsilon"] * self.scale**2)
        if self.arguments["momentum"]:
            step = self.moved(variable, "momentum", self.arguments["momentum"], step, 0)
        return step


class _ALSOptimizerOfState(ALSOptimizer):
    kind: type[_OfScaled] = _OfScaled

    def __init__(self, learning_rate: Any, arguments: dict[str, Any], als: dict[str, Any]) -> None:
        super().__init__(self.kind(learning_rate, **arguments), **als)

    def _step(self, grads: list[Any], weights: Any, scale: Any) -> None:
        inner = self.inner_optimizer
        inner.scale, inner.ratio = scale, scale / self.previous_loss_scaling_factor
        inner.apply(grads, weights)
        inner.scale = inner.ratio = 1.0  # tensors of a trace are not for later

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        config = super().get_config()
        inner = config.pop("opt")["config"]
        return {"learning_rate": inner["learning_rate"], **self.inner_optimizer.arguments, **config}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """An optimizer made of `get_config`'s result.

        Args:
            config: the arguments.
            custom_objects: classes by name, for a learning rate schedule.
        """
        config = dict(config)
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras.saving.deserialize_keras_object(
                config["learning_rate"], custom_objects=custom_objects
            )
        return cls(**config)


@keras.saving.register_keras_serializable("ipu_keras")
class ALSOptimizerSGD(_ALSOptimizerOfState):
    """Gradient descent with automatic loss scaling; its momentum is of scaled gradients.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        momentum: share of the last step that is done again.
        nesterov: whether the step looks ahead.
        **als: arguments of ALSOptimizer, but `opt`.

    Example:
        >>> model.compile(ALSOptimizerSGD(0.1, momentum=0.9, update_frequency=4), "mse")
    """

    kind = _SGD

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.0, nesterov: bool = False, **als: Any) -> None:
        super().__init__(
            learning_rate, {"momentum": momentum, "nesterov": nesterov}, {"name": "ALSOptimizerSGD", **als}
        )


@keras.saving.register_keras_serializable("ipu_keras")
class ALSOptimizerAdam(_ALSOptimizerOfState):
    """Adam, in Keras's form, with automatic loss scaling; its moments are of scaled gradients.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        beta_1: decay of the gradient's mean.
        beta_2: decay of the squared gradient's mean.
        epsilon: added to the root, as to that of gradients that are not scaled.
        amsgrad: whether the largest mean of squares so far takes the place of the mean.
        **als: arguments of ALSOptimizer, but `opt`.

    Example:
        >>> model.compile(ALSOptimizerAdam(1e-3, update_frequency=4), "mse")
    """

    kind = _Adam

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **als: Any,
    ) -> None:
        arguments = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "amsgrad": amsgrad}
        super().__init__(learning_rate, arguments, {"name": "ALSOptimizerAdam", **als})


@keras.saving.register_keras_serializable("ipu_keras")
class ALSOptimizerRMSProp(_ALSOptimizerOfState):
    """RMSprop, in Keras's form, with automatic loss scaling; its means are of scaled gradients.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        rho: decay of the squared gradient's mean.
        momentum: share of the last step that is done again.
        epsilon: added to the mean of squares, as to that of gradients that are not scaled.
        centered: whether the gradient's variance takes the place of the mean of squares.
        **als: arguments of ALSOptimizer, but `opt`.

    Example:
        >>> model.compile(ALSOptimizerRMSProp(1e-3, update_frequency=4), "mse")
    """

    kind = _RMSProp

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **als: Any,
    ) -> None:
        arguments = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered}
        super().__init__(learning_rate, arguments, {"name": "ALSOptimizerRMSProp", **als})
