"""What all checks share: the refusal, and how large anything may be."""

from __future__ import annotations

from typing import Any

from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.opcodes import DTYPE_NUMBER, DTYPES

MAX_TILES = 1 << 20
MAX_TILE_BYTES = 1 << 30
MAX_EXTENT = 1 << 24
MAX_TAPS = 1 << 16
MAX_IPUS = 64
MAX_TURNS = 1 << 30
MAX_WORK_NS = 1e11
"""A group that would keep the host busy for more than about a minute and a half is no program that was compiled."""


def need(condition: Any, text: str) -> None:
    """Refuses a program unless a condition holds.

    Args:
        condition: whatever has a truth.
        text: what is wrong otherwise.

    Raises:
        ExecutableFormatError: it does not hold.
    """
    if not condition:
        raise ExecutableFormatError(text)


def bytes_of(entry: Any) -> int:
    """Bytes of an array of the header.

    Args:
        entry: has its ``shape`` and ``dtype``.
    """
    count = 1
    for n in entry["shape"]:
        count *= n
    need(count < 1 << 40, "an array is too large")
    return int(count * DTYPES[DTYPE_NUMBER[entry["dtype"]]].itemsize)


def range_of(pair: Any, most: int) -> range:
    """A range of groups.

    Args:
        pair: its first and the one behind its last.
        most: how many groups there are.
    """
    first, last = pair
    need(isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= most, "a range of groups")
    return range(first, last)
