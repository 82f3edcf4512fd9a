"""IPUOutfeedQueue: what a device program gives out as it runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import queues, tfapi
from ipu_keras.keras.refusals import ModeError
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue", "ScopedIPUOutfeedQueue"]


class IPUOutfeedMode(Enum):
    """ALL keeps every element that is put in, LAST only the last one of an execution."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Collects what a program enqueues; the host dequeues it when the program has run.

    Args:
        outfeed_mode: ALL, the default, or LAST.
        device_ordinal: accepted; there is one device.
        buffer_depth: elements that may wait, 1 or more; the emulator keeps all.
        optimise_latency: accepted.

    Raises:
        ValueError: `outfeed_mode` is none, or the depth is below 1.

    Example:
        >>> queue = IPUOutfeedQueue()
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ) -> None:
        del device_ordinal, optimise_latency
        if outfeed_mode is not None and not isinstance(outfeed_mode, IPUOutfeedMode):
            raise ArgumentError(f"outfeed_mode is {outfeed_mode!r}; it must be a member of IPUOutfeedMode.")
        if isinstance(buffer_depth, bool) or not isinstance(buffer_depth, int) or buffer_depth < 1:
            raise ArgumentError(f"buffer_depth is {buffer_depth!r}; it must be a number of 1 or more.")
        self._mode = outfeed_mode or IPUOutfeedMode.ALL
        self._structure: Any = None
        self._specs: list[tf.TensorSpec] = []
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting: list[list[np.ndarray]] = []
        self._ever = False
        self.number = queues.register(self)

    # ---- inside a program ----

    @tfapi.without_autograph
    def enqueue(self, tensors: Any) -> Any:
        """Puts an element in, each time the program comes here.

        Args:
            tensors: a tensor, or tuples, lists and dictionaries of them.

        Returns:
            an operation.

        Raises:
            ValueError: the queue is in this program already: it can only be enqueued once.
        """
        graph = queues.outermost_graph()
        if graph is None:
            raise ArgumentError(
                "IPUOutfeedQueue.enqueue is for a device program: call the function through strategy.run."
            )
        if self.enqueued:
            raise ArgumentError("An outfeed can only be enqueued once in a program; use another queue.")
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(tensors)]
        self._graphs.add(graph)
        self._structure = tf.nest.map_structure(lambda _: None, tensors)
        self._specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
        self._ever = True
        return queues.enqueue(self.number, leaves, self._mode is IPUOutfeedMode.LAST)

    @property
    def enqueued(self) -> bool:
        """Whether the program that is being traced, or an earlier one, has put something in."""
        graph = queues.outermost_graph()
        return self._ever if graph is None else graph in self._graphs

    # ---- on the host ----

    def push(self, leaves: list[np.ndarray]) -> None:
        """What a run has put in.

        Args:
            leaves: for each tensor an array [steps, (replicas,) ...]; one step in LAST mode.
        """
        if self._mode is IPUOutfeedMode.LAST:
            self._waiting = [leaves]
        else:
            self._waiting.append(leaves)

    def pull(self, count: int) -> list[np.ndarray]:
        """Nothing is taken from an outfeed by a program.

        Args:
            count: not used.
        """
        raise ArgumentError("a program cannot dequeue an outfeed queue")

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """What has been put in since the last time.

        Args:
            wait_for_completion: accepted; programs have finished when their call returns.

        Returns:
            the structure that was enqueued. In ALL mode its tensors have a leading axis of steps, then one of replicas
            if there are several, and the queue is empty afterwards; in LAST mode they are those of the last step.

        Raises:
            ValueError: nothing has been enqueued yet.
        """
        del wait_for_completion
        if not self._ever:
            raise ArgumentError("IPUOutfeedQueue.dequeue: the queue has not been enqueued yet by any program.")
        if self._mode is IPUOutfeedMode.LAST:
            if not self._waiting:
                raise ArgumentError("IPUOutfeedQueue.dequeue: no program that enqueues it has run yet.")
            return self._packed([leaf[0] for leaf in self._waiting[-1]])
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return self._packed([np.zeros((0, *s.shape.as_list()), s.dtype.as_numpy_dtype) for s in self._specs])
        return self._packed([np.concatenate(column) for column in zip(*waiting, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        """The elements that have been put in, step by step.

        Raises:
            RuntimeError: in LAST mode, or inside a function.
        """
        if self._mode is IPUOutfeedMode.LAST or tf.inside_function():
            raise ModeError("An IPUOutfeedQueue can be iterated over eagerly and in IPUOutfeedMode.ALL only.")
        return self._steps()

    def _steps(self) -> Iterator[Any]:
        while self._waiting:
            leaves = self._waiting.pop(0)
            for step in range(len(leaves[0]) if leaves else 0):
                yield self._packed([leaf[step] for leaf in leaves])

    def _packed(self, leaves: list[np.ndarray]) -> Any:
        tensors = [tfapi.tensor_from(np.asarray(leaf, order="C")) for leaf in leaves]
        return tf.nest.pack_sequence_as(self._structure, tensors)

    @property
    def deleter(self) -> Any:
        """Forgets what waits."""
        self._waiting = []
        return tf.no_op() if not tf.executing_eagerly() else None


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """The same; it forgets its elements when nobody holds it any more, as every queue here does.

    Args:
        outfeed_mode: as for IPUOutfeedQueue.
        device_ordinal: as for IPUOutfeedQueue.
    """

    def __init__(self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None) -> None:
        super().__init__(outfeed_mode, device_ordinal)
