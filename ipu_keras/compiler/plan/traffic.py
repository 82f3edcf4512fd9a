"""What an exchange of planned copies costs, by the rules that time the program's exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.compiler.move import Rows
from ipu_keras.target import Target
from ipu_runtime.codelets.copy_model import FRAGMENT_BYTES, phases


def score(cycles: Any, code_bytes: Any, target: Target) -> Any:
    """What a choice goes by: cycles, and exchange code, which is there always, at the price of `Target.fragment_price`.

    Args:
        cycles: of the choice.
        code_bytes: of exchange code on a tile.
        target: the chip.
    """
    return cycles + code_bytes * max(0.0, target.fragment_price - target.fragment_cycles) / FRAGMENT_BYTES


class Cost(NamedTuple):
    """Cycles of exchanges, and bytes of code on the tile that receives the most fragments."""

    cycles: int
    code_bytes: int


def exchange_cost(moves: Sequence[tuple[Rows, int]], target: Target) -> Cost:
    """Cost of one exchange with its sync and what is put in order before and after it.

    Args:
        moves: copies, and bytes of their elements.
        target: the chip.
    """
    parts = [rows.traffic(size, target) for rows, size in moves if len(rows)]
    if not parts:
        return Cost(0, 0)
    pieces = np.sum([part.pieces for part in parts], 0)
    return Cost(phases(parts, target).total, FRAGMENT_BYTES * int(pieces.max(initial=0)))


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Exchanges one after another."""
    return Cost(sum(c.cycles for c in costs), sum(c.code_bytes for c in costs))
