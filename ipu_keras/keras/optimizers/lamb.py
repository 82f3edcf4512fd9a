"""LAMB: Adam's direction, as long as the weight it moves."""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.optimizers.adam import AdamIpuOptimizer
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["LAMBIpuOptimizer"]


@keras.saving.register_keras_serializable("ipu_keras")
class LAMBIpuOptimizer(AdamIpuOptimizer):
    """``w -= lr * ratio * u`` with ``u = m' / (sqrt(v') + epsilon) + weight_decay_rate * w`` and ``ratio = |w| / |u|``.

    The ratio is 1 where one of the norms is zero.

    Args:
        learning_rate: a float, a schedule of Keras or a function without arguments.
        beta_1: decay of the gradient's mean m.
        beta_2: decay of the squared gradient's mean v.
        epsilon: added to the root.
        weight_decay_rate: share of the weight in the direction.
        exclude_from_weight_decay: regular expressions; weights with a path that one of them is found in do not decay.
        exclude_from_layer_adaptation: regular expressions; such weights have the ratio 1. None for the same weights.
        name: name of the optimizer.
        debiasing: False takes m and v as they are.
        m_dtype: dtype of m, None for the weight's.
        v_dtype: dtype of v, None for the weight's.
        weight_norm_clip: ``|w|`` counts as no more than this; None for no limit.
        optimizer_compute_precisions: two dtypes: of the moments and the direction; of the norms and the new weight.
        **kwargs: arguments of `IpuOptimizerBase`.

    Raises:
        ArgumentError: `optimizer_compute_precisions` has not two entries.

    Example:
        >>> model.compile(LAMBIpuOptimizer(1e-3, exclude_from_weight_decay=["bias", "gamma", "beta"]), "mse")
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Any = None,
        exclude_from_layer_adaptation: Any = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: Any = None,
        v_dtype: Any = None,
        weight_norm_clip: float | None = None,
        optimizer_compute_precisions: Any = (tf.float32, tf.float32),
        **kwargs: Any,
    ) -> None:
        for unknown in ("amsgrad", "vhat_dtype"):
            if kwargs.pop(unknown, None):
                raise ArgumentError(f"LAMBIpuOptimizer has no argument {unknown!r}.")
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            name=name,
            m_dtype=m_dtype,
            v_dtype=v_dtype,
            debiasing=debiasing,
            optimizer_compute_precisions=optimizer_compute_precisions,
            **kwargs,
        )
        if len(self.optimizer_compute_precisions) != 2:
            raise ArgumentError(
                f"LAMBIpuOptimizer: optimizer_compute_precisions must have a length of 2, not "
                f"{len(self.optimizer_compute_precisions)}."
            )
        self.weight_decay_rate = weight_decay_rate
        self.decay_exclusions = list(exclude_from_weight_decay or [])
        self.adaptation_exclusions = (
            self.decay_exclusions if exclude_from_layer_adaptation is None else list(exclude_from_layer_adaptation)
        )
        self.weight_norm_clip = weight_norm_clip

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one weight.

        Args:
            gradient: tensor of the weight's shape.
            variable: the weight.
            learning_rate: before its decay.
        """
        first, second = self.optimizer_compute_precisions
        path = _path(self._trainable_variables[self._get_variable_index(variable)])
        m, v = self.moments(tf.cast(gradient, first), variable, first)
        update = m / (tf.sqrt(v) + tf.cast(self.epsilon, first))
        if self.weight_decay_rate and not _matches(self.decay_exclusions, path):
            update += tf.cast(self.weight_decay_rate, first) * tf.cast(variable, first)
        update, weight = tf.cast(update, second), tf.cast(variable, second)
        ratio = tf.ones((), second)
        if not _matches(self.adaptation_exclusions, path):
            length, step = tf.norm(weight), tf.norm(update)
            if self.weight_norm_clip is not None:
                length = tf.minimum(length, tf.cast(self.weight_norm_clip, second))
            both = (length > 0) & (step > 0)
            ratio = tf.where(both, length / tf.where(both, step, tf.ones_like(step)), ratio)
        self.assign(variable, weight - tf.cast(self.decayed(learning_rate), second) * ratio * update)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        config = super().get_config()
        del config["amsgrad"], config["vhat_dtype"]
        return {
            **config,
            "weight_decay_rate": self.weight_decay_rate,
            "exclude_from_weight_decay": list(self.decay_exclusions),
            "exclude_from_layer_adaptation": list(self.adaptation_exclusions),
            "weight_norm_clip": self.weight_norm_clip,
        }


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _matches(patterns: list[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
