"""Pooling. Source of the figures: hardware.md 3.9 (popnn pooling estimators)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, ceil_div, pointers, product
from ipu_runtime.opcodes import DTYPES, OPS
from ipu_runtime.program import GroupView


class Window:
    """reduce-window."""

    name = "reduceWindow"
    source = "poplibs popnn/PerformanceEstimation.hpp (pooling)"
    code_bytes = 640  # [unvalidated]
    backward = False
    columns = 3  # of each dimension

    def _sizes(self, g: GroupView) -> tuple[int, Ints, Ints, int]:
        rank = int(g.params[0])
        ins = product([g.col(1 + self.columns * d) for d in range(rank)], g.rows)
        outs = product([g.col(2 + self.columns * d) for d in range(rank)], g.rows)
        taps = int(np.prod([int(g.params[4 + 4 * d]) for d in range(rank)]))
        return rank, ins, outs, taps

    def operands(self, g: GroupView) -> list[Operand]:
        """Block and result."""
        rank, ins, outs, _ = self._sizes(g)
        size = DTYPES[int(g.params[2])].itemsize
        return [
            Operand(g.col(1 + 3 * rank), ins * size, "r"),
            Operand(g.col(2 + 3 * rank), outs * size, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """13 + 6 x worker: 20 + 13 a row + (4 max | 5 sum | 7 backward) + (3 | 5) a tap of a vector of channels."""
        rank, _, outs, taps = self._sizes(g)
        channels = g.col(2 + self.columns * (rank - 1))
        width = g.col(2 + self.columns * (rank - 2)) if rank > 1 else np.ones(1, np.int64)
        vector = 2 if DTYPES[int(g.params[2])].itemsize == 4 else 4
        points = ceil_div(outs // np.maximum(channels, 1), target.workers)
        start = 7 if self.backward else (4 if int(g.params[1]) == OPS["maximum"] else 5)
        point = ceil_div(channels, vector) * (start + (5 if self.backward else 3) * taps)
        return 13 + target.workers * (20 + 13 * ceil_div(points, np.maximum(width, 1)) + points * point)

    def state_bytes(self, g: GroupView) -> Ints:
        """Pointers, sizes of each dimension."""
        rank = int(g.params[0])
        return np.full(g.rows, pointers(2 + self.backward, 4 * rank), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, ins, outs, taps = self._sizes(g)
        return 100.0 * g.rows + 2.0 * taps * float(outs.sum()) + 0.5 * float(ins.sum())


class SelectScatter(Window):
    """select-and-scatter."""

    name = "selectAndScatter"
    source = "poplibs popnn/PerformanceEstimation.hpp (pooling, backward)"
    code_bytes = 768  # [unvalidated]
    backward = True
    columns = 5

    def operands(self, g: GroupView) -> list[Operand]:
        """Block, source, result."""
        rank, ins, outs, _ = self._sizes(g)
        size = DTYPES[int(g.params[2])].itemsize
        own = product([g.col(5 + 5 * d) for d in range(rank)], g.rows)
        return [
            Operand(g.col(1 + 5 * rank), ins * size, "r"),
            Operand(g.col(2 + 5 * rank), outs * size, "r"),
            Operand(g.col(3 + 5 * rank), own * size, "w"),
        ]

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, ins, outs, taps = self._sizes(g)
        return 100.0 * g.rows + 8.0 * taps * float(outs.sum()) + 3.0 * float(ins.sum())
