"""Data made up on the chip: a program that neither takes its feeds from the host nor sends its outputs there.

Such a program is for timing without the host link. Feeds are constants on the tiles, loaded with the program; what
would have gone to the host is zero there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_keras.compiler.options import INITIALIZERS
from ipu_keras.graph.ir import DTYPES

__all__ = ["results", "values"]


def values(shape: Sequence[int], dtype: np.dtype[Any], initializer: str | None, name: str) -> np.ndarray:
    """The values that stand for data.

    Args:
        shape: of the data.
        dtype: of the data.
        initializer: the compile option ``synthetic_data_initializer``: None is zero; "uniform" and "random" draw from
            all that the dtype can hold, "normal" from the standard normal distribution (integers are 1 then); of a
            number the integer part is taken.
        name: of the data; other names have other random numbers, the same name always the same.

    Source: the meaning of the initializers is that of the IPU's TensorFlow, ``--synthetic_data_initializer``.
    """
    if initializer is None:
        return np.zeros(shape, dtype)
    if initializer not in INITIALIZERS:
        number = np.int64(float(initializer))
        return np.full(shape, number.astype(np.float32) if dtype.kind == "f" else number).astype(dtype)
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    if initializer == "normal":
        return draw.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return ((2 * draw.random(shape) - 1) * most).astype(dtype)
    if dtype.kind == "b":
        return draw.integers(0, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return draw.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def results(header: dict[str, Any], repeat: int = 1) -> dict[int, np.ndarray]:
    """What the host has of the outputs that a program does not send: zeros.

    Args:
        header: of the program.
        repeat: iterations of the execution.

    Returns:
        flat output index -> array, with the leading axes of what `Engine.run` returns.
    """
    replicas = header.get("replicas", 1)
    return {
        spec["output"]: np.zeros(
            (repeat * spec.get("micro", 1), *[replicas] * (replicas > 1), *spec["shape"]), DTYPES[spec["dtype"]]
        )
        for spec in header.get("synthetic", {}).get("outputs", [])
    }
