"""A branch: one tile's flag decides for the whole chip where the program goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand
from ipu_runtime.program import GroupView


class Branch:
    """Parameters: the step to go to when the flag is 0. Columns: tile, offset of the flag (one byte)."""

    name = "branch"
    source = "programming model: the predicate travels to all tiles"
    code_bytes = 0

    def operands(self, g: GroupView) -> list[Operand]:
        """The flag."""
        return [Operand(g.col(1), np.ones(g.rows, np.int64), "r")]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """The predicate goes from one tile to all, as one word: an exchange (hardware.md 3.12)."""
        return np.full(g.rows, target.exchange_fixed_cycles + target.fragment_cycles + 1, np.int64)

    def state_bytes(self, g: GroupView) -> Ints:
        """None."""
        return np.zeros(g.rows, np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 10.0
