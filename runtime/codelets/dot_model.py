"""Matrix products on a tile: sizes, and cycles by the planned method (`amp_model`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.amp_model import METHODS, amp_of, product_cycles, transpose_cycles, vector
from ipu_runtime.codelets.model import Ints, Operand, pointers
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


class Dot:
    """Batches of [m, k] x [k, n]."""

    name = "dotPartial"
    source = "poplibs poplin/PerformanceEstimation.hpp"
    code_bytes = 1536  # [unvalidated] hardware.md 5.1: AMP codelets 0.5 to 2 KiB

    def operands(self, g: GroupView) -> list[Operand]:
        """A, B, C."""
        batch, m, n, k = (g.col(i) for i in range(1, 5))
        size, partial = DTYPES[int(g.params[0])].itemsize, DTYPES[int(g.params[4])].itemsize
        return [
            Operand(g.col(5), batch * m * k * size, "r"),
            Operand(g.col(6), batch * k * n * size, "r"),
            Operand(g.col(7), batch * m * n * partial, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """The method's; an operand stored the other way round is transposed on the tile first."""
        batch, m, n, k = (g.col(i) for i in range(1, 5))
        dtype, method = DTYPES[int(g.params[0])].name, METHODS[int(g.params[3])]
        if method == "vector":
            return batch * vector(m, n, k, target.workers)
        amp = amp_of(target, dtype, DTYPES[int(g.params[4])].name)
        one = product_cycles(method, 1, m, (1, 1, 1), k, n, batch, amp)
        if g.params[1]:
            one = one + batch * transpose_cycles(k, m, dtype, amp.workers)
        if g.params[2]:
            one = one + batch * transpose_cycles(n, k, dtype, amp.workers)
        return one

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, sizes and strides."""
        return np.full(g.rows, pointers(3, 6), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        batch, m, n, k = (g.col(i).astype(np.float64) for i in range(1, 5))
        return 150.0 * g.rows + 0.03 * float(np.broadcast_to(batch * m * n * k, g.rows).sum())
