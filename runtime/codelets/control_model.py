"""Control steps without a flag: loops over micro-batches, and which of a pipeline's stages are at work in a slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand
from ipu_runtime.program import GroupView


class Control:
    """Parameters, by the kind of the step that has the group (see `program`).

    for: how often the loop runs. next: the step of its beginning. window: the step to go to where no micro-batch is
    due, what is subtracted from the loop's counter to give the micro-batch's number, micro-batches of an iteration.
    """

    name = "control"
    source = "hardware.md 3.12: a loop counter, 43 cycles"
    code_bytes = 0

    def operands(self, g: GroupView) -> list[Operand]:
        """None: every tile counts for itself."""
        return []

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Each tile counts for itself, without an exchange, once a turn."""
        return np.full(g.rows, 43, np.int64)

    def state_bytes(self, g: GroupView) -> Ints:
        """None."""
        return np.zeros(g.rows, np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 5.0
