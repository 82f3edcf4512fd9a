"""Queues of a pipeline's activations on a tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import SUPERVISOR, Ints, Operand, pointers
from ipu_runtime.program import GroupView

TAKE, PUT, CLEAR = range(3)

COUNTER_BYTES = 8
"""Two 32-bit places in the queue, one for each end."""


class Fifo:
    """Blocks go in at one end and come out at the other; what a block needs is its bytes times the queue's depth."""

    name = "fifo"
    source = "poplibs memcpy rate (hardware.md 3.8); popops dynamic slice for the place (3.7)"
    code_bytes = 160  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """Block, queue, counters. Which block of the queue is touched is known on the tile only, so all of it is."""
        action, depth = int(g.params[0]), int(g.params[1])
        n = np.broadcast_to(g.col(1), g.rows)
        whole = Operand(g.col(3), -(-n // 8) * 8 * depth, "r" if action == TAKE else "w")
        counters = Operand(g.col(4), np.full(g.rows, COUNTER_BYTES, np.int64), "w" if action == CLEAR else "rw")
        if action == CLEAR:
            return [whole, counters]
        return [Operand(g.col(2), n, "w" if action == TAKE else "r"), whole, counters]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """One copy at the memcpy rate, after the place is worked out. Source: hardware.md 3.7, 3.8."""
        times = int(g.params[1]) if int(g.params[0]) == CLEAR else 1
        nbytes = np.broadcast_to(g.col(1), g.rows) * times
        return SUPERVISOR + target.workers * 14 + -(-nbytes // target.memcpy_bytes_per_cycle)

    def state_bytes(self, g: GroupView) -> Ints:
        """Pointers to block, queue and counters; size and depth."""
        return np.full(g.rows, pointers(3, 2), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 20.0 * g.rows + 0.1 * float(np.broadcast_to(g.col(1), g.rows).sum())
