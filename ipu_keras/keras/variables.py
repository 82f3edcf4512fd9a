"""Keeps the variables of a program on the tiles and on the host the same, copying only what has changed."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler import synthetic
from ipu_keras.frontend import tfapi
from ipu_keras.keras import packing

__all__ = ["NoSync", "VariableSync"]


class VariableSync:
    """The state of one engine against the tf.Variables (and captured tensors) that it stands for.

    A variable's last synchronised value is held as a tensor that shares the variable's buffer. TensorFlow writes to a
    buffer in place only when nobody else holds it, so as long as it is held, a variable that was changed in whatever
    way (assign, set_weights, a checkpoint, another engine's write-back) has another buffer, and a variable with the
    same buffer has the same value. With another buffer (TensorFlow reads a variable by copying after a sparse update),
    and for small variables, values are compared.

    Not thread safe; a program runs for one caller at a time.

    Args:
        engine: the engine (see ``ipu_keras.compiler``).
        variables: entry-parameter index -> variable.
        constants: entry-parameter index -> captured eager tensor.
        updated: entry-parameter indices that the program gives new values.
    """

    def __init__(
        self, engine: Any, variables: dict[int, tf.Variable], constants: dict[int, Any], updated: list[int]
    ) -> None:
        self._engine = engine
        self._constants = constants
        small = {p: v for p, v in variables.items() if _bytes(v) <= packing.LIMIT_BYTES}
        self._small = packing.SmallVariables(small, set(updated)) if len(small) >= packing.FEWEST else None
        large = variables if self._small is None else {p: v for p, v in variables.items() if p not in small}
        self._parameters = list(large)
        self._variables = list(large.values())
        self._handles = [v.handle for v in self._variables]
        self._dtypes = [tf.as_dtype(v.dtype) for v in self._variables]
        position = {parameter: i for i, parameter in enumerate(self._parameters)}
        self._updated = [(parameter, position[parameter]) for parameter in updated if parameter in position]
        self._held: list[Any] = [None] * len(self._parameters)
        self._address: list[Any] = [None] * len(self._parameters)
        self._constants_written = False
        self.uploads = 0

    def invalidate(self) -> None:
        """Forgets what is on the tiles: the next `upload` writes everything."""
        self._held = [None] * len(self._parameters)
        self._address = [None] * len(self._parameters)
        self._constants_written = False
        if self._small is not None:
            self._small.invalidate()

    def upload(self) -> None:
        """Writes to the tiles each variable whose value is not what the tiles hold."""
        if not self._constants_written:
            for parameter, tensor in self._constants.items():
                self._engine.write_state(parameter, np.asarray(tfapi.view(tensor), order="C"))
            self._constants_written = True
        read, address, known = tfapi.read_tensor, tfapi.address, self._address
        for i, handle in enumerate(self._handles):
            tensor = read(handle, self._dtypes[i])
            where = address(tensor)
            if where == known[i]:
                continue
            value, held = np.asarray(tfapi.view(tensor)), self._held[i]
            if held is None or not _same_bytes(value, np.asarray(tfapi.view(held))):
                self._held[i] = known[i] = None  # an interrupted write must not look finished
                self._engine.write_state(self._parameters[i], value)
                self.uploads += 1
            self._held[i], known[i] = tensor, where
        if self._small is not None:
            self.uploads += self._small.upload(self._engine)

    def download(self) -> None:
        """Gives the tf.Variables the values that the finished execution left on the tiles, all of them or none."""
        read_state, tensor_from = self._engine.read_state, tfapi.tensor_from
        tensors = [tensor_from(read_state(parameter)) for parameter, _ in self._updated]
        small = self._small.collect(self._engine) if self._small is not None else []
        with _InterruptLater():
            for (_, i), tensor in zip(self._updated, tensors, strict=True):
                tfapi.assign_tensor(self._handles[i], tensor)
                self._held[i], self._address[i] = tensor, tfapi.address(tensor)
            if self._small is not None:
                self._small.assign(small)


class NoSync:
    """Stands for `VariableSync` where parameters are synthetic: tiles and host know nothing of each other's values.

    Args:
        engine: the engine.
        variables: entry-parameter index -> variable; the tiles' start as the initializer says.
        constants: entry-parameter index -> captured eager tensor; a value of the program, so it is written.
        initializer: see `ipu_keras.compiler.synthetic.values`.
    """

    def __init__(
        self, engine: Any, variables: dict[int, tf.Variable], constants: dict[int, Any], initializer: str | None
    ) -> None:
        for parameter, variable in variables.items():
            shape, dtype = variable.shape.as_list(), np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
            engine.write_state(parameter, synthetic.values(shape, dtype, initializer, f"parameter {parameter}"))
        for parameter, tensor in constants.items():
            engine.write_state(parameter, np.asarray(tfapi.view(tensor), order="C"))
        self.uploads = 0

    def invalidate(self) -> None:
        """Nothing: the tiles' values belong to them."""

    def upload(self) -> None:
        """Nothing is sent."""

    def download(self) -> None:
        """Nothing is fetched: the tf.Variables stay as they are."""


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes() if a.ndim == 0 else np.array_equal(a.view(np.uint8), b.view(np.uint8))


def _bytes(variable: tf.Variable) -> int:
    return int(np.prod(variable.shape.as_list(), dtype=np.int64)) * variable.dtype.size


class _InterruptLater:
    """Ctrl-C that comes inside is delivered at the end, so that no variable is left behind the others."""

    def __enter__(self) -> None:
        self._caught: tuple[int, Any] | None = None
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                signal.signal(signal.SIGINT, self._catch)
                self._previous = previous

    def _catch(self, number: int, frame: Any) -> None:
        self._caught = (number, frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._caught is not None:
            self._previous(*self._caught)
