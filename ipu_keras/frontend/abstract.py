"""Variables without values: shape and dtype alone, for programs that are compiled and never run.

All of them read as zeros from one anonymous mapping that is never written, so they take address space and no memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import tfapi

__all__ = ["abstract_variables", "create"]

SMALL_BYTES = 4096
"""Variables up to this size keep their values: counters, learning rates, seeds, which Python code reads."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_lock = threading.Lock()
_zeros: list[mmap.mmap] = []  # the largest mapping so far


@contextlib.contextmanager
def abstract_variables(wanted: bool = True) -> Iterator[None]:
    """While open, variables that this thread creates outside a `trace` are abstract; see `create`.

    Args:
        wanted: False changes nothing.

    Example:
        >>> with abstract_variables():
        ...     v = tf.Variable(lambda: tf.random.normal((1 << 15, 1 << 15)))  # 4 GiB that are never there
        >>> v.shape.as_list(), v.dtype.name
        ([32768, 32768], 'float32')
    """
    if not wanted:
        yield
        return
    with tf.variable_creator_scope(create):
        yield


def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Creates a variable of the shape and dtype of its initial value, without computing that value.

    Args:
        next_creator: TensorFlow's own way, for what cannot be abstract.
        kwargs: arguments of tf.Variable.
    """
    kind = _kind(kwargs.get("initial_value"), kwargs.get("dtype"))
    if kind is None or math.prod(kind[0]) * kind[1].size <= SMALL_BYTES:
        return tfapi.create_now(next_creator, **kwargs)
    return tfapi.create_now(next_creator, **{**kwargs, "initial_value": _tensor(*kind), "dtype": kind[1]})


def _kind(value: Any, dtype: Any) -> tuple[tuple[int, ...], tf.DType] | None:
    """Shape and dtype of an initial value; None where only computing it tells, or it depends on a trace."""
    if callable(value):
        try:
            with tfapi.scratch_graph():
                value = value()
        except Exception:  # an initializer that needs eager values: it is computed, as without this module
            return None
    elif any(tf.is_symbolic_tensor(leaf) for leaf in tf.nest.flatten(value)):
        return None
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = tf.convert_to_tensor(value, dtype)
    shape, found = tf.TensorShape(value.shape), tf.as_dtype(dtype or value.dtype)
    if not shape.is_fully_defined() or not (found.is_floating or found.is_integer or found.is_bool):
        return None
    return tuple(shape.as_list()), found


def _tensor(shape: tuple[int, ...], dtype: tf.DType) -> Any:
    """A tensor over the mapping.

    TensorFlow updates in place only memory of its own, so what is assigned to one variable never reaches the mapping.
    """
    count = math.prod(shape)
    with _lock:
        if len(_zeros) == 0 or len(_zeros[0]) < count * dtype.size:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            _zeros[:] = [mmap.mmap(-1, count * dtype.size, flags=flags)]  # the old one lives as long as its tensors
        mapping = _zeros[0]
    return tfapi.tensor_from(np.frombuffer(mapping, dtype.as_numpy_dtype, count).reshape(shape))
