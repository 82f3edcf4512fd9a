"""Collectives over replicas: all-reduce, and all-gather, of which tile t of replica t mod R holds the part.

Cycles are counted by step (`ipu_keras.profile.cycles`): tiles share the links.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, pointers
from ipu_runtime.opcodes import DTYPES, GATHER
from ipu_runtime.program import GroupView


def owners(g: GroupView) -> Ints:
    """Of an all-gather: the replica of a group that each row's value comes from."""
    return g.tiles % int(g.params[2])


class Collective:
    """An all-reduce or all-gather over groups of replicas."""

    name = "allReduce"
    source = ""
    code_bytes = 512  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """The value and the result."""
        n = np.broadcast_to(g.col(1), g.rows) * DTYPES[int(g.params[1])].itemsize
        return [Operand(g.col(2), n, "r"), Operand(g.col(3), n, "w")]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Two elements are added to a partial sum in a cycle while a ring of chips passes them on [unvalidated]."""
        n = np.broadcast_to(g.col(1), g.rows)
        return np.zeros_like(n) if g.params[0] == GATHER else -(-n // 2)

    def state_bytes(self, g: GroupView) -> Ints:
        """Pointers to value and result, size."""
        return np.full(g.rows, pointers(2, 1), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 30.0 * g.rows + 0.5 * float(np.broadcast_to(g.col(1), g.rows).sum())
