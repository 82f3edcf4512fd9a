"""Reductions on a tile. Source of the figures: hardware.md 3.5 (popops/reduction/CycleEstimationFunctions.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.elementwise_model import OP_NAMES, body_cycles
from ipu_runtime.codelets.model import SUPERVISOR, WORKERS, Ints, Operand, ceil_div, pointers, product
from ipu_runtime.opcodes import DTYPES, OPS
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


def reduce_add_cycles(depth: Any, outs: Any, itemsize: int = 4, workers: int = WORKERS) -> Ints:
    """Sum of `depth` contiguous blocks of `outs` partial sums, which lie in interleaved memory: a 128-bit load a cycle.

    Source: hardware.md 3.5, poplin ReduceAdd of one block; two thirds of a tile's memory are interleaved (1.3).

    Args:
        depth: blocks.
        outs: elements of a block.
        itemsize: 4 for fp32 partial sums, 2 for fp16.
        workers: worker threads.
    """
    vector, over = (8, 9) if itemsize == 2 else (4, 8)
    return np.asarray(33 + workers * (20 + (depth + over) * ceil_div(outs, vector * workers)))


class Reduce:
    """One operation over some dimensions of a block."""

    name = "reduce"
    source = "poplibs popops/ReductionCycles (PerformanceEstimation.cpp)"
    code_bytes = 768  # [unvalidated]

    def operands(self, g: GroupView) -> list[Operand]:
        """The block, the result."""
        rank, n, outs, _ = _sizes(g)
        size = DTYPES[int(g.params[3])].itemsize
        return [Operand(g.col(1 + rank), n * size, "r"), Operand(g.col(2 + rank), outs * size, "w")]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """A run to one value: 17 + 2 for each 4 fp32 | 8 fp16 (+ 5 for a half result); rows: 12 more for each result.

        Columns: 16 + vectors (3 + 8 + 3 + depth - 1), or ReduceAdd where that is less. Results are divided over the
        six workers; a single result is one worker's.
        """
        rank, n, outs, rows = _sizes(g)
        dtype = DTYPES[int(g.params[3])]
        half = dtype.itemsize == 2
        mine = ceil_div(outs, target.workers)
        depth = np.where(outs > 0, n // np.maximum(outs, 1), 0)
        if rows:
            run = 2 * ceil_div(depth, 8 if half else 4)
            one = np.where(outs == 1, 17 + run + 5 * half, 17 + mine * (12 + run))
            return SUPERVISOR + target.workers * one
        one = 16 + ceil_div(mine, 4 if half else 2) * (3 + 8 + 3 + np.maximum(depth - 1, 0))
        if dtype.name in ("f32", "f16") and int(g.params[2]) == OPS["add"] and rank == 2:
            # One contiguous block of partial sums: products' and others' alike, the cheaper vertex is taken.
            block = reduce_add_cycles(depth, outs, dtype.itemsize, target.workers)
            return np.minimum(SUPERVISOR + target.workers * one, block)
        return SUPERVISOR + target.workers * one

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers and the extents."""
        return product([], g.rows) * pointers(2, int(g.params[0]))

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, n, outs, _ = _sizes(g)
        return 60.0 * g.rows + 0.3 * float(n.sum()) + 8.0 * float(outs.sum())


_CHOOSING = {"select", "maximum", "minimum", "and", "or", "not"}


class Variadic:
    """A region of several operands over some dimensions: the index of the largest element, say."""

    name = "reduceRegion"
    source = (
        "poplibs popnn/popnnCycleEstimators.cpp (ReduceMaxClassGather, ReduceMaxClassSparse) for regions that pick, "
        "others *unvalidated*"
    )
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

    def _picks(self, g: GroupView) -> bool:
        """Whether the region only compares and chooses, as that of an argmax does."""
        words = self._body(g)[:, :2].tolist()
        return all(not c and (OP_NAMES[op] in _CHOOSING or OP_NAMES[op].startswith("compare")) for c, op in words)

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Lines divided over the workers, or each line over all of them and what they found combined: the quicker.

        A worker that picks takes 3 cycles an element, 27 around a line of its own and 30 around its part of one. Other
        regions are taken to cost their operations, one after another [unvalidated].
        """
        _, n, outs, _ = _sizes(g)
        workers = target.workers
        mine, depth = ceil_div(outs, workers), np.where(outs > 0, n // np.maximum(outs, 1), 0)
        share = ceil_div(depth, workers)
        if self._picks(g):
            whole = mine * (24 + 3 * depth)
            parts = outs * (27 + 3 * share) + mine * (24 + 3 * workers)
        else:
            body = self._body(g)[:, :3].tolist()
            whole = 17 + body_cycles(body, mine * depth)
            parts = 17 + body_cycles(body, outs * share) + 17 + body_cycles(body, mine * workers)
        return SUPERVISOR + workers * np.where(depth > 0, np.minimum(whole, parts), 17)

    def unsourced_cycles(self, g: GroupView, target: Any) -> Ints | None:
        """Those of a region that does more than pick."""
        return None if self._picks(g) else self.cycles(g, target)

    def state_bytes(self, g: GroupView) -> Ints:
        """Two pointers for each operand and the extents."""
        return product([], g.rows) * pointers(2 * int(g.params[2]), int(g.params[0]))

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, n, _, _ = _sizes(g)
        return 80.0 * g.rows + 5.0 * float(n.sum()) * len(self._body(g))
