"""IPUOutfeedQueue: what a device program gives out as it runs."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import queues, tfapi
from ipu_keras.frontend.once import Once
from ipu_keras.keras.refusals import ModeError
from ipu_keras.ops._refusals import ArgumentError

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue", "ScopedIPUOutfeedQueue"]


class HostOnlyError(ModeError):
    """A queue is emptied in a function, and not eagerly."""

    # AutoGraph passes on only exceptions whose constructor it knows; others it replaces by a StagingError.
    __init__ = Exception.__init__  # type: ignore[assignment]


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
        self._programs = Once()
        self._inlets: list[_Inlet] = []
        self._waiting: deque[_Run] = deque()
        self._lock = threading.Lock()
        self._made_in = threading.get_ident()

    # ---- inside a program ----

    @tfapi.without_autograph
    def enqueue(self, tensors: Any) -> Any:
        """Puts an element in, each time the program comes here.

        Args:
            tensors: a tensor, or tuples, lists and dictionaries of them.

        Returns:
            an operation.

        Raises:
            ValueError: the queue is in this program already: it can only be enqueued once. Or there is no tensor.
        """
        if not tf.inside_function():
            raise ArgumentError(
                "IPUOutfeedQueue.enqueue is for a device program: call the function through strategy.run."
            )
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(tensors)]
        if not leaves:
            raise ArgumentError("IPUOutfeedQueue.enqueue: there is no tensor in what is to be put in.")
        if self._programs.add():
            raise ArgumentError(f"An outfeed {_ONCE}")
        specs = tf.nest.pack_sequence_as(tensors, [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves])
        inlet = _Inlet(self, specs)
        self._inlets.append(inlet)
        return queues.enqueue(inlet.number, leaves, self._mode is IPUOutfeedMode.LAST)

    @property
    def enqueued(self) -> bool:
        """Whether the program that is being traced puts something in; outside of one, whether any does."""
        return self._programs.here() if tf.inside_function() else bool(self._inlets)

    # ---- on the host ----

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """What has been put in since the last time.

        Args:
            wait_for_completion: accepted; programs have finished when their call returns.

        Returns:
            the structure that was enqueued. In ALL mode its tensors have a leading axis of steps, then one of replicas
            if there are several, and the queue is empty afterwards; in LAST mode they are those of the last step. A
            thread that did not make the queue gets [] while no program has put something in.

        Raises:
            ValueError: no program has put something in yet; or what waits is of several shapes.
            RuntimeError: it is called in a function, which would keep what is there now for ever.

        Example:
            >>> strategy.run(train)
            >>> queue.dequeue()["loss"]
        """
        del wait_for_completion
        self._check_on_host("dequeue")
        with self._lock:
            if self._mode is IPUOutfeedMode.LAST:
                if not self._waiting:
                    return self._nothing_yet()
                last = self._waiting[-1]
                return last.inlet.pack([leaf[-1] for leaf in last.leaves])
            if not self._inlets:
                return self._nothing_yet()
            runs = list(self._waiting)
            if not runs:
                return self._inlets[-1].empty()
            if any(run.inlet.kind != runs[0].inlet.kind for run in runs):
                raise ArgumentError(
                    "IPUOutfeedQueue.dequeue: elements of several shapes wait, which make no tensor: dequeue after each"
                    " program, or iterate over the queue."
                )
            self._waiting.clear()
        parts = [[leaf[run.next :] for leaf in run.leaves] for run in runs]
        return runs[-1].inlet.pack([np.concatenate(column) for column in zip(*parts, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        """The elements that have been put in, step by step; each leaves the queue as it is handed out.

        Raises:
            RuntimeError: in LAST mode, or inside a function.
            ValueError: no program has put something in yet.
        """
        if self._mode is IPUOutfeedMode.LAST:
            raise ModeError("An IPUOutfeedQueue can be iterated over in IPUOutfeedMode.ALL only; dequeue it.")
        self._check_on_host("iteration")
        if not self._inlets:
            self._nothing_yet()
        return self._steps()

    def _steps(self) -> Iterator[Any]:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                run = self._waiting[0]
                step = [leaf[run.next] for leaf in run.leaves]
                run.next += 1
                if run.next == len(run.leaves[0]):
                    self._waiting.popleft()
            yield run.inlet.pack(step)

    def _nothing_yet(self) -> list[Any]:
        """Another thread may ask again and again; the one that would have to run the program waits in vain."""
        if threading.get_ident() == self._made_in:
            raise ArgumentError("IPUOutfeedQueue.dequeue: the queue has not been enqueued yet by any program.")
        return []

    def _check_on_host(self, what: str) -> None:
        if tf.inside_function():
            raise HostOnlyError(
                f"IPUOutfeedQueue: {what} in a tf.function would give what waits now, whenever the function runs: the "
                "queue is emptied eagerly, after strategy.run."
            )

    def _take(self, inlet: _Inlet, leaves: list[np.ndarray]) -> None:
        if not len(leaves[0]):
            return
        with self._lock:
            if self._mode is IPUOutfeedMode.LAST:
                self._waiting.clear()
            self._waiting.append(_Run(inlet, leaves))

    @property
    def deleter(self) -> Any:
        """Forgets what waits."""
        with self._lock:
            self._waiting.clear()
        return tf.no_op() if not tf.executing_eagerly() else None


_ONCE = "can only be enqueued once in a program: put all tensors into one call of enqueue, or use another queue."


class _Inlet:
    """The place of a program where elements are put in: it knows their structure.

    Args:
        queue: that it belongs to.
        specs: shape and dtype of each tensor, in the structure.
    """

    def __init__(self, queue: IPUOutfeedQueue, specs: Any) -> None:
        self._queue, self._structure = weakref.ref(queue), tf.nest.map_structure(lambda _: None, specs)
        self._specs = tf.nest.flatten(specs)
        self._replicas: tuple[int, ...] = ()
        self.number = queues.register(self)

    @property
    def kind(self) -> Any:
        """Equal for elements that can lie behind one another."""
        return repr(self._structure), tuple((spec.dtype, tuple(spec.shape)) for spec in self._specs)

    def pack(self, leaves: list[np.ndarray]) -> Any:
        """Arrays as tensors in the structure.

        Args:
            leaves: an array for each tensor.
        """
        tensors = [tfapi.tensor_from(np.asarray(leaf, order="C")) for leaf in leaves]
        return tf.nest.pack_sequence_as(self._structure, tensors)

    def empty(self) -> Any:
        """No step."""
        shapes = [(0, *self._replicas, *spec.shape.as_list()) for spec in self._specs]
        return self.pack([np.zeros(s, spec.dtype.as_numpy_dtype) for s, spec in zip(shapes, self._specs, strict=True)])

    def push(self, leaves: list[np.ndarray]) -> None:
        """What a run has put in.

        Args:
            leaves: for each tensor an array [steps, (replicas,) ...]; one step in LAST mode.

        Raises:
            ValueError: several places of the program put something in.
        """
        if len(leaves) != len(self._specs):
            raise ArgumentError(f"An outfeed {_ONCE} Here a function that enqueues it is called several times.")
        self._replicas = leaves[0].shape[1 : leaves[0].ndim - len(self._specs[0].shape)]
        queue = self._queue()
        if queue is not None:
            queue._take(self, leaves)

    def pull(self, count: int) -> list[np.ndarray]:
        """Nothing is taken from an outfeed by a program.

        Args:
            count: not used.
        """
        raise ArgumentError("a program cannot dequeue an outfeed queue")


class _Run:
    """What one run has put in.

    Attributes:
        next: the first step that has not been handed out.
    """

    def __init__(self, inlet: _Inlet, leaves: list[np.ndarray]) -> None:
        self.inlet, self.leaves, self.next = inlet, leaves, 0


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """The same; it forgets its elements when nobody holds it any more, as every queue here does.

    Args:
        outfeed_mode: as for IPUOutfeedQueue.
        device_ordinal: as for IPUOutfeedQueue.
    """

    def __init__(self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None) -> None:
        super().__init__(outfeed_mode, device_ordinal)
