"""Gradient accumulation around an optimizer of ``tf.compat.v1.train``, for loops of one's own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.frontend import tfapi
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod as Method
from ipu_keras.ops._accumulation import accumulated
from ipu_keras.ops._refusals import ArgumentError
from ipu_keras.ops.cross_replica_ops import cross_replica_mean
from ipu_keras.optimizers.wrappers import IpuOptimizer

__all__ = ["CrossReplicaGradientAccumulationOptimizerV2", "GradientAccumulationOptimizerV2"]


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """Applies the gradients of several mini-batches at once, at each `num_mini_batches`-th call of `apply_gradients`.

    It stands in a loop of the device, whose turns are the mini-batches.

    Args:
        opt: one of ``tf.compat.v1.train``.
        num_mini_batches: how many calls make an update.
        offload_weight_update_variables: accepted; where state lies changes no result.
        replicated_optimizer_state_sharding: accepted, for the same reason.
        dtype: of the accumulators, or a function that gives it for a variable; None for the variable's. The inner
            optimizer gets gradients of this dtype.
        reduction_method: ``"sum"``, ``"mean"``, ``"running_mean"`` or a GradientAccumulationReductionMethod.
        name: of the optimizer.

    Raises:
        ValueError: `num_mini_batches` is below 1, or `opt` is no optimizer of ``tf.compat.v1.train``.

    Example:
        >>> optimizer = GradientAccumulationOptimizerV2(tf.compat.v1.train.GradientDescentOptimizer(0.1), 4)
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ) -> None:
        super().__init__(opt, name)
        del offload_weight_update_variables, replicated_optimizer_state_sharding
        if isinstance(num_mini_batches, bool) or not isinstance(num_mini_batches, int) or num_mini_batches < 1:
            raise ArgumentError(f"{name}: num_mini_batches is {num_mini_batches!r}; it must be a number of 1 or more.")
        self._count, self._dtype, self._method = num_mini_batches, dtype, Method.parse(reduction_method)
        self._sums: dict[Any, tf.Variable] = {}
        self._turn: tf.Variable | None = None

    def variables(self) -> Any:
        """The accumulators, the number of the mini-batch, then the inner optimizer's state."""
        own = [*self._sums.values(), *([self._turn] if self._turn is not None else [])]
        return own + list(self._optimizer.variables())

    @tfapi.without_autograph
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Adds the gradients up; the inner optimizer gets what the last of the mini-batches makes of them.

        Args:
            grads_and_vars: gradient and variable in pairs; a gradient may be None.
            global_step: a variable that is increased by one at each update, or None.
            name: of the operation.

        Returns:
            an operation.
        """
        pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ArgumentError(f"{self.get_name()}: there is no gradient for any variable.")
        turn = self._counter()
        index = tf.convert_to_tensor(turn)
        totals = []
        for gradient, variable in pairs:
            accumulator = self._accumulator(variable)
            total = accumulated(tf.convert_to_tensor(accumulator), gradient, index, self._count, self._method)
            accumulator.assign(total)
            totals.append(self._reduced(total))
        made = [v for _, v in pairs]
        self._make_slots(made)

        def update() -> Any:
            done = self._optimizer.apply_gradients(list(zip(totals, made, strict=True)), global_step, name)
            with tf.control_dependencies([done]):
                return tf.constant(0)

        following = tf.cond(tf.equal(index, self._count - 1), update, lambda: index + 1)
        return turn.assign(following).op

    def _reduced(self, total: Any) -> Any:
        """What the inner optimizer gets of a sum."""
        return total

    def _counter(self) -> tf.Variable:
        if self._turn is None:
            with tf.init_scope():
                self._turn = tf.Variable(0, trainable=False, name=f"{self.get_name()}/mini_batch")
        return self._turn

    def _accumulator(self, variable: Any) -> tf.Variable:
        key = id(variable)
        if key not in self._sums:
            given = self._dtype(variable) if callable(self._dtype) and not _is_dtype(self._dtype) else self._dtype
            dtype = variable.dtype.base_dtype if given is None else tf.as_dtype(given)
            label = variable.name.split(":")[0]
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, dtype)
                self._sums[key] = tf.Variable(zeros, trainable=False, name=f"{label}/{self.get_name()}")
        return self._sums[key]

    def _make_slots(self, variables: list[Any]) -> None:
        """The inner optimizer's state is made before the branch that updates it: a branch cannot make variables."""
        inner = self._optimizer
        while isinstance(inner, IpuOptimizer):
            inner = inner._optimizer
        with tf.init_scope():
            inner._create_slots(variables)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """`GradientAccumulationOptimizerV2`, and the mean over the replicas of what was accumulated.

    Args:
        opt: one of ``tf.compat.v1.train``.
        num_mini_batches: how many calls make an update.
        offload_weight_update_variables: accepted.
        replicated_optimizer_state_sharding: accepted.
        dtype: of the accumulators, or a function that gives it for a variable.
        reduction_method: over the mini-batches.
        name: of the optimizer.

    Raises:
        ValueError: as for GradientAccumulationOptimizerV2.

    Example:
        >>> sgd = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        >>> optimizer = CrossReplicaGradientAccumulationOptimizerV2(sgd, 4, reduction_method="mean")
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "CrossReplicaGradientAccumulationOptimizerV2",
    ) -> None:
        super().__init__(
            opt,
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
            name,
        )

    @property
    def reduces_over_replicas(self) -> bool:
        """True."""
        return True

    def _reduced(self, total: Any) -> Any:
        return cross_replica_mean(total)


def _is_dtype(dtype: Any) -> bool:
    return isinstance(dtype, (type, tf.DType))
