"""Reads and writes many small variables in one call of TensorFlow, whose price is per call and not per byte.

The functions that do it take as long to be traced as they save in some hundred executions, so they are traced when a
program has run for a while.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import tfapi

__all__ = ["LIMIT_BYTES", "SmallVariables"]

# An eager read and write of a variable cost about 15 us together; copying and comparing 32 KiB costs about 5 us.
LIMIT_BYTES = 32 * 1024
FEWEST = 8  # below, the functions are not worth being traced
PATIENCE = 64  # executions before they are


class _Group:
    """The variables of one dtype, side by side in one array."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.parameters: list[int] = []
        self.handles: list[Any] = []
        self.shapes: list[tuple[int, ...]] = []
        self.slices: list[slice] = []
        self.length = 0

    def add(self, parameter: int, variable: tf.Variable) -> None:
        shape = tuple(variable.shape.as_list())
        size = int(np.prod(shape, dtype=np.int64))
        self.parameters.append(parameter)
        self.handles.append(variable.handle)
        self.shapes.append(shape)
        self.slices.append(slice(self.length, self.length + size))
        self.length += size

    def read(self) -> tf.Tensor:
        """All values, in a function."""
        dtype = tf.as_dtype(self.dtype)
        return tf.concat([tf.reshape(tfapi.read_tensor(handle, dtype), [-1]) for handle in self.handles], 0)

    def values(self) -> np.ndarray:
        """The same, one by one."""
        dtype = tf.as_dtype(self.dtype)
        tensors = [tfapi.read_tensor(handle, dtype) for handle in self.handles]
        return np.concatenate([np.asarray(tfapi.view(tensor)).reshape(-1) for tensor in tensors])

    def assign(self, flat: tf.Tensor, updated: set[int]) -> None:
        """Gives variables their values, in a function."""
        parts = tf.split(flat, [s.stop - s.start for s in self.slices])
        for parameter, handle, shape, part in zip(self.parameters, self.handles, self.shapes, parts, strict=True):
            if parameter in updated:
                tfapi.assign_tensor(handle, tf.reshape(part, shape))

    def assign_values(self, flat: np.ndarray, updated: set[int]) -> None:
        """The same, one by one."""
        for parameter, handle, shape, part in zip(self.parameters, self.handles, self.shapes, self.slices, strict=True):
            if parameter in updated:
                tfapi.assign_tensor(handle, tfapi.tensor_from(flat[part].reshape(shape)))


class SmallVariables:
    """Small variables of a program: compared by value with what the tiles hold.

    Args:
        variables: entry-parameter index -> variable.
        updated: entry-parameter indices that the program gives new values.
    """

    def __init__(self, variables: dict[int, tf.Variable], updated: set[int]) -> None:
        groups: dict[np.dtype, _Group] = {}
        for parameter, variable in variables.items():
            dtype = np.dtype(variable.dtype.as_numpy_dtype)
            groups.setdefault(dtype, _Group(dtype)).add(parameter, variable)
        self._groups = list(groups.values())
        self._known = [np.zeros(group.length, group.dtype) for group in self._groups]
        self._valid = {parameter: False for parameter in variables}
        self._all_valid = False
        self._updated = [
            [(p, s) for p, s in zip(g.parameters, g.slices, strict=True) if p in updated] for g in self._groups
        ]
        self._writable = [i for i, pairs in enumerate(self._updated) if pairs]
        self._names = updated
        self._executions = 0
        self._read: Any = None
        self._assign: Any = None

    def _trace(self) -> None:
        def assign(*flat: tf.Tensor) -> None:
            for i, tensor in zip(self._writable, flat, strict=True):
                self._groups[i].assign(tensor, self._names)

        specs = [tf.TensorSpec((self._groups[i].length,), tf.as_dtype(self._groups[i].dtype)) for i in self._writable]
        self._assign = tf.function(assign, autograph=False).get_concrete_function(*specs)
        read = tf.function(lambda: [group.read() for group in self._groups], autograph=False)
        self._read = read.get_concrete_function()

    def _values(self) -> list[np.ndarray]:
        self._executions += 1
        if self._executions > PATIENCE and self._read is None:
            self._trace()
        if self._read is None:
            return [group.values() for group in self._groups]
        return [np.asarray(tfapi.view(tensor)) for tensor in tfapi.call_in_this_thread(self._read)]

    def invalidate(self) -> None:
        """Forgets what is on the tiles."""
        self._valid = dict.fromkeys(self._valid, False)
        self._all_valid = False

    def upload(self, engine: Any) -> int:
        """Writes those that differ from what the tiles hold.

        Args:
            engine: to write to.

        Returns:
            how many were written.
        """
        written = 0
        for group, known, value in zip(self._groups, self._known, self._values(), strict=True):
            if self._all_valid and np.array_equal(value.view(np.uint8), known.view(np.uint8)):
                continue
            for parameter, shape, part in zip(group.parameters, group.shapes, group.slices, strict=True):
                new = value[part]
                if self._valid[parameter] and new.tobytes() == known[part].tobytes():
                    continue
                self._valid[parameter] = self._all_valid = False  # an interrupted write must not look finished
                engine.write_state(parameter, new.reshape(shape))
                known[part] = new
                self._valid[parameter] = True
                written += 1
        self._all_valid = all(self._valid.values())
        return written

    def collect(self, engine: Any) -> list[np.ndarray]:
        """Reads the new values from the tiles; `assign` then gives them to the variables.

        Args:
            engine: to read from.
        """
        for i in self._writable:
            for parameter, part in self._updated[i]:
                self._known[i][part] = engine.read_state(parameter).reshape(-1)
        # Copies: TensorFlow may share an array's memory, and the next execution writes to `_known`.
        return [self._known[i].copy() for i in self._writable]

    def assign(self, values: list[np.ndarray]) -> None:
        """Gives the variables their new values.

        Args:
            values: from `collect`.
        """
        if not self._writable:
            return
        if self._assign is not None:
            tfapi.call_in_this_thread(self._assign, *map(tfapi.tensor_from, values))
            return
        for i, flat in zip(self._writable, values, strict=True):
            self._groups[i].assign_values(flat, self._names)
