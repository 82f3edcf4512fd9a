"""Dynamic slices. Source of the figures: hardware.md 3.7 (getDynamicSlice1dEstimate)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, ceil_div, pointers, product
from ipu_runtime.program import GroupView


class Dynamic:
    """dynamic-slice and dynamic-update-slice."""

    name = "dynamicSlice"
    source = "poplibs popops/PerformanceEstimation.cpp (DynamicSlice)"
    code_bytes = 384  # [unvalidated]

    def _sizes(self, g: GroupView) -> tuple[int, Ints, Ints]:
        rank = int(g.params[0])
        block = product([g.col(1 + 2 * d) for d in range(rank)], g.rows)
        window = product([g.col(2 + 2 * d) for d in range(rank)], g.rows)
        return rank, block, window

    def operands(self, g: GroupView) -> list[Operand]:
        """Block, window, starts."""
        rank, block, window = self._sizes(g)
        size, width, update = int(g.params[1]), int(g.params[2]), bool(g.params[4])
        found = [
            Operand(g.col(1 + 2 * rank), block * size, "rw" if update else "r"),
            Operand(g.col(2 + 2 * rank), window * size, "r" if update else "w"),
        ]
        for k in range(int(g.params[5])):
            found.append(Operand(g.col(3 + 2 * rank + k), np.full(g.rows, width, np.int64), "r"))
        return found

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """25 + 6 (39 + (24 + 2 n/v) slices): a slice is a contiguous run, divided over the workers.

        It has what lies inside of the last dimension that moves; or, where that is the innermost, what is taken of it.
        """
        rank, _, window = self._sizes(g)
        moving = [d for d in range(rank) if int(g.params[6 + d]) >= 0]
        first = min(moving[-1] + 1, rank - 1) if moving else 0
        inner = np.maximum(product([g.col(2 + 2 * d) for d in range(first, rank)], g.rows), 1)
        slices = window // inner
        vector = max(1, 8 // int(g.params[1]))
        return 25 + target.workers * (39 + slices * (24 + 2 * ceil_div(ceil_div(inner, target.workers), vector)))

    def state_bytes(self, g: GroupView) -> Ints:
        """A pointer for each operand, sizes."""
        return np.full(g.rows, pointers(2 + int(g.params[5]), 2 * int(g.params[0])), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, _, window = self._sizes(g)
        return 60.0 * g.rows + 0.3 * float(window.sum())
