"""Reductions on a tile. Source of the figures: hardware.md 3.5 (popops/reduction/CycleEstimationFunctions.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.elementwise_model import body_cycles
from ipu_runtime.codelets.model import SUPERVISOR, WORKERS, Ints, Operand, ceil_div, pointers, product
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


def _sizes(g: GroupView) -> tuple[int, Ints, Ints, bool]:
    """Rank, elements, results, and whether the last dimension is a reduced one."""
    rank, mask = int(g.params[0]), int(g.params[1])
    ext = [g.col(1 + d) for d in range(rank)]
    return (
        rank,
        product(ext, g.rows),
        product([e for d, e in enumerate(ext) if mask >> d & 1], g.rows),
        not mask >> (rank - 1) & 1,
    )


class Reduce:
    """One operation over some dimensions of a block."""

    name = "reduce"
    code_bytes = 768  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """The block, the result."""
        rank, n, outs, _ = _sizes(g)
        size = DTYPES[int(g.params[3])].itemsize
        return [Operand(g.col(1 + rank), n * size, "r"), Operand(g.col(2 + rank), outs * size, "w")]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Rows to one value: 17 + 12 outs + elements / (4 fp32 | 8 fp16) x 2; columns: 16 + vectors (8 + 3 + 3 depth).

        Results are divided over the six workers; a single result is one worker's.
        """
        _, n, outs, rows = _sizes(g)
        half = DTYPES[int(g.params[3])].itemsize == 2
        mine = ceil_div(outs, WORKERS)
        depth = np.where(outs > 0, n // np.maximum(outs, 1), 0)
        if rows:
            one = 17 + 12 * mine + mine * 2 * ceil_div(depth, 8 if half else 4)
        else:
            one = 16 + ceil_div(mine, 4 if half else 2) * (3 + 8 + 3 + np.maximum(depth - 1, 0))
        return SUPERVISOR + WORKERS * one

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers and the extents."""
        return product([], g.rows) * pointers(2, int(g.params[0]))

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, n, outs, _ = _sizes(g)
        return 60.0 * g.rows + 0.3 * float(n.sum()) + 8.0 * float(outs.sum())


class Variadic:
    """A region of several operands over some dimensions: the index of the largest element, say."""

    name = "reduceRegion"
    code_bytes = 768  # [unvalidated]

    def _body(self, g: GroupView) -> Any:
        n_ops, n_const, n_body = int(g.params[2]), int(g.params[3]), int(g.params[5])
        first = 6 + 3 * n_ops + 2 * n_const
        return g.params[first : first + 7 * n_body].reshape(n_body, 7)

    def operands(self, g: GroupView) -> list[Operand]:
        """The blocks, the results."""
        rank, n, outs, _ = _sizes(g)
        n_ops = int(g.params[2])
        sizes = [int(g.params[6 + 3 * k]) for k in range(n_ops)]
        blocks = [Operand(g.col(1 + rank + k), n * sizes[k], "r") for k in range(n_ops)]
        return blocks + [Operand(g.col(1 + rank + n_ops + k), outs * sizes[k], "w") for k in range(n_ops)]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """The region's operations on each element, one after another; results divided over workers [unvalidated]."""
        _, n, outs, _ = _sizes(g)
        mine = ceil_div(outs, WORKERS) * np.where(outs > 0, n // np.maximum(outs, 1), 0)
        return SUPERVISOR + WORKERS * (17 + body_cycles(self._body(g)[:, :3].tolist(), mine))

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers for each operand and the extents."""
        return product([], g.rows) * pointers(2 * int(g.params[2]), int(g.params[0]))

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, n, _, _ = _sizes(g)
        return 80.0 * g.rows + 5.0 * float(n.sum()) * len(self._body(g))
