"""IPUInfeedQueue: the elements of a dataset, taken one by one inside a device program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.errors import DataError
from ipu_keras.frontend import queues, tfapi
from ipu_keras.frontend.once import Once
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = ["IPUInfeedQueue"]

DEPTH = 3
DTYPES = (
    tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64, tf.float16, tf.float32,
)  # fmt: skip


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
        TypeError: `dataset` is none.
        ValueError: an element's shape is not fully defined, it has a dtype that a device has not, or the depth cannot
            be.

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
        if not isinstance(dataset, tf.data.Dataset):
            raise ArgumentTypeError(f"dataset is a {type(dataset).__name__}; it must be a tf.data.Dataset.")
        self._dataset, self._spec = dataset, dataset.element_spec
        for spec in tf.nest.flatten(self._spec):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
                raise ArgumentError(
                    f"IPUInfeedQueue: an element of the dataset is {spec}, and a device program has fixed shapes: use "
                    ".batch(n, drop_remainder=True)."
                )
            if spec.dtype not in DTYPES:
                raise ArgumentError(
                    f"IPUInfeedQueue: the dataset has {spec.dtype.name} elements, which a device does not take: cast "
                    "them with dataset.map."
                )
        self._iterator: Any = None
        self._ahead: list[Any] = []
        self._programs = Once()
        self._taken = False
        self.number = queues.register(self)

    @property
    def number_of_tuple_elements(self) -> int:
        """Tensors of an element."""
        return len(tf.nest.flatten(self._spec))

    @property
    def dataset(self) -> tf.data.Dataset:
        """Where its elements come from."""
        return self._dataset

    @property
    def dequeued(self) -> bool:
        """Whether a program takes elements from it."""
        return self._taken

    @property
    def initializer(self) -> Any:
        """Starts the dataset again."""
        self._iterator, self._ahead = None, []
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
        if self._programs.add():
            raise ArgumentError(
                "An infeed queue is dequeued once in a program, which takes its elements in one order: use one loop, "
                "or a queue for each."
            )
        self._taken = True
        # 64-bit integers stay what they are for the program; they travel as 32 bits.
        leaves = queues.dequeue(self.number, tf.nest.flatten(self._spec))
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The next element as arguments of a function: a dictionary's by name, others by position."""
        element = self._dequeue()
        if isinstance(element, Mapping):
            return (), dict(element)
        return (tuple(element) if isinstance(element, (tuple, list)) else (element,)), {}

    def pull(self, count: int) -> list[np.ndarray]:
        """The next elements for a run.

        Args:
            count: how many.

        Raises:
            OutOfRangeError: the dataset has fewer left.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        while len(self._ahead) < count:
            element = next(self._iterator, None)
            if element is None:
                # What is left stays for a program that takes less.
                raise tf.errors.OutOfRangeError(
                    None,
                    None,
                    f"the program takes {count} elements of an infeed queue, and its dataset has {len(self._ahead)} "
                    "left: repeat() the dataset, take fewer, or start it again with the queue's `initializer`",
                )
            self._ahead.append(tf.nest.flatten(element))
        elements, self._ahead = self._ahead[:count], self._ahead[count:]
        if not elements:
            return [np.zeros((0, *s.shape.as_list()), s.dtype.as_numpy_dtype) for s in tf.nest.flatten(self._spec)]
        return [np.stack([np.asarray(tfapi.view(leaf)) for leaf in column]) for column in zip(*elements, strict=True)]

    def push(self, leaves: list[np.ndarray]) -> None:
        """Nothing is put into an infeed.

        Args:
            leaves: not used.
        """
        raise DataError("an infeed queue takes no results")
