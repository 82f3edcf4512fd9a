"""Optimizers that add gradients up over several steps before another optimizer gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod as Method
from ipu_keras.keras.optimizers.als import ALSOptimizer
from ipu_keras.ops import _capture
from ipu_keras.ops._accumulation import accumulated
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["ALSGradientAccumulationOptimizer", "GradientAccumulationOptimizer"]


class _Accumulating:
    """What both optimizers do; the other base is an optimizer of Keras."""

    def _set(self: Any, opt: Any, num_mini_batches: int, offload: Any, sharding: Any, dtype: Any, method: Any) -> None:
        self.opt = opt
        self.num_mini_batches = num_mini_batches
        self.offload_weight_update_variables = offload
        self.replicated_optimizer_state_sharding = sharding
        self.accumulator_dtype: Callable[[Any], Any] | str | None = (
            dtype if dtype is None or _is_function(dtype) else str(tf.as_dtype(dtype).name)
        )
        self.reduction_method = Method.parse(method)
        # Past Keras's tracking: the accumulators are in the optimizer's list of variables already.
        object.__setattr__(self, "_accumulators", {})
        self._index = self.add_variable((), "zeros", "int32", name="mini_batch")

    def build(self: Any, var_list: Any) -> None:
        """Makes the accumulators, and the state of the inner optimizer.

        Args:
            var_list: the weights.
        """
        if self.built:
            return
        self.opt.build(var_list)
        keras.optimizers.Optimizer.build(self, var_list)
        for var in var_list:
            dtype = self.accumulator_dtype(var) if callable(self.accumulator_dtype) else self.accumulator_dtype
            path = getattr(var, "path", None) or var.name.split(":")[0]
            accumulator = self.add_variable(
                var.shape,
                "zeros",
                tf.as_dtype(var.dtype if dtype is None else dtype).name,
                name=f"{path.replace('/', '_')}_accumulator",
            )
            self._accumulators[self._var_key(var)] = accumulator

    @property
    def variables(self: Any) -> Any:
        """The accumulators, then what the inner optimizer has."""
        return self._variables + self.opt.variables

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.opt.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.opt.learning_rate = value

    @property
    def iterations(self) -> Any:
        """How often the inner optimizer has updated the weights."""
        return self.opt.iterations

    def scale_loss(self, loss: Any) -> Any:
        """As the inner optimizer does.

        Args:
            loss: a tensor.
        """
        return self.opt.scale_loss(loss)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        """Adds the gradients up; at the last of the mini-batches the inner optimizer gets what they make.

        Args:
            grads: a tensor for each weight, or None.
            trainable_variables: the weights; None for those that the optimizer was built with.
        """
        weights = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            self.build(weights)
        pairs = [(g, w) for g, w in zip(grads, weights) if g is not None]
        index = tf.convert_to_tensor(self._index)
        totals = []
        for grad, weight in pairs:
            accumulator = self._accumulators[self._var_key(weight)]
            old = tf.convert_to_tensor(accumulator)
            total = accumulated(old, grad, index, self.num_mini_batches, self.reduction_method)
            accumulator.assign(total)
            totals.append(total)
        captured = {"captured_grads": _capture.take()} if isinstance(self.opt, ALSOptimizer) else {}

        def update() -> Any:
            self.opt.apply_gradients(zip(totals, [w for _, w in pairs]), **captured)
            return tf.constant(0)

        self._index.assign(tf.cond(index == self.num_mini_batches - 1, update, lambda: index + 1))
        self._iterations.assign_add(1)

    def get_config(self: Any) -> dict[str, Any]:
        """The arguments that make an equal optimizer.

        Raises:
            ArgumentError: the accumulators' dtype is a function, which cannot be saved.
        """
        if callable(self.accumulator_dtype):
            raise ArgumentError(f"{type(self).__name__}: dtype is a function, which cannot be saved; give a dtype.")
        return {
            "inner_optimizer_type": keras.saving.get_registered_name(type(self.opt)),
            "inner_optimizer_config": self.opt.get_config(),
            "num_mini_batches": self.num_mini_batches,
            "offload_weight_update_variables": self.offload_weight_update_variables,
            "replicated_optimizer_state_sharding": self.replicated_optimizer_state_sharding,
            "dtype": self.accumulator_dtype,
            "reduction_method": self.reduction_method.name,
            "name": self.name,
        }

    @classmethod
    def from_config(cls: Any, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """An optimizer made of `get_config`'s result.

        Args:
            config: the arguments.
            custom_objects: classes by name, for the inner optimizer.
        """
        config = dict(config)
        inner = {"class_name": config.pop("inner_optimizer_type"), "config": dict(config.pop("inner_optimizer_config"))}
        return cls(keras.optimizers.deserialize(inner, custom_objects=custom_objects), **config)


@keras.saving.register_keras_serializable("ipu_keras")
class GradientAccumulationOptimizer(_Accumulating, keras.optimizers.Optimizer):
    """Updates the weights at every `num_mini_batches`-th step, with the gradients of all of them.

    With one mini-batch it is `opt` itself.

    Args:
        opt: the optimizer that updates the weights, of Keras.
        num_mini_batches: how many steps make an update.
        offload_weight_update_variables: accepted; where state lies changes no result.
        replicated_optimizer_state_sharding: accepted, for the same reason.
        dtype: of the accumulators, or a function that gives it for a weight; None for the weight's.
        reduction_method: ``"sum"``, ``"mean"``, ``"running_mean"`` or a GradientAccumulationReductionMethod.
        name: name of the optimizer.

    Raises:
        ArgumentError: `num_mini_batches` is below 1, or `opt` is no optimizer of Keras or scales the loss.

    Example:
        >>> model.compile(GradientAccumulationOptimizer(keras.optimizers.SGD(0.1), 4, reduction_method="mean"), "mse")
    """

    def __new__(cls, opt: Any, num_mini_batches: int, *args: Any, **kwargs: Any) -> Any:
        """`opt` itself for one mini-batch."""
        return opt if num_mini_batches == 1 else super().__new__(cls)

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool | None = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        _check_count(type(self), num_mini_batches)
        if not isinstance(opt, keras.optimizers.Optimizer) or isinstance(opt, (_Accumulating, _LossScale)):
            raise ArgumentError(
                f"GradientAccumulationOptimizer: opt is {type(opt).__name__}; it must be one of Keras that does "
                "not scale the loss. For an ALSOptimizer there is ALSGradientAccumulationOptimizer."
            )
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        self._set(
            opt,
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
        )


@keras.saving.register_keras_serializable("ipu_keras")
class ALSGradientAccumulationOptimizer(_Accumulating, keras.optimizers.LossScaleOptimizer):
    """`GradientAccumulationOptimizer` around an ALSOptimizer, whose properties it has.

    The ALSOptimizer counts what the gradients of all mini-batches make, and what the last of them captured.

    Args:
        als_optimizer: the ALSOptimizer.
        num_mini_batches: how many steps make an update.
        offload_weight_update_variables: accepted; where state lies changes no result.
        replicated_optimizer_state_sharding: accepted, for the same reason.
        dtype: of the accumulators, or a function that gives it for a weight; None for the weight's.
        reduction_method: ``"sum"``, ``"mean"``, ``"running_mean"`` or a GradientAccumulationReductionMethod.
        name: name of the optimizer.

    Raises:
        ArgumentError: `num_mini_batches` is below 1, or `als_optimizer` is something else.

    Example:
        >>> optimizer = ALSGradientAccumulationOptimizer(ALSOptimizer(keras.optimizers.SGD(0.1)), 4)
    """

    def __init__(
        self,
        als_optimizer: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool | None = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "ALSGradientAccumulationOptimizer",
    ) -> None:
        _check_count(type(self), num_mini_batches)
        if not isinstance(als_optimizer, ALSOptimizer):
            raise ArgumentError(
                f"ALSGradientAccumulationOptimizer: als_optimizer is {type(als_optimizer).__name__}; it must be an "
                "ALSOptimizer. For others there is GradientAccumulationOptimizer."
            )
        keras.optimizers.LossScaleOptimizer.__init__(self, als_optimizer, name=name)
        self._set(
            als_optimizer,
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
        )

    @property
    def als_optimizer(self) -> ALSOptimizer:
        """The ALSOptimizer."""
        found: ALSOptimizer = self.opt
        return found

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss times the factor.

        Args:
            loss: a tensor.
        """
        return self.opt.get_scaled_loss(loss)

    def reset(self) -> None:
        """Starts again: nothing added up, the initial factor, and nothing counted."""
        self._index.assign(0)
        self.opt.reset()


_LossScale = keras.optimizers.LossScaleOptimizer


def _forwarded(name: str) -> property:
    def read(self: Any) -> Any:
        return getattr(self.opt, name)

    def write(self: Any, value: Any) -> None:
        setattr(self.opt, name, value)

    return property(read, write, doc=f"The ALSOptimizer's `{name}`.")


for _name in (
    "histogram",
    "normalized_histogram",
    "loss_scaling_factor",
    "previous_loss_scaling_factor",
    "update_counter",
    "update_frequency",
    "increase_factor",
    "decrease_factor",
    "initial_loss_scaling_factor",
    "max_loss_scaling_factor",
    "ratio_threshold",
    "accumulate_statistics_over_update_period",
    "captured_grads_only",
    "lpf_alpha",
    "histogram_bin_edge",
):
    setattr(ALSGradientAccumulationOptimizer, _name, _forwarded(_name))


def _is_function(dtype: Any) -> bool:
    return callable(dtype) and not isinstance(dtype, (type, tf.DType))


def _check_count(kind: type, count: int) -> None:
    if count < 1:
        raise ArgumentError(f"{kind.__name__}: num_mini_batches is {count}; it must be at least 1.")
