"""Random bits. Source of the figures: hardware.md 3.11 (poprand estimators) where the chip's own generator is meant;
XLA's counter-based generator is software on the chip, so its cycles are counted from its operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import SUPERVISOR, Ints, Operand, ceil_div, pointers, product
from ipu_runtime.program import GroupView

ROUND = 2 * 4 + 2 * 7 + 2 * 1
"""Instructions of a Philox round on a core without a 64-bit product: two 32 x 32 -> 64 multiplies as four 16-bit ones,
four exclusive-ors, two key additions [unvalidated]."""


class Philox:
    """Ten rounds for four words."""

    name = "philox"
    source = ""
    code_bytes = 384  # [unvalidated]

    def _elements(self, g: GroupView) -> tuple[int, Ints]:
        rank = int(g.params[0])
        return rank, product([g.col(2 + 2 * d) for d in range(rank)], g.rows)

    def operands(self, g: GroupView) -> list[Operand]:
        """State, output."""
        rank, n = self._elements(g)
        return [
            Operand(g.col(1 + 2 * rank), np.full(g.rows, 24, np.int64), "r"),
            Operand(g.col(2 + 2 * rank), n * 4 * int(g.params[1]), "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """10 rounds a block of four words, blocks over the six workers."""
        _, n = self._elements(g)
        blocks = ceil_div(ceil_div(n, target.workers) * int(g.params[1]), 4)
        return SUPERVISOR + target.workers * (24 + blocks * 10 * ROUND)

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers, the block's place."""
        return np.full(g.rows, pointers(2, 2 * int(g.params[0])), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 60.0 * g.rows + 2.0 * float(self._elements(g)[1].sum())


class PhiloxNext:
    """The counter's advance: one 128-bit addition by one worker."""

    name = "philoxNext"
    source = ""
    code_bytes = 96  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """State, new state."""
        size = np.full(g.rows, 24, np.int64)
        return [Operand(g.col(1), size, "r"), Operand(g.col(2), size, "w")]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Two 64-bit additions (hardware.md 3.2, 11 cycles each) by one worker."""
        return np.full(g.rows, SUPERVISOR + target.workers * (17 + 2 * 11), np.int64)

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers."""
        return np.full(g.rows, pointers(2, 1), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 20.0 * g.rows
