"""What a program over micro-batches and replicas does to gradients before an optimizer sees them, and to seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ipu_keras.frontend import collectives

__all__ = ["Gradients"]


@dataclass(frozen=True)
class Gradients:
    """How gradients are reduced.

    Args:
        accumulate: whether a weight update follows several micro-batches.
        method: ``"SUM"``, ``"MEAN"`` or ``"RUNNING_MEAN"`` over the micro-batches of an iteration.
        dtype: of the sums, or a function of the variable; None for that of each gradient.
        replicas: whose sums are added up.
        identical_seeds: whether all replicas draw the same random numbers.
        norm_group: replicas that share the statistics of a batch normalization.
        checkpoints: whether backward stages work activations out again layer by layer, from what is marked.
    """

    accumulate: bool = False
    method: str = "SUM"
    dtype: Any = None
    replicas: int = 1
    identical_seeds: bool = False
    norm_group: int = 1
    checkpoints: bool = False

    def reduce(self, gradient: Any, variable: Any = None) -> Any:
        """A gradient as the optimizer shall get it: summed over the micro-batches, then over the replicas.

        Args:
            gradient: a tensor or IndexedSlices.
            variable: whose it is, for a dtype that is a function of it.
        """
        if self.accumulate:
            dtype = self.dtype(variable) if callable(self.dtype) else self.dtype
            gradient = collectives.accumulate(gradient, self.method, dtype)
        if self.replicas > 1:
            gradient = collectives.all_reduce(gradient, self.replicas)
        return gradient

    def moments(self, mean: Any, variance: Any) -> tuple[Any, Any]:
        """Mean and variance of a batch, over all replicas of a group.

        Args:
            mean: of a replica's part of the batch.
            variance: of it.
        """
        if self.norm_group == 1:
            return mean, variance

        @tf.custom_gradient
        def over_group(value: Any) -> Any:
            total = lambda v: collectives.all_reduce(v, self.replicas, self.norm_group) / self.norm_group  # noqa: E731
            return total(value), total

        common = over_group(mean)
        return common, over_group(variance + mean * mean) - common * common

    def seed(self, seed: Any) -> Any:
        """A seed as a replica shall use it.

        Args:
            seed: two integers, the same on all replicas.
        """
        if self.replicas == 1 or self.identical_seeds:
            return seed
        own = tf.cast(collectives.replica_index(), seed.dtype) * tf.constant(0x9E3779B9, seed.dtype)
        return seed + tf.stack([tf.zeros((), seed.dtype), own])
