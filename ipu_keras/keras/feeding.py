"""`next(iterator)` inside a function that runs on the device: the batches of one execution are sent together.

How many batches an execution takes is known when it has run: loops may be anywhere in the function, and may depend on
the data. So an execution is an attempt with as many batches as the last one took (one, at first). Where more were asked
for than were sent, its states are forgotten and it is made again with more; what was sent and not asked for waits for
the next execution on a device (`next(iterator)` on the host does not see it). All batches of an execution lie on the
tiles at once.

Replicas share a dataset: each call takes one batch for every replica, in the replicas' order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.errors import DataError, UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.keras.refusals import Float64Error
from ipu_keras.keras.session import last_step
from ipu_runtime.errors import LoopLimitError

__all__ = ["Feeding", "has_iterator"]


def has_iterator(arguments: Any) -> bool:
    """Whether a dataset's iterator is among a function's arguments."""
    return any(isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten(arguments))


class _Feed:
    """Stands for an iterator while a function is traced: each call takes the batch at a position on the device."""

    def __init__(self, stacks: Any, position: tf.Variable) -> None:
        self._stacks, self._position = stacks, position

    def __iter__(self) -> _Feed:
        raise UnsupportedError(
            "a loop over an iterator to the data's end cannot run on the device, which does not see the end: write "
            "`for _ in tf.range(steps): batch = next(iterator)`.",
            ["for batch in iterator"],
        )

    def __next__(self) -> Any:
        index = self._position.read_value()
        self._position.assign_add(1)
        return tf.nest.map_structure(lambda stack: tf.gather(stack, index), self._stacks)

    get_next = __next__

    def get_next_as_optional(self) -> Any:
        """Not there.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("get_next_as_optional of an iterator on an IPU: the device cannot see the data's end")


class _Queue:
    """Elements that have been pulled from an iterator and not been used yet; they stay with the iterator.

    Attributes:
        ended: the iterator has no more.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator, self.elements, self.ended = iterator, list[Any](), False

    @classmethod
    def of(cls, iterator: Any) -> _Queue:
        """The queue of an iterator, whichever function it is handed to."""
        queue: _Queue = vars(iterator).setdefault("_ipu_queue", cls(iterator))
        return queue

    def take(self, count: int) -> list[Any]:
        """The first `count` elements, or as many as there are of the first one's shapes."""
        while len(self.elements) < count and not self.ended:
            try:
                self.elements.append(next(self._iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                self.ended = True
        alike = itertools.takewhile(lambda e: shapes_of(e) == shapes_of(self.elements[0]), self.elements)
        return list(itertools.islice(alike, count))


def shapes_of(element: Any) -> Any:
    """What a program depends on."""
    return tuple((tuple(leaf.shape), leaf.dtype.name) for leaf in tf.nest.flatten(element))


TURNS = 10_000
"""Turns of loops for each batch sent, after which an attempt is given up for one with more batches."""


LAST_TURNS = 1_000_000
"""The same where all that a dataset has left was sent."""


class Feeding:
    """Runs a function whose arguments hold iterators.

    Args:
        function: the user's tf.function.
        make: makes a runner for a tf.function of tensors; see `run.FunctionRunner`.
        name: for messages.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[[Any], Any], name: str) -> None:
        self._name = name
        self._positions: list[tf.Variable] = []
        self._room: dict[Any, list[int]] = {}
        positions = self._positions

        def fed(stacks: list[Any], arguments: Any) -> Any:
            for position in positions:
                position.assign(0)
            feeds = {f"{_ITERATOR} {i}": _Feed(stack, positions[i]) for i, stack in enumerate(stacks)}
            leaves = [feeds.get(leaf, leaf) if isinstance(leaf, str) else leaf for leaf in tf.nest.flatten(arguments)]
            args, kwargs = tf.nest.pack_sequence_as(arguments, leaves)
            return function(*args, **kwargs)

        fed.__name__ = name
        self._runner = make(tf.function(tfapi.without_autograph(fed)))

    def __call__(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Runs the function.

        Args:
            arguments: positional and keyword arguments.

        Raises:
            OutOfRangeError: a dataset has fewer batches left than the function takes.
            DataError: the batches of one execution differ in shape.
        """
        leaves = tf.nest.flatten(arguments)
        iterators = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, tf.data.Iterator)}.values())
        number = {id(iterator): i for i, iterator in enumerate(iterators)}
        while len(self._positions) < len(iterators):
            self._positions.append(tf.Variable(0, trainable=False, name=f"position_{len(self._positions)}"))
        plain = [f"{_ITERATOR} {number[id(leaf)]}" if id(leaf) in number else leaf for leaf in leaves]
        packed = tf.nest.pack_sequence_as(arguments, plain)
        queues = [_Queue.of(iterator) for iterator in iterators]
        replicas = self._runner.replicas
        for queue in queues:
            if not queue.take(1):
                raise self._too_few(replicas, queue, [])
        room = self._room.setdefault(tuple(shapes_of(queue.elements[0]) for queue in queues), [1] * len(queues))
        for attempt in itertools.count():
            sent = [queue.take(n * replicas) for queue, n in zip(queues, room, strict=True)]
            # A replica's share of each iterator; all are alike for the program.
            stacks = [
                [self._stack(have[r::replicas] or have[-1:], n) for have, n in zip(sent, room, strict=True)]
                for r in range(replicas)
            ]
            program, arrays = self._runner.program((stacks[0], packed), {})
            if (program.parallel.replicas, program.iterations * program.parallel.micro_batches) != (replicas, 1):
                raise UnsupportedError(
                    f"{self._name} is a pipeline or accumulates gradients, and has an iterator as an argument: its "
                    "micro-batches come from an IPUInfeedQueue.",
                    ["an iterator for a function with micro-batches"],
                )
            shares = zip(*map(tf.nest.flatten, stacks), strict=True)
            fed = [np.stack(share)[None] if replicas > 1 else share[0][None] for share in shares]
            arrays = [*fed, *(self._runner.for_all(program, array) for array in arrays[len(fed) :])]
            everything = [
                queue.ended or len(have) < n * replicas for queue, have, n in zip(queues, sent, room, strict=True)
            ]
            turns = LAST_TURNS if all(everything) else min(TURNS * sum(room) * 4**attempt, 1 << 62)
            taken = self._attempt(program, arrays, turns)
            if taken is None:  # perhaps a loop that waits for data that it does not get
                if all(everything):
                    text = f"the dataset has ended, and the function's loops went back {turns:,} times since"
                    raise tf.errors.OutOfRangeError(
                        None, None, f"{self._name}: {text}: a loop that waits for data never ends"
                    )
                room[:] = [n if all_ else 8 * n for all_, n in zip(everything, room, strict=True)]
                continue
            results, each = taken
            counts = [max(numbers) for numbers in each]
            short = [i for i, have in enumerate(sent) if counts[i] > len(have) // replicas]
            if not short and all(len(numbers) == 1 for numbers in each):
                break
            program.sync.invalidate()
            if not short:
                uneven = " and ".join(map(str, next(sorted(numbers) for numbers in each if len(numbers) > 1)))
                raise DataError(
                    f"{self._name}: its replicas took {uneven} batches of an iterator. They share the dataset batch by "
                    "batch, so each must take as many as the others."
                )
            for i in short:
                if everything[i] and len(sent[i]) < room[i] * replicas:
                    raise self._too_few(counts[i] * replicas, queues[i], sent[i])
                room[i] = max(counts[i], room[i] + 1)
        program.commit()
        for queue, count in zip(queues, counts, strict=False):
            del queue.elements[: count * replicas]
        return program.pack(results, functools.partial(last_step, replicas=replicas))

    @property
    def latest(self) -> Any:
        """The program of the last execution."""
        return self._runner.latest

    def _attempt(self, program: Any, arrays: list[np.ndarray], turns: int) -> tuple[Any, list[set[int]]] | None:
        """Results, and how many batches of each iterator the replicas took; None where loops went on too long."""
        try:
            results = program.attempt(arrays, 1, turns)
        except LoopLimitError:
            return None
        counts = []
        for position in self._positions:
            parameter = next((p for p, v in program.traced.variables.items() if v is position), None)
            replicas = range(self._runner.replicas if parameter is not None else 0)
            counts.append({int(program.engine.read_state(parameter, r)) for r in replicas} or {0})
        return results, counts

    def _array(self, leaf: Any) -> np.ndarray:
        dtype = leaf.dtype
        if dtype == tf.float64:
            raise Float64Error(
                f"Unsupported data type for input/output: float64. An element of an iterator of {self._name} has it "
                f"(shape {list(leaf.shape)}); cast it to float32 in the dataset."
            )
        if dtype == tf.string:
            raise DataError(f"{self._name}: an element of an iterator is a string tensor; a device has none.")
        return np.asarray(tfapi.view(leaf))

    def _too_few(self, wanted: int, queue: _Queue, sent: list[Any]) -> Exception:
        if len(queue.elements) > len(sent) and sent:
            sizes = " and ".join(str(shapes_of(queue.elements[i])) for i in (0, len(sent)))
            return DataError(f"{self._name}: batches of {sizes} in one execution; use drop_remainder=True")
        text = f"{self._name} takes {wanted} batches, the dataset has {len(queue.elements)} left"
        return tf.errors.OutOfRangeError(None, None, text)

    def _stack(self, elements: list[Any], room: int) -> Any:
        """Elements as one array for each leaf; the last one stands for those that are missing."""
        arrays = [[self._array(leaf) for leaf in tf.nest.flatten(e)] for e in elements]
        arrays += arrays[-1:] * (room - len(arrays))
        return tf.nest.pack_sequence_as(elements[0], [np.stack(column) for column in zip(*arrays, strict=True)])


_ITERATOR = "the place of an iterator"
