"""IPUInfeedQueue: the elements of a dataset, taken one by one inside a device program."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.errors import DataError
from ipu_keras.frontend import queues, tfapi
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["IPUInfeedQueue"]

DEPTH = 3


class IPUInfeedQueue:
    """Hands the elements of a dataset to `loops.repeat` or `pipelining_ops.pipeline`.

    Each time the program takes an element it is streamed to the tiles; with several replicas each takes its own, in
    turn.

    Args:
        dataset: whose elements have full shapes.
        device_ordinal: accepted; there is one device.
        prefetch_depth: elements that are fetched ahead, 1 to 255; None or 0 for 3. The emulator does not overlap them.
        optimise_latency: accepted.

    Raises:
        ValueError: an element's shape is not fully defined, or the depth cannot be.

    Example:
        >>> queue = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.ones((4, 2), np.float32)))
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
    ) -> None:
        del device_ordinal, optimise_latency
        self._depth = prefetch_depth or DEPTH
        if isinstance(self._depth, bool) or not isinstance(self._depth, int) or not 1 <= self._depth <= 255:
            raise ArgumentError(f"prefetch_depth is {prefetch_depth!r}; it must be a number from 1 to 255.")
        self._dataset, self._spec = dataset, dataset.element_spec
        for spec in tf.nest.flatten(self._spec):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
                raise ArgumentError(
                    f"IPUInfeedQueue: an element of the dataset is {spec}, and a device program has fixed shapes: use "
                    ".batch(n, drop_remainder=True)."
                )
            if spec.dtype in (tf.float64, tf.string):
                raise ArgumentError(f"IPUInfeedQueue: the dataset has {spec.dtype.name} elements; a device has none.")
        self._iterator: Any = None
        self._taken = False
        self.number = queues.register(self)

    @property
    def number_of_tuple_elements(self) -> int:
        """Tensors of an element."""
        return len(tf.nest.flatten(self._spec))

    @property
    def dequeued(self) -> bool:
        """Whether a program takes elements from it."""
        return self._taken

    @property
    def initializer(self) -> Any:
        """Starts the dataset again."""
        self._iterator = None
        return tf.no_op() if not tf.executing_eagerly() else None

    @property
    def deleter(self) -> Any:
        """Forgets what was fetched."""
        return self.initializer

    def get_next(self) -> Any:
        """Not there any more.

        Raises:
            ValueError: always; loops.repeat and pipelining_ops.pipeline take the elements.
        """
        raise ArgumentError("IPUInfeedQueue.get_next is obsolete: hand the queue to loops.repeat or a pipeline.")

    @tfapi.without_autograph
    def _dequeue(self) -> Any:
        """The next element, inside a program: a structure of tensors."""
        if not tf.inside_function():
            raise ArgumentError("An IPUInfeedQueue is dequeued inside a device program: call it through strategy.run.")
        self._taken = True
        # 64-bit integers stay what they are for the program; they travel as 32 bits.
        leaves = queues.dequeue(self.number, tf.nest.flatten(self._spec))
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def pull(self, count: int) -> list[np.ndarray]:
        """The next elements for a run.

        Args:
            count: how many.

        Raises:
            OutOfRangeError: the dataset has fewer left.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        elements = []
        for _ in range(count):
            try:
                elements.append(tf.nest.flatten(next(self._iterator)))
            except StopIteration:
                break
        if len(elements) < count:
            raise tf.errors.OutOfRangeError(
                None,
                None,
                f"the program takes {count} elements of an infeed queue, its dataset has {len(elements)} left",
            )
        if not elements:
            return [np.zeros((0, *s.shape.as_list()), s.dtype.as_numpy_dtype) for s in tf.nest.flatten(self._spec)]
        return [np.stack([np.asarray(tfapi.view(leaf)) for leaf in column]) for column in zip(*elements, strict=True)]

    def push(self, leaves: list[np.ndarray]) -> None:
        """Nothing is put into an infeed.

        Args:
            leaves: not used.
        """
        raise DataError("an infeed queue takes no results")
