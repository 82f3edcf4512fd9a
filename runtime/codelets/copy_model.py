"""Copies: an exchange between tiles, an arrangement on a tile, a stream to or from the host.

Cycles of exchanges are counted per superstep (`ipu_keras.profile.cycles`), since sends and receipts of all of a
step's copies run together; here are the sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, product
from ipu_runtime.program import GroupView


def elements(g: GroupView) -> Ints:
    """Elements of each copy."""
    nd = int(g.params[0])
    return product([g.col(4 + 3 * d) for d in range(nd)], g.rows)


def runs(g: GroupView) -> Ints:
    """Contiguous pieces of each copy, on both sides: what the exchange sends as one fragment."""
    nd = int(g.params[0])
    if nd == 0:
        return np.ones(g.rows, np.int64)
    inner = (g.columns[3 * nd + 2] == 1) & (g.columns[3 * nd + 3] == 1)
    outer = product([g.col(4 + 3 * d) for d in range(nd - 1)], g.rows)
    return np.where(inner, outer, outer * g.col(1 + 3 * nd))


class Copy:
    """Rows of strided copies."""

    name = "copy"
    code_bytes = 0

    def span(self, g: GroupView, side: int) -> Operand:
        """Bytes between the first and the last element touched; side 0: source, 1: destination."""
        nd, size = int(g.params[0]), int(g.params[1])
        low = np.zeros(g.rows, np.int64) + g.col(2 + side)
        high = low.copy()
        for d in range(nd):
            reach = (g.col(4 + 3 * d) - 1) * g.col(6 + 3 * d - side)
            low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
        return Operand(low * size, (high - low + 1) * size, "w" if side else "r")

    def operands(self, g: GroupView) -> list[Operand]:
        """Spans on the source and on the destination tile."""
        return [self.span(g, 0), self.span(g, 1)]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """On-tile copy at the memcpy rate. Source: hardware.md 3.8, 8 B a cycle a tile."""
        return -(-elements(g) * int(g.params[1]) // target.memcpy_bytes_per_cycle)

    def state_bytes(self, g: GroupView) -> Ints:
        """Copies have no vertex."""
        return np.zeros(g.rows, np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 15.0 * g.rows + 0.2 * float(elements(g).sum()) + 2.0 * float(runs(g).sum())
