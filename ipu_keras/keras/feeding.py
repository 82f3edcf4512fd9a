"""`next(iterator)` inside a function that runs on the device: the batches of one execution are sent together.

How many batches an execution takes is known when it has run: loops may be anywhere in the function. So the first
execution of a shape is a rehearsal with one batch, which is thrown away but for its count; then the program is compiled
for as many batches as were asked for. All batches of an execution lie on the tiles at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.errors import DataError
from ipu_keras.frontend import tfapi

__all__ = ["Feeding", "has_iterator"]


def has_iterator(arguments: Any) -> bool:
    """Whether a dataset's iterator is among a function's arguments."""
    return any(isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten(arguments))


class _Feed:
    """Stands for an iterator while a function is traced: each call takes the batch at a position on the device."""

    def __init__(self, stacks: Any, position: tf.Variable) -> None:
        self._stacks, self._position = stacks, position

    def __iter__(self) -> _Feed:
        return self

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
        self._counts: dict[Any, list[int]] = {}
        self._pulled: dict[int, tuple[Any, list[Any]]] = {}
        positions = self._positions

        def fed(stacks: list[Any], arguments: Any) -> Any:
            for position in positions:
                position.assign(0)
            feeds = iter([_Feed(stack, position) for stack, position in zip(stacks, positions, strict=False)])
            leaves = [next(feeds) if leaf is _ITERATOR else leaf for leaf in tf.nest.flatten(arguments)]
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
        iterators = [leaf for leaf in leaves if isinstance(leaf, tf.data.Iterator)]
        while len(self._positions) < len(iterators):
            self._positions.append(tf.Variable(0, trainable=False, name=f"position_{len(self._positions)}"))
        plain = [_ITERATOR if isinstance(leaf, tf.data.Iterator) else leaf for leaf in leaves]
        packed = tf.nest.pack_sequence_as(arguments, plain)
        first = [self._stack(self._pull(iterator, 1)) for iterator in iterators]
        key = tuple((a.shape, a.dtype.str) for stack in first for a in tf.nest.flatten(stack))
        if key not in self._counts:
            self._counts[key] = self._rehearse(first, packed, len(iterators))
        stacks = []
        for iterator, count, stack in zip(iterators, self._counts[key], first, strict=True):
            stacks.append(stack if count <= 1 else self._stack(self._pull(iterator, count)))
        result = self._runner((stacks, packed), {})
        for iterator, count in zip(iterators, self._counts[key], strict=True):
            del self._pulled[id(iterator)][1][:count]
        return result

    def _rehearse(self, stacks: list[Any], packed: Any, n: int) -> list[int]:
        """How many batches of each iterator the function takes."""
        program, arrays = self._runner.program((stacks, packed), {})
        program.sync.upload()
        program.engine.run(program.feeds_of([a[None] for a in arrays]))
        counts = []
        for position in self._positions[:n]:
            parameter = next((p for p, v in program.traced.variables.items() if v is position), None)
            counts.append(0 if parameter is None else int(program.engine.read_state(parameter)))
        program.sync.invalidate()  # what it computed was for nothing
        return counts

    def _pull(self, iterator: Any, count: int) -> list[Any]:
        """The next `count` elements, which stay until an execution has used them."""
        _, waiting = self._pulled.setdefault(id(iterator), (iterator, []))
        while len(waiting) < count:
            try:
                waiting.append(next(iterator))
            except StopIteration as end:
                raise tf.errors.OutOfRangeError(
                    None, None, f"{self._name} takes {count} batches, the dataset has {len(waiting)} left"
                ) from end
        return waiting[:count]

    def _stack(self, elements: list[Any]) -> Any:
        arrays = [[np.asarray(tfapi.view(leaf)) for leaf in tf.nest.flatten(e)] for e in elements]
        shapes = {tuple(a.shape for a in element) for element in arrays}
        if len(shapes) > 1:
            sizes = " and ".join(map(str, sorted(shapes)))
            raise DataError(f"{self._name}: batches of {sizes} in one execution; use drop_remainder=True")
        return tf.nest.pack_sequence_as(elements[0], [np.stack(column) for column in zip(*arrays, strict=True)])


_ITERATOR = "the place of an iterator"
