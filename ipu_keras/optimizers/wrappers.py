"""Optimizers around one of ``tf.compat.v1.train`` that change gradients before it applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.cross_replica_ops import cross_replica_mean

__all__ = ["CrossReplicaOptimizer", "IpuOptimizer", "MapGradientOptimizer"]


class IpuOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Hands everything to another optimizer; the base of those that do a little more.

    Args:
        opt: one of ``tf.compat.v1.train``.
        name: of the optimizer.

    Raises:
        ValueError: `opt` is something else, such as an optimizer of Keras.

    Example:
        >>> class Halved(IpuOptimizer):
        ...     def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        ...         return super().apply_gradients([(g / 2, v) for g, v in grads_and_vars], global_step, name)
    """

    def __init__(self, opt: Any, name: str | None = None) -> None:
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise ArgumentError(
                f"{type(self).__name__}: opt is a {type(opt).__name__}; it must be a tf.compat.v1.train.Optimizer. "
                "Keras's optimizers need no wrapper: their gradients are summed over the replicas, and models and "
                "pipelines accumulate by themselves."
            )
        super().__init__(use_locking=False, name=name or type(self).__name__)
        self._optimizer = opt

    @property
    def reduces_over_replicas(self) -> bool:
        """Whether it, or one inside it, combines the replicas' gradients itself."""
        return bool(getattr(self._optimizer, "reduces_over_replicas", False))

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        """As the inner optimizer does.

        Args:
            loss: a scalar tensor, or a function that gives one.
            var_list: variables; needed in a tf.function if `loss` is a tensor.
            **kwargs: further arguments of the inner optimizer's `compute_gradients`.
        """
        return self._optimizer.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As the inner optimizer does.

        Args:
            grads_and_vars: gradient and variable in pairs.
            global_step: a variable that is increased by one, or None.
            name: of the operation.

        Returns:
            an operation.
        """
        return self._optimizer.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's.

        Args:
            *args: of the inner optimizer's `get_slot`.
            **kwargs: of the inner optimizer's `get_slot`.
        """
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's.

        Args:
            *args: of the inner optimizer's `get_slot_names`.
            **kwargs: of the inner optimizer's `get_slot_names`.
        """
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """The inner optimizer's state."""
        return self._optimizer.variables()


class CrossReplicaOptimizer(IpuOptimizer):
    """Applies the mean of the replicas' gradients, where Keras's optimizers apply the sum.

    Args:
        opt: one of ``tf.compat.v1.train``.
        name: of the optimizer.

    Raises:
        ValueError: `opt` is something else.

    Example:
        >>> optimizer = CrossReplicaOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    """

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt, name)

    @property
    def reduces_over_replicas(self) -> bool:
        """True."""
        return True

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The inner optimizer gets the means.

        Args:
            grads_and_vars: gradient and variable in pairs; a gradient may be None.
            global_step: a variable that is increased by one, or None.
            name: of the operation.

        Returns:
            an operation.
        """
        means = [(None if g is None else cross_replica_mean(g), v) for g, v in grads_and_vars]
        return super().apply_gradients(means, global_step, name)


class MapGradientOptimizer(IpuOptimizer):
    """Changes each gradient by a function before another optimizer applies it.

    Args:
        wrapped_optimizer: one of ``tf.compat.v1.train``.
        gradient_mapping_function: takes a gradient and its variable, and gives the gradient to apply.
        name: of the optimizer.

    Raises:
        ValueError: `wrapped_optimizer` is something else.

    Example:
        >>> decay = MapGradientOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), lambda g, v: g + 1e-4 * v)
    """

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self._function = gradient_mapping_function

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The inner optimizer gets what the function gives.

        Args:
            grads_and_vars: gradient and variable in pairs; a gradient may be None.
            global_step: a variable that is increased by one, or None.
            name: of the operation.

        Returns:
            an operation.
        """
        mapped = [(None if g is None else self._function(g, v), v) for g, v in grads_and_vars]
        return super().apply_gradients(mapped, global_step, name)
