"""Convolutions on a tile: sizes, and cycles by the planned method (`amp_model`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.amp_model import METHODS, amp_of, product_cycles, transpose_cycles
from ipu_runtime.codelets.model import Ints, Operand, pointers, product
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


class Conv:
    """Batches, groups, up to three spatial dimensions."""

    name = "convPartial"
    source = "poplibs poplin/PerformanceEstimation.hpp"
    code_bytes = 2048  # [unvalidated] hardware.md 5.1

    def _dims(self, g: GroupView) -> tuple[int, list[Ints], list[Ints], list[Ints]]:
        nd = int(g.params[0])
        cols = [[g.col(5 + 4 * d + i) for d in range(nd)] for i in range(3)]
        return nd, cols[0], cols[1], cols[2]

    def operands(self, g: GroupView) -> list[Operand]:
        """Input, weights, partial sums."""
        nd, s, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        size, partial = DTYPES[int(g.params[1])].itemsize, DTYPES[int(g.params[4 + 4 * nd])].itemsize
        return [
            Operand(g.col(5 + 4 * nd), product([groups, batch, ic, *s], g.rows) * size, "r"),
            Operand(g.col(6 + 4 * nd), product([groups, ic, oc, *k], g.rows) * size, "r"),
            Operand(g.col(7 + 4 * nd), product([groups, batch, oc, *o], g.rows) * partial, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """The method's; with the batch last every input is transposed on the tile first."""
        nd, s, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        dtype, method = DTYPES[int(g.params[1])].name, METHODS[int(g.params[3 + 4 * nd])]
        amp = amp_of(target, dtype, DTYPES[int(g.params[4 + 4 * nd])].name)
        one = np.ones(1, np.int64)
        length, height, last = o[-1] if nd else one, k[-2] if nd > 1 else one, k[-1] if nd else one
        rows, outer = product([batch, *o[:-1]], g.rows), product(k[:-2], g.rows)
        cycles = product_cycles(method, rows, length, (outer, height, last), ic, oc, groups, amp)
        if g.params[2]:
            cycles = cycles + transpose_cycles(product([groups, ic, *s], g.rows), batch, dtype, amp.workers)
        return np.broadcast_to(cycles, g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, the sizes, a work list entry for each tap and worker."""
        _, _, _, k = self._dims(g)
        return pointers(3, 10) + 6 * 6 * product(k, g.rows)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, _, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        macs = product([groups, batch, ic, oc, *o, *k], g.rows).astype(np.float64)
        return 300.0 * g.rows + 0.04 * float(macs.sum()) + float(product([groups, batch, *o, *k], g.rows).sum()) * 5
