"""Stages in which partial sums on many tiles are added up, and what they cost.

Source: hardware.md 4 (poplibs poplin/ConvReducePlan.cpp): two stages from 16 partial sums on, three from 125. That many
are tried here, and fewer: a stage costs an exchange, which small blocks do not pay back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_keras.compiler.plan.traffic import score
from ipu_runtime.codelets.copy_model import FRAGMENT_BYTES
from ipu_runtime.codelets.reduce_model import reduce_add_cycles

TWO_STAGES, THREE_STAGES = 16, 125

Floats = NDArray[np.float64]


def most_stages(depth: Any) -> Any:
    """Reductions one after another for so many partial sums, at most.

    Example:
        >>> [int(most_stages(d)) for d in (2, 15, 16, 124, 125)]
        [1, 1, 2, 2, 3]
    """
    return 1 + (np.asarray(depth) >= TWO_STAGES) + (np.asarray(depth) >= THREE_STAGES)


def runs(depth: Any, left: int) -> Any:
    """Into how many groups a stage joins so many partial sums, with `left` stages to go.

    Example:
        >>> int(runs(64, 2)), int(runs(1000, 3)), int(runs(8, 1))
        (8, 100, 1)
    """
    return np.ceil(np.asarray(depth) ** ((left - 1) / left) - 1e-9).astype(np.int64)


class Reduction(NamedTuple):
    """Cycles of adding up, bytes of a tile's exchange code for it, and elements of the results that a tile keeps."""

    cycles: Floats
    code: Floats
    block: NDArray[np.int64]


def _cost(depth: NDArray[Any], outs: NDArray[Any], itemsize: int, target: Any, count: int) -> Reduction:
    """So many stages."""
    total: Floats = np.zeros(np.broadcast(depth, outs).shape)
    code: Floats = total.copy()
    left, block = np.asarray(depth, np.int64), np.asarray(outs, np.int64)
    for stage in range(count, 0, -1):
        groups = runs(left, stage)
        joined = -(-left // groups)
        # The tiles of a group share the block: at least 64 B each, as in `lower.reduce`.
        parts = np.maximum(1, np.minimum(left // groups, np.minimum(block, block * itemsize // 64)))
        block, left = -(-block // parts), groups
        code = code + FRAGMENT_BYTES * (joined - 1)
        total = total + (
            block * (joined - 1) * itemsize / target.exchange_bytes_per_cycle
            + target.fragment_cycles * (joined - 1)
            + target.sync_cycles
            + target.exchange_fixed_cycles
            + block * itemsize / target.memcpy_bytes_per_cycle  # the tile's own share goes to the others'
            + reduce_add_cycles(joined, block, itemsize, target.workers)
        )
    return Reduction(total, code, np.broadcast_to(block, total.shape))


def reduce_cost(depth: NDArray[Any], outs: NDArray[Any], itemsize: int, target: Any) -> Reduction:
    """What it costs to add up `depth` blocks of partial sums, each tile its share of the results.

    Args:
        depth: partial sums of each result; 1 costs nothing.
        outs: elements of a tile's block.
        itemsize: bytes of a partial sum.
        target: the chip.
    """
    best = _cost(depth, outs, itemsize, target, 1)
    for count in (2, 3):
        more = _cost(depth, outs, itemsize, target, count)
        better = (most_stages(depth) >= count) & (score(*more[:2], target) < score(*best[:2], target))
        best = Reduction(*(np.where(better, a, b) for a, b in zip(more, best, strict=True)))
    some = np.asarray(depth) > 1
    return Reduction(np.where(some, best.cycles, 0.0), np.where(some, best.code, 0.0), np.where(some, best.block, outs))


def stages(depth: int, outs: int, itemsize: int, target: Any) -> int:
    """How many stages are cheapest; see `reduce_cost`."""
    counts = range(1, int(most_stages(depth)) + 1)
    costs = [score(*_cost(np.asarray(depth), np.asarray(outs), itemsize, target, n)[:2], target) for n in counts]
    return 1 + int(np.argmin(costs))
