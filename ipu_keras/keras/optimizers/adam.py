"""Adam in the form of its paper, its moments in dtypes of their own."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.optimizers.base import IpuOptimizerBase, optional_dtype

__all__ = ["AdamIpuOptimizer"]


@keras.saving.register_keras_serializable("ipu_keras")
class AdamIpuOptimizer(IpuOptimizerBase):
    """``w -= lr * m' / (sqrt(v') + epsilon)``, m' and v' being the moments without their bias towards zero.

    Keras's Adam adds epsilon to the root of the biased v: the same epsilon is not the same step there.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        beta_1: decay of the gradient's mean m.
        beta_2: decay of the squared gradient's mean v.
        epsilon: added to the root.
        amsgrad: whether the largest v' so far takes the place of v'.
        name: name of the optimizer.
        m_dtype: dtype of m, None for the weight's.
        v_dtype: dtype of v, None for the weight's.
        vhat_dtype: dtype of the largest v', None for the weight's.
        debiasing: False takes m and v as they are.
        **kwargs: arguments of `IpuOptimizerBase`.

    Example:
        >>> model.compile(AdamIpuOptimizer(1e-3, m_dtype="float16", v_dtype="float32"), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: Any = None,
        v_dtype: Any = None,
        vhat_dtype: Any = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.amsgrad = amsgrad
        self.m_dtype = optional_dtype(m_dtype)
        self.v_dtype = optional_dtype(v_dtype)
        self.vhat_dtype = optional_dtype(vhat_dtype)
        self.debiasing = debiasing

    def build(self, variables: Any) -> None:
        """Makes the state.

        Args:
            variables: the weights.
        """
        if self.built:
            return
        super().build(variables)
        for var in variables:
            self.add_slot_with_dtype(var, "m", self.m_dtype)
            self.add_slot_with_dtype(var, "v", self.v_dtype)
            if self.amsgrad:
                self.add_slot_with_dtype(var, "vhat", self.vhat_dtype)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one weight.

        Args:
            gradient: tensor of the weight's shape.
            variable: the weight.
            learning_rate: before its decay.
        """
        dtype = self.optimizer_compute_precisions[0]
        m, v = self.moments(tf.cast(gradient, dtype), variable, dtype)
        if self.amsgrad:
            v = tf.maximum(self.read_slot(variable, "vhat", dtype), v)
            self.assign(self.get_slot(variable, "vhat"), v)
        rate = tf.cast(self.decayed(learning_rate), dtype)
        self.assign(variable, tf.cast(variable, dtype) - rate * m / (tf.sqrt(v) + tf.cast(self.epsilon, dtype)))

    def moments(self, gradient: Any, variable: Any, dtype: Any) -> tuple[Any, Any]:
        """Moves both moments on and gives them without their bias.

        Args:
            gradient: tensor of the weight's shape.
            variable: the weight.
            dtype: of the arithmetic.
        """
        count = tf.cast(tf.convert_to_tensor(self.iterations) + 1, tf.float32)
        found = []
        for name, beta, value in (("m", self.beta_1, gradient), ("v", self.beta_2, gradient * gradient)):
            keep = tf.cast(beta, dtype)
            moment = keep * self.read_slot(variable, name, dtype) + tf.cast(1 - beta, dtype) * value
            self.assign(self.get_slot(variable, name), moment)
            # float32, whatever the arithmetic: in half precision 0.999 to some power is soon 1 - 0.
            bias = 1 - tf.pow(tf.constant(beta, tf.float32), count) if self.debiasing else 1.0
            found.append(moment / tf.cast(bias, dtype))
        return found[0], found[1]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "amsgrad": self.amsgrad,
            "m_dtype": self.m_dtype,
            "v_dtype": self.v_dtype,
            "vhat_dtype": self.vhat_dtype,
            "debiasing": self.debiasing,
        }
