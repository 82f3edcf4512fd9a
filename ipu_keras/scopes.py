"""Scopes of the IPU API. What runs on the device is what `strategy.run` and models run, so several do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ipu_keras.compiler.rounding import PARTIALS, ROUND
from ipu_keras.ops._refusals import ArgumentError, NotOnIPUError

__all__ = [
    "frontend_attribute",
    "ipu_jit_scope",
    "ipu_scope",
    "ipu_shard",
    "outside_compilation_scope",
    "partials_type",
    "stochastic_rounding",
]


@contextlib.contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Operations in it are the device's, if `strategy.run` traces them.

    Args:
        device: its name, such as ``"/device:IPU:0"``.

    Example:
        >>> with ipu_scope("/device:IPU:0"):
        ...     y = x @ w
    """
    del device
    yield


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: Any) -> Iterator[None]:
    """The same under another name.

    Args:
        ipu_scope: accepted.

    Example:
        >>> with ipu_jit_scope(0):
        ...     y = x @ w
    """
    del ipu_scope
    yield


@contextlib.contextmanager
def frontend_attribute(attribute_name: str, attribute_value: Any, restore_to: Any = None) -> Iterator[None]:
    """A remark for another compiler; this one reads none.

    Args:
        attribute_name: accepted.
        attribute_value: accepted.
        restore_to: accepted.

    Example:
        >>> with frontend_attribute("note", "encoder"):
        ...     y = x @ w
    """
    del attribute_name, attribute_value, restore_to
    yield


@contextlib.contextmanager
def ipu_shard(index: int) -> Iterator[None]:
    """Operations in it are for one chip of a replica: for the first one, as there is no sharding but by stages.

    Args:
        index: of the chip, 0.

    Raises:
        NotImplementedError: another chip is asked for.

    Example:
        >>> with ipu_shard(0):
        ...     y = x @ w
    """
    if index != 0:
        raise NotOnIPUError(
            f"ipu_shard({index!r}) is not there: work is put on further chips by pipeline stages. Use PipelineStage in "
            "a Keras model, or pipelining_ops.pipeline."
        )
    yield


@contextlib.contextmanager
def stochastic_rounding(override: bool) -> Iterator[None]:
    """How fp16 results of operations in it are rounded, and those of their gradients, whatever is configured.

    Args:
        override: True: at random, in proportion to what is cut off; False: to nearest even.

    Example:
        >>> with stochastic_rounding(False):
        ...     y = x @ w
    """
    with _scope(ROUND, int(bool(override))):
        yield


@contextlib.contextmanager
def partials_type(override: Any) -> Iterator[None]:
    """In which dtype fp16 products and convolutions in it are added up, and those of their gradients.

    Args:
        override: ``numpy.float16`` or ``numpy.float32``.

    Raises:
        ValueError: it is neither of the two.

    Example:
        >>> with partials_type(np.float32):
        ...     y = x @ w
    """
    import numpy as np

    try:
        dtype = np.dtype(override)
    except TypeError:
        dtype = None
    if dtype not in (np.float16, np.float32):
        raise ArgumentError(f"partials_type is {override!r}; it must be numpy's float16 or float32.")
    with _scope(PARTIALS, 8 * dtype.itemsize):
        yield


def _scope(name: str, number: int) -> contextlib.AbstractContextManager[Any]:
    """A name scope that the compiler reads; gradients are named after what they are of."""
    import tensorflow as tf

    scope: contextlib.AbstractContextManager[Any] = tf.name_scope(f"{name}.{number}.")
    return scope


@contextlib.contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Not there: a program of the device does not call the host.

    Args:
        name: not used.

    Raises:
        ValueError: it is not in a program of the device.
        NotImplementedError: it is.
    """
    import tensorflow as tf

    if not tf.inside_function():
        raise ArgumentError(f"outside_compilation_scope({name!r}) is for a device program: it is opened outside one.")
    raise NotOnIPUError(
        f"outside_compilation_scope({name!r}) is not there: a program of the device does not call the host. Put the "
        "values into an IPUOutfeedQueue, and work on what you dequeue."
    )
    yield
