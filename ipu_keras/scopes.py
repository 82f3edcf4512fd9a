"""Scopes of the IPU API. What runs on the device is what `strategy.run` and models run, so most of them do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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
    """Says how fp16 results are rounded: to the nearest, which is all that there is.

    Args:
        override: False.

    Raises:
        NotImplementedError: stochastic rounding is asked for.

    Example:
        >>> with stochastic_rounding(False):
        ...     y = x @ w
    """
    if override:
        raise NotOnIPUError("stochastic_rounding(True) is not there: results are rounded to the nearest number.")
    yield


@contextlib.contextmanager
def partials_type(override: Any) -> Iterator[None]:
    """Says in which dtype products are added up: fp32, unless the configuration's options say otherwise.

    Args:
        override: ``numpy.float32``.

    Raises:
        ValueError: it is neither of the dtypes float16 and float32.
        NotImplementedError: it is float16.

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
    if dtype == np.float16:
        raise NotOnIPUError(
            "partials_type(float16) is not there for a part of a program. For a whole program, set "
            'IPUConfig.matmuls.poplar_options = {"partialsType": "half"}, and the same for convolutions.'
        )
    yield


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
