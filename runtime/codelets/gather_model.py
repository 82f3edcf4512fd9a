"""Embedding look-ups and their gradients. Source: hardware.md 3.7 (getMultiSliceCycleEstimate and its neighbours)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, ceil_div, pointers
from ipu_runtime.opcodes import DTYPES, OPS
from ipu_runtime.program import GroupView


def _row(elements: Ints, size: int) -> Ints:
    """Cycles to copy a row: 2 for 2 elements of fp32 or fp16, 3 for 4 bytes; a 64-bit element is two of fp32."""
    if size == 1:
        return 19 + 3 * ceil_div(elements, 4)
    return 19 + 2 * ceil_div(elements * (2 if size == 8 else 1), 2)


class Gather:
    """multiSlice."""

    name = "multiSlice"
    source = "poplibs popops/PerformanceEstimation.cpp (MultiSlice)"
    code_bytes = 512  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """Table, indices, output."""
        n, e, here = g.col(1), g.col(2), g.col(4)
        size, width = int(g.params[0]), int(g.params[1])
        return [
            Operand(g.col(5), here * e * size, "r"),
            Operand(g.col(6), n * width, "r"),
            Operand(g.col(7), n * e * size, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """6 (30 + in (19 + 2 ceil(e / width)) + 8 out), every index counted as one of this part [upper bound]."""
        one = 30 + ceil_div(g.col(1), target.workers) * _row(g.col(2), int(g.params[0]))
        return np.broadcast_to(target.workers * one, g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, sizes."""
        return np.full(g.rows, pointers(3, 5), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        n = np.broadcast_to(g.col(1), g.rows).astype(float)
        return 50.0 * g.rows + float((n * 5).sum()) + 0.5 * float((n * g.col(2)).sum())


class Scatter:
    """multiUpdate, multiUpdateAdd."""

    name = "multiUpdate"
    source = "poplibs popops/PerformanceEstimation.cpp (MultiUpdateAdd)"
    code_bytes = 512  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """Indices, updates, table."""
        n, e, here = g.col(1), g.col(2), g.col(4)
        size, width = DTYPES[int(g.params[0])].itemsize, int(g.params[1])
        return [
            Operand(g.col(5), n * width, "r"),
            Operand(g.col(6), n * e * size, "r"),
            Operand(g.col(7), here * e * size, "rw"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """6 (32 + in (12 + 4 (atoms - 1))), an atom is 4 B, + 20 an element of sub-word rows; overwriting: as a gather.

        Every index is counted as one of this part [upper bound].
        """
        dtype = DTYPES[int(g.params[0])]
        if int(g.params[2]) == OPS["copy"]:
            one = 29 + ceil_div(g.col(1), target.workers) * _row(g.col(2), dtype.itemsize)
            return np.broadcast_to(target.workers * one, g.rows)
        nbytes = g.col(2) * dtype.itemsize
        row = 12 + 4 * np.maximum(ceil_div(nbytes, 4) - 1, 0) + np.where(nbytes % 4 != 0, 20 * g.col(2), 0)
        one = (33 if dtype.name == "f16" else 32) + ceil_div(g.col(1), target.workers) * row
        return np.broadcast_to(target.workers * one, g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, sizes."""
        return np.full(g.rows, pointers(3, 5), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        n = np.broadcast_to(g.col(1), g.rows).astype(float)
        return 50.0 * g.rows + float((n * 5).sum()) + 0.5 * float((n * g.col(2)).sum())
