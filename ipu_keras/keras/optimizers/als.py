"""Automatic loss scaling: the largest scale with which half-precision gradients do not overflow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ipu_keras.errors import IPUError
from ipu_keras.ops import _capture
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["ALSOptimizer", "ReadOnlyError"]


class ReadOnlyError(IPUError, ValueError, AttributeError):
    """A property of an optimizer that only the optimizer changes."""


class _Setting:
    """An attribute that may be set to what fits the others."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        settings = {**instance.settings(), self.name[1:]: value}
        _check(**settings)
        setattr(instance, self.name, value)


class _State:
    """A value that can be looked at."""

    def __init__(self, read: Callable[[Any], Any], text: str) -> None:
        self.read = read
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.read(instance)

    def __set__(self, instance: Any, value: Any) -> None:
        raise ReadOnlyError(f"{self.name} is a read only property of {type(instance).__name__}.")


@keras.saving.register_keras_serializable("ipu_keras")
class ALSOptimizer(keras.optimizers.LossScaleOptimizer):
    """Scales the loss by a factor that follows the size of the half-precision gradients.

    The gradients of the scaled loss that are float16 are counted by whether their absolute values exceed
    `histogram_bin_edge`, and divided by the factor before `opt` gets them. When an update of the factor is due and the
    share of those that exceed it is more than `ratio_threshold`, the factor is divided by `increase_factor`; else it is
    multiplied. The new factor counts if it is finite, at least 1 and below `max_loss_scaling_factor`. With an
    `update_frequency` of F above 1 an update is due at every F + 1st step: the counter must reach F first.

    Unlike Keras's LossScaleOptimizer, which it is a kind of, it skips no step.

    Args:
        opt: the optimizer that gets the gradients.
        initial_loss_scaling_factor: a power of two below `max_loss_scaling_factor`.
        update_frequency: steps between updates of the factor.
        increase_factor: a power of two.
        max_loss_scaling_factor: a power of two.
        accumulate_statistics_over_update_period: False counts only the gradients of the steps with an update.
        ratio_threshold: in (0, 1).
        captured_grads_only: whether only the gradients that `apply_gradients` gets as `captured_grads` are counted.
        lpf_alpha: in [0, 1]: how much of the counts before a step stays in place of those after it.
        histogram_bin_edge: absolute value above which a gradient counts as too large.
        name: name of the optimizer.

    Raises:
        ArgumentError: an argument that does not fit.

    Example:
        >>> optimizer = ALSOptimizer(keras.optimizers.SGD(0.01), initial_loss_scaling_factor=256)
        >>> model.compile(optimizer, "mse")
        >>> float(optimizer.loss_scaling_factor)
        256.0
    """

    update_frequency = _Setting()
    increase_factor = _Setting()
    initial_loss_scaling_factor = _Setting()
    max_loss_scaling_factor = _Setting()
    ratio_threshold = _Setting()

    histogram = _State(lambda self: tf.convert_to_tensor(self._counts), "Counts: up to the edge, above it.")
    normalized_histogram = _State(
        lambda self: self.histogram / tf.reduce_sum(self.histogram), "Shares of the counts; NaN if nothing was counted."
    )
    loss_scaling_factor = _State(lambda self: tf.convert_to_tensor(self._scale), "The factor of the next step.")
    previous_loss_scaling_factor = _State(
        lambda self: tf.convert_to_tensor(self._previous), "The factor of the step before."
    )
    update_counter = _State(lambda self: tf.convert_to_tensor(self._counter), "Steps since the latest update.")
    decrease_factor = _State(lambda self: 1 / self.increase_factor, "1 / increase_factor.")

    def __init__(
        self,
        opt: Any,
        initial_loss_scaling_factor: float = 1,
        update_frequency: int = 8,
        increase_factor: float = 2,
        max_loss_scaling_factor: float = 32768,
        accumulate_statistics_over_update_period: bool = True,
        ratio_threshold: float = 1e-5,
        captured_grads_only: bool = False,
        lpf_alpha: float = 0.0,
        histogram_bin_edge: float = 2**13,
        name: str = "ALSOptimizer",
    ) -> None:
        if not isinstance(opt, keras.optimizers.Optimizer) or isinstance(opt, keras.optimizers.LossScaleOptimizer):
            raise ArgumentError(
                f"ALSOptimizer: opt is {type(opt).__name__}; it must be an optimizer of Keras that does not scale the "
                "loss itself."
            )
        _check(initial_loss_scaling_factor, update_frequency, increase_factor, max_loss_scaling_factor, ratio_threshold)
        if not 0 <= lpf_alpha <= 1:
            raise ArgumentError(f"ALSOptimizer: lpf_alpha is {lpf_alpha}; it must be in [0, 1].")
        super().__init__(opt, initial_scale=float(initial_loss_scaling_factor), name=name)
        object.__setattr__(self, "_captured", None)  # from apply_gradients to apply; Keras would track what is in it
        self._initial_loss_scaling_factor = initial_loss_scaling_factor
        self._update_frequency = update_frequency
        self._increase_factor = increase_factor
        self._max_loss_scaling_factor = max_loss_scaling_factor
        self._ratio_threshold = ratio_threshold
        self.accumulate_statistics_over_update_period = accumulate_statistics_over_update_period
        self.captured_grads_only = captured_grads_only
        self.lpf_alpha = lpf_alpha
        self.histogram_bin_edge = histogram_bin_edge
        start = keras.initializers.Constant(float(initial_loss_scaling_factor))
        self._scale = self.add_variable((), start, "float32", name="loss_scaling_factor")
        self._previous = self.add_variable((), start, "float32", name="previous_loss_scaling_factor")
        self._counter = self.add_variable((), "zeros", "int32", name="update_counter")
        self._counts = self.add_variable((2,), "zeros", "float32", name="gradient_histogram")

    @property
    def supports_captured_grads(self) -> bool:
        """True: `apply_gradients` takes them."""
        return True

    def settings(self) -> dict[str, Any]:
        """The arguments that have to fit each other."""
        return {
            "initial_loss_scaling_factor": self._initial_loss_scaling_factor,
            "update_frequency": self._update_frequency,
            "increase_factor": self._increase_factor,
            "max_loss_scaling_factor": self._max_loss_scaling_factor,
            "ratio_threshold": self._ratio_threshold,
        }

    def build(self, var_list: Any) -> None:
        """Makes the state of `opt`.

        Args:
            var_list: the weights.
        """
        if self.built:
            return
        self.inner_optimizer.build(var_list)
        keras.optimizers.Optimizer.build(self, var_list)

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the factor.

        Args:
            loss: a tensor.
        """
        loss = tf.convert_to_tensor(loss)
        return loss * tf.cast(self.loss_scaling_factor, loss.dtype)

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss times the factor.

        Args:
            loss: a tensor.
        """
        return self.scale_loss(loss)

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Gradients of the scaled loss, inside a tf.function.

        Args:
            loss: a tensor, not scaled.
            params: the weights.
        """
        return tf.gradients(self.scale_loss(loss), [_tensorflow(p) for p in params])

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Differentiates the scaled loss and applies the gradients.

        Args:
            loss: a function without arguments; or a tensor, with the tape that has recorded it.
            var_list: the weights.
            tape: a tf.GradientTape.

        Raises:
            ArgumentError: `loss` is a tensor and there is no tape.
        """
        if not callable(loss) and tape is None:
            raise ArgumentError("ALSOptimizer.minimize: a loss that is a tensor needs the tape that recorded it.")
        recorder = tf.GradientTape() if tape is None else tape
        with recorder:
            scaled = self.scale_loss(loss() if callable(loss) else loss)
        weights = list(var_list)
        return self.apply_gradients(zip(recorder.gradient(scaled, [_tensorflow(w) for w in weights]), weights))

    def apply_gradients(
        self, grads_and_vars: Any, captured_grads: Any = None, global_step: Any = None, name: Any = None
    ) -> Any:
        """Counts, divides and applies gradients of the scaled loss, then moves the factor on.

        Args:
            grads_and_vars: pairs of a gradient and its weight.
            captured_grads: a structure of gradients that are counted and applied to nothing; None for those that
                capture layers have recorded in this step.
            global_step: accepted; Keras's optimizers count themselves.
            name: accepted.
        """
        del global_step, name
        grads, weights = zip(*grads_and_vars)
        object.__setattr__(self, "_captured", captured_grads)
        self.apply(list(grads), list(weights))
        return self.iterations

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Counts, divides and applies gradients of the scaled loss, then moves the factor on.

        Args:
            grads: a tensor for each weight, or None.
            trainable_variables: the weights; None for those that the optimizer was built with.
        """
        grads, captured = list(grads), self._captured
        object.__setattr__(self, "_captured", None)
        if not self.built:
            self.build(trainable_variables)
        scale = self.loss_scaling_factor
        captured = _capture.take() if captured is None else captured
        counted = [*([] if self.captured_grads_only else grads), *tf.nest.flatten(captured)]
        new = self._count([_values(g) for g in counted if g is not None])
        self._step(grads, trainable_variables, scale)
        self._update(scale, new)

    def _step(self, grads: list[Any], weights: Any, scale: Any) -> None:
        self.inner_optimizer.apply([_divided(g, scale) for g in grads], weights)

    def _count(self, grads: list[Any]) -> Any:
        """Of the float16 gradients, how many are within the edge and how many, NaN too, are not."""
        within, total = tf.zeros(()), 0
        for grad in grads:
            if grad.dtype == tf.float16:
                small = tf.abs(grad) <= tf.cast(self.histogram_bin_edge, grad.dtype)
                within += tf.reduce_sum(tf.cast(small, tf.float32))
                total += tf.size(grad)
        return tf.stack([within, tf.cast(total, tf.float32) - within])

    def _update(self, scale: Any, new: Any) -> None:
        counter, old = self.update_counter, self.histogram
        # F + 1 steps a round, as documented: the counter is 0 again at the first step after an update.
        frequency = self.update_frequency
        due = tf.constant(True) if frequency == 1 else (counter > 0) & (counter % frequency == 0)
        if not self.accumulate_statistics_over_update_period:
            new = tf.where(due, new, tf.zeros_like(new))
        counts = old + new
        too_large = counts[1] / tf.reduce_sum(counts) > self.ratio_threshold  # nothing counted: NaN, so not too large
        changed = tf.where(too_large, scale * self.decrease_factor, scale * self.increase_factor)
        fits = tf.math.is_finite(changed) & (changed < self.max_loss_scaling_factor) & (changed >= 1)
        self._previous.assign(scale)
        self._scale.assign(tf.where(due & fits, changed, scale))
        self._counter.assign(tf.where(due, 0, counter + 1))
        self._counts.assign(tf.where(due, tf.zeros_like(old), self.lpf_alpha * old + (1 - self.lpf_alpha) * counts))

    def reset(self) -> None:
        """Starts again: the initial factor, and nothing counted."""
        self._scale.assign(float(self.initial_loss_scaling_factor))
        self._previous.assign(float(self.initial_loss_scaling_factor))
        self._counter.assign(0)
        self._counts.assign([0.0, 0.0])

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer, but for `lpf_alpha`, which the IPU API does not save."""
        return {
            "opt": keras.saving.serialize_keras_object(self.inner_optimizer),
            "initial_loss_scaling_factor": self.initial_loss_scaling_factor,
            "update_frequency": self.update_frequency,
            "increase_factor": self.increase_factor,
            "max_loss_scaling_factor": self.max_loss_scaling_factor,
            "accumulate_statistics_over_update_period": self.accumulate_statistics_over_update_period,
            "ratio_threshold": self.ratio_threshold,
            "captured_grads_only": self.captured_grads_only,
            "histogram_bin_edge": self.histogram_bin_edge,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """An optimizer made of `get_config`'s result.

        Args:
            config: the arguments.
            custom_objects: classes by name, for `opt`.
        """
        inner = keras.saving.deserialize_keras_object(config["opt"], custom_objects=custom_objects)
        return cls(inner, **{key: value for key, value in config.items() if key != "opt"})


def _tensorflow(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _values(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)


def _divided(grad: Any, scale: Any) -> Any:
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(grad.values, scale), grad.indices, grad.dense_shape)
    return grad / tf.cast(scale, grad.dtype)


def _check(
    initial_loss_scaling_factor: float,
    update_frequency: int,
    increase_factor: float,
    max_loss_scaling_factor: float,
    ratio_threshold: float,
) -> None:
    initial, maximum = initial_loss_scaling_factor, max_loss_scaling_factor
    if not update_frequency > 0:
        raise ArgumentError(f"ALSOptimizer: update_frequency is {update_frequency}; it must be greater than 0.")
    for name, value in (
        ("initial_loss_scaling_factor", initial),
        ("increase_factor", increase_factor),
        ("max_loss_scaling_factor", maximum),
    ):
        if not (value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5):
            raise ArgumentError(f"ALSOptimizer: {name} is {value}; it must be a power of two.")
    if not initial < maximum:
        raise ArgumentError(
            f"ALSOptimizer: initial_loss_scaling_factor {initial} must be less than max_loss_scaling_factor {maximum}."
        )
    if not initial * increase_factor < maximum:
        raise ArgumentError(
            f"ALSOptimizer: initial_loss_scaling_factor x increase_factor, {initial * increase_factor}, must be less "
            f"than max_loss_scaling_factor {maximum}."
        )
    if not 0 < ratio_threshold < 1:
        raise ArgumentError(f"ALSOptimizer: ratio_threshold is {ratio_threshold}; it must be in (0, 1).")
