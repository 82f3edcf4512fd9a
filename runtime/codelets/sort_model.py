"""Sorting on a tile. Source of the figures: hardware.md 3.10 (HeapSort estimator)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, pointers
from ipu_runtime.program import GroupView


class Sort:
    """Lines of a block, each sorted by one worker."""

    name = "sort"
    source = "poplibs popops (HeapSort vertices)"
    code_bytes = 768  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """Operands, results."""
        n_ops = int(g.params[0])
        total = g.col(1) * g.col(2)
        sizes = [int(s) for s in g.params[5 : 5 + n_ops]]
        found = [Operand(g.col(3 + k), total * sizes[k], "r") for k in range(n_ops)]
        return found + [Operand(g.col(3 + n_ops + k), total * sizes[k], "w") for k in range(n_ops)]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Keys 8 (19 n floor(log2 n) + 6 n + 2) of a worker, key and value 16 in place of 8; six lines at a time."""
        n = np.maximum(g.col(2), 1)
        factor = 8 if int(g.params[0]) == 1 else 16
        one = factor * (19 * n * np.floor(np.log2(n)).astype(np.int64) + 6 * n + 2)
        return np.broadcast_to(-(-g.col(1) // target.workers) * target.workers * one, g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Pointers and sizes."""
        return np.full(g.rows, pointers(2 * int(g.params[0]), 2), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        n = np.maximum(g.col(2), 1).astype(float)
        cost = np.broadcast_to(g.col(1) * n * (np.log2(n) + 1), g.rows)
        return 60.0 * g.rows + 12.0 * float(cost.sum()) * (1 + int(g.params[3]))
