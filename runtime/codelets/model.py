"""What every codelet's model offers, and the small arithmetic that the cycle formulas share."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.program import GroupView

Ints = NDArray[np.int64]

WORKERS = 6
"""Worker threads of a tile. Source: hardware.md 1."""

SUPERVISOR = 11
"""Cycles of a supervisor call and worker launch. Source: poplibs popops/PerformanceEstimation.cpp."""


TOO_LARGE = 1 << 56
"""Stands for any larger product."""


class Operand(NamedTuple):
    """One operand of a vertex: where it starts on the tile, its bytes, and "r", "w" or "rw"."""

    offset: Ints
    nbytes: Ints
    mode: str


class CodeletModel(Protocol):
    """See `registry`."""

    name: str
    source: str
    code_bytes: int

    def operands(self, g: GroupView) -> list[Operand]:
        """Operands of the vertices."""

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Cycles of each vertex."""

    def state_bytes(self, g: GroupView) -> Ints:
        """Bytes of state of each vertex."""

    def work(self, g: GroupView) -> float:
        """Rough host nanoseconds of the group."""


def ceil_div(a: Any, b: Any) -> Any:
    """Smallest integer not below a / b."""
    return -(-a // b)


def product(arrays: list[Ints], rows: int) -> Ints:
    """Element-wise product of columns, one value for each row; at most `TOO_LARGE`."""
    out = np.ones(rows, np.int64)
    size = np.ones(rows)
    for a in arrays:
        out = out * a
        size = size * a
    # A product that int64 cannot hold is as good as infinite: a crafted file must not wrap it to something small.
    return np.where(size > float(TOO_LARGE), TOO_LARGE, out)


def pointers(count: int, extra_words: int = 2) -> int:
    """Vertex state of `count` edge pointers and some words of fields. Source: hardware.md 5.1, 4 B an edge."""
    return 4 * (count + extra_words)
