"""Quarters (8-bit floats) on a tile: casts and products; see `quarter.pyx` for their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.amp_model import METHODS, amp_of, product_cycles
from ipu_runtime.codelets.model import Ints, Operand, ceil_div, pointers, product
from ipu_runtime.program import GroupView

METADATA_BYTES = 1
"""Format and scale of a tensor."""


class QuarterCast:
    """fp16 to quarter, or quarter to fp16."""

    name = "quarterCast"
    source = "poplibs popops/PerformanceEstimation.cpp, its rule for casts of floats [for quarters unvalidated]"
    code_bytes = 320  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """What is cast, its metadata, the result."""
        n, narrow = np.broadcast_to(g.col(1), g.rows), bool(g.params[0])
        return [
            Operand(g.col(2), n * (2 if narrow else 1), "r"),
            Operand(g.col(3), np.full(g.rows, METADATA_BYTES, np.int64), "r"),
            Operand(g.col(4), n * (1 if narrow else 2), "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """12 + workers x (18 + 19 + a loop): 2 for eight to quarter (two loads), 1 for four from it (one store).

        Source: hardware.md 3.4 (Cast1D), with the vector that loads and stores allow as for the other float casts.
        """
        mine = ceil_div(np.broadcast_to(g.col(1), g.rows), target.workers)
        loop = 2 * ceil_div(mine, 8) if g.params[0] else ceil_div(mine, 4)
        return np.asarray(12 + target.workers * (18 + 19 + loop), np.int64)

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, the size."""
        return np.full(g.rows, pointers(3, 1), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 40.0 * g.rows + 2.0 * float(np.broadcast_to(g.col(1), g.rows).sum())


class QuarterProduct:
    """Convolutions of quarters with up to three spatial dimensions; a matrix product has none."""

    name = "quarterPartial"
    source = "poplibs poplin/PerformanceEstimation.hpp"
    code_bytes = 2048  # [unvalidated] hardware.md 5.1: AMP codelets 0.5 to 2 KiB

    def _dims(self, g: GroupView) -> tuple[int, list[Ints], list[Ints], list[Ints]]:
        nd = int(g.params[0])
        cols = [[g.col(5 + 4 * d + i) for d in range(nd)] for i in range(3)]
        return nd, cols[0], cols[1], cols[2]

    def operands(self, g: GroupView) -> list[Operand]:
        """Input, weights, partial sums in fp16, the metadata of both operands."""
        nd, s, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        at, one = 5 + 4 * nd, np.full(g.rows, METADATA_BYTES, np.int64)
        return [
            Operand(g.col(at), product([groups, batch, ic, *s], g.rows), "r"),
            Operand(g.col(at + 1), product([groups, ic, oc, *k], g.rows), "r"),
            Operand(g.col(at + 2), product([groups, batch, oc, *o], g.rows) * 2, "w"),
            Operand(g.col(at + 3), one, "r"),
            Operand(g.col(at + 4), one, "r"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """The planned method's, of `amp_model`."""
        nd, _, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        one = np.ones(1, np.int64)
        length, height, last = o[-1] if nd else batch, k[-2] if nd > 1 else one, k[-1] if nd else one
        rows, outer = product([batch, *o[:-1]], g.rows) if nd else one, product(k[:-2], g.rows)
        method, amp = METHODS[int(g.params[1 + 4 * nd])], amp_of(target, "f8", "f16")
        return np.broadcast_to(product_cycles(method, rows, length, (outer, height, last), ic, oc, groups, amp), g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Five pointers, the sizes, a work list entry for each tap and worker."""
        _, _, _, k = self._dims(g)
        return pointers(5, 10) + 6 * 6 * product(k, g.rows)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, _, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        macs = product([groups, batch, ic, oc, *o, *k], g.rows).astype(np.float64)
        gathered = product([groups, batch, ic, *o, *k], g.rows).astype(np.float64)
        return 400.0 * g.rows + 0.2 * float(macs.sum()) + 1.5 * float(gathered.sum())
