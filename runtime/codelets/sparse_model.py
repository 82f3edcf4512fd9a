"""Products with the non-zero blocks of a sparse matrix: operands, and cycles by poplibs' own estimators.

Source: hardware.md 3.6 (block sparse): poplibs popsparse/StaticMatMulPartitioner.cpp (matmulComputeCycles,
zeroingCycles) for patterns that are known when the program is made, popsparse/PerformanceEstimation.hpp for patterns
that are not (sparseDenseBlockMultiply, sparseDenseElementwiseMultiply and its GradA form) and for the products that
give the blocks themselves (sparseDenseBlockMultiplyGradW, ...GradWAmp, sparseDenseGradWElementwiseMultiply).

Blocks of 4, 8 and 16 are weights of the AMP; they are loaded one after another. Blocks of one element are gathered and
multiplied on the 64-bit vector path. A dynamic pattern is charged for its capacity, in one bucket of one sub-group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import Ints, Operand, ceil_div, pointers
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView

MODES = ("forward", "transposed", "sampled")
"""Names by the number that a group's parameters hold."""

BLOCKS = (1, 4, 8, 16)
"""Edges of a block."""


def _static_rows(dtype: str, block: int, n: Ints) -> tuple[int, int, Ints]:
    """Static blocks: a worker's start, its cost for an output row of blocks, and for a block with n dense rows."""
    half = dtype == "f16"
    if block == 4:
        return (17, 1, np.where(n <= 2, 7, 13) + n) if half else (13, 1, 8 + 4 * n)
    if block == 8:
        return (13, 1, 12 + 2 * n) if half else (13, 4, 11 + 8 * n)
    return (13, 1, 15 + 4 * n) if half else (16, 4, np.where(n == 1, 58, 58 + 16 * n))


def _dynamic_rows(dtype: str, partials: str, block: int, n: Ints) -> tuple[int, Ints]:
    """Dynamic blocks: a worker's start, and its cost for a block with n dense rows; the position is kept between."""
    half, sums = dtype == "f16", partials == "f32"
    if block == 4:
        over = np.minimum(n, 3) - 1 + (17 if sums else 15) if half else np.full_like(n, 14)
        return 26, over + (2 if half else 4) * n - 3
    if block == 8:
        over = np.where(n == 1, 22 if sums else 19, np.where((n == 2) & (not half), 22, 23 if sums else 20))
        return (23 if not half or not sums else 20), over + (4 if half else 8) * n - 3
    if not half:
        # No such vertex: as four blocks of 8 [unvalidated], like the static one, which makes two passes of 8 x 16.
        start, one = _dynamic_rows(dtype, partials, 8, n)
        return start, 4 * one
    passes = 2 if sums else 1  # 8 units or 16
    return (23 if sums else 22), passes * (np.where(n == 2, 25 if sums else 23, 24 if sums else 22) + 4 * n - 3)


def _block_product(
    static: bool, dtype: str, partials: str, block: int, blocks: Ints, n: Ints, outs: Ints, target: Any
) -> Ints:
    """Forward and transposed products of blocks."""
    load = block * block * (4 if dtype == "f32" else 2) // int(target.weight_load_bytes_per_cycle)
    mine, workers = ceil_div(n, target.workers), target.workers
    rows = np.minimum(outs, blocks)
    if static and not (dtype == "f16" and partials == "f32"):
        start, row, one = _static_rows(dtype, block, mine)
        return 30 + workers * start + rows * (workers * row + 17) + blocks * (16 + load + workers * one)
    start, one = _dynamic_rows(dtype, partials, block, mine)
    loads = 1 if block < 16 or partials == "f16" else 2 if dtype == "f16" else 4
    # Where a tile finds its bucket is known for a static pattern; what is left is the walk over its blocks.
    head = 30 if static else 40 + 46 + 56
    return head + 2 + rows + blocks * (load + 3 + 12 * loads) + workers * (start + blocks * one)


def _zeroing(partials: str, block: int, n: Ints, outs: Ints, target: Any) -> Ints:
    """Sums in fp32 of blocks of 8 and 16 are zeroed before they are added to."""
    if partials == "f16" or block < 8:
        return np.zeros(1, np.int64)
    words = ceil_div(outs * n * block * 4, 8)
    return target.workers * (12 + ceil_div(words, target.workers))


def _element_product(
    static: bool, transposed: bool, dtype: str, blocks: Ints, n: Ints, outs: Ints, target: Any
) -> Ints:
    """Forward and transposed products of single elements: workers share the output rows."""
    workers = target.workers
    rows = ceil_div(np.minimum(outs, blocks), workers)
    each, wide = ceil_div(blocks, workers), 8 if dtype == "f16" else 4
    whole, rest = n // wide, n % wide
    if static:
        more = np.maximum(each - rows, 0)
        if dtype == "f16":
            some = rows * (11 + 14 * whole + 9 * (rest > 0)) + more * (3 * whole + 2 * (rest > 0))
            cycles = np.select(
                [n == 4, n == 8], [31 + 7 * rows + 2 * more, 31 + 8 * rows + 3 * more], 33 + some
            )  # fmt: skip
        else:
            some = rows * (12 + 10 * whole + 10 * (rest > 0)) + more * (3 * whole + 2 * (rest > 0))
            cycles = np.select(
                [n == 2, n == 4], [29 + 5 * rows + 2 * more, 30 + 6 * rows + 3 * more], 31 + some
            )  # fmt: skip
        return workers * cycles
    # One and half a vector of rows have loops of their own.
    full, part = n == wide, n == wide // 2
    if dtype == "f16":
        (start, row, first, last), short = ((29, 10, 14, 10), 23) if transposed else ((30, 11, 16, 11), 25)
        over = row + first * (whole > 0) + 13 * (rest >= 4) + last * (rest % 4 > 0)
        one, over_full = 3 * whole + 2 * (rest >= 4) + 2 * (rest % 4), 15
    else:
        (start, row, first), short = ((30, 12, 10), 20) if transposed else ((27, 12, 12), 22)
        over = row + first * (whole > 0) + 8 * (rest >= 2) + 8 * (rest % 2) + np.where(rest > 0, 3, 1)
        one, over_full = 3 * whole + 2 * (rest >= 2) + 2 * (rest % 2), 13
    starts = np.select([full, part], [short, short + 2], start)
    overs = np.select([full, part], [over_full, 11], over)
    return 30 + 44 + 46 + workers * (starts + rows * overs + each * one)


def _sampled(dtype: str, partials: str, block: int, blocks: Ints, n: Ints, outs: Ints, target: Any) -> Ints:
    """The products that give the blocks: by the vector path, or by the AMP where that is less and there is a vertex."""
    workers, half = target.workers, dtype == "f16"
    rows, each = ceil_div(np.minimum(outs, blocks), workers), ceil_div(blocks, workers)
    head = 37 + 38 + 26
    if block == 1:
        element = 11 + n // 4 + 3 * (n % 4 >= 2) + 4 * (n % 2) if half else 9 + n // 2 + n % 2
        full, part = n == (8 if half else 4), n == (4 if half else 2)
        starts = np.select([full, part], [28, 30], 33 if half else 32)
        lines = np.select([full, part], [10, 9] if half else [8, 6], 6 if half else 7)
        return head + workers * (starts + rows * lines + each * np.select([full, part], [5, 4], element))
    first, row, over, one = {
        4: (26, 9, 33 if partials == "f32" else 29, 6) if half else (27, 9, 45, 12),
        8: (26, 9, 113, 24) if half else (24, 7, 208, 48),
        # In fp32 there is no vertex for 16: as four blocks of 8 [unvalidated].
        16: (27, 9, 505 if partials == "f32" else 441, 96) if half else (24, 7, 4 * 208, 4 * 48),
    }[block]
    vector = head + workers * (first + rows * row + each * (over + one * n))
    if block == 16 and not half:
        return vector
    load = {4: 54, 8: 114, 16: 234}[block]
    keep, work, off = {
        4: (6, 18 if partials == "f32" else 17, 2) if half else (6, 21, 1),
        8: (8 if partials == "f32" else 7, 28, 4) if half else (8, 34, 2),
        16: (10, 33, 4),
    }[block]
    deep = np.maximum(ceil_div(n, 16 if half else 8), 1)
    held = np.minimum(outs, blocks)
    supervisor = 23 + 8 * (held - 1) + 22 * held + blocks * (10 + 15 + 4 * (deep - 1) + deep * (8 + load))
    amp = head + supervisor + workers * (keep + blocks * (work * deep - (deep - 1) * off))
    return np.minimum(vector, amp)


def sparse_cycles(
    mode: str, static: bool, dtype: str, partials: str, block: int, blocks: Any, n: Any, slots: tuple[Any, Any],
    target: Any,
) -> Ints:  # fmt: skip
    """Cycles of a tile's product; the planner and the report read the same.

    Args:
        mode: one of MODES.
        static: whether the pattern is known when the program is made.
        dtype, partials: "f16" or "f32".
        block: edge of a block.
        blocks: blocks of the tile.
        n: rows of its dense operands.
        slots: slots of X and of Y.
        target: the chip.
    """
    blocks, n = np.asarray(blocks, np.int64), np.asarray(n, np.int64)
    outs = np.asarray(slots[0 if mode == "transposed" else 1], np.int64)
    if mode == "sampled":
        return _sampled(dtype, partials, block, blocks, n, outs, target)
    if block == 1:
        return _element_product(static, mode == "transposed", dtype, blocks, n, outs, target)
    cycles = _block_product(static, dtype, partials, block, blocks, n, outs, target)
    return cycles + _zeroing(partials, block, n, outs, target)


class Sparse:
    """Blocks times slots."""

    name = "sparseDenseMatMul"
    source = "poplibs popsparse/StaticMatMulPartitioner.cpp, popsparse/PerformanceEstimation.hpp"
    code_bytes = 1024  # [unvalidated] hardware.md 5.1: AMP codelets 0.5 to 2 KiB

    def operands(self, g: GroupView) -> list[Operand]:
        """Positions, V, X, Y."""
        mode, width, block = int(g.params[0]), int(g.params[4]), int(g.params[3])
        size, partial = DTYPES[int(g.params[1])].itemsize, DTYPES[int(g.params[2])].itemsize
        blocks, n = g.col(1), g.col(2)
        counts = [blocks * block * block, g.col(3) * n * block, g.col(4) * n * block]
        written = 2 - mode
        return [
            Operand(g.col(5), 2 * blocks * width, "r"),
            *(
                Operand(g.col(6 + i), count * (partial if i == written else size), "w" if i == written else "r")
                for i, count in enumerate(counts)
            ),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """See `sparse_cycles`."""
        mode, dtype, partials = MODES[int(g.params[0])], DTYPES[int(g.params[1])].name, DTYPES[int(g.params[2])].name
        slots = g.col(3), g.col(4)
        return sparse_cycles(
            mode, bool(g.params[5]), dtype, partials, int(g.params[3]), g.col(1), g.col(2), slots, target
        )

    def unsourced_cycles(self, g: GroupView, target: Any) -> Ints | None:
        """Blocks of 16 in fp32, where poplibs has no vertex: all but the static product forward and transposed."""
        static, sampled = bool(g.params[5]), MODES[int(g.params[0])] == "sampled"
        single = DTYPES[int(g.params[1])].name == "f32"
        return self.cycles(g, target) if int(g.params[3]) == 16 and single and (sampled or not static) else None

    def state_bytes(self, g: GroupView) -> Ints:
        """Four pointers, sizes and strides, and for each worker where it starts; positions are an operand."""
        return np.full(g.rows, pointers(4, 6 + 6), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        block = int(g.params[3])
        each = [np.broadcast_to(g.col(i), g.rows).astype(np.float64) for i in range(1, 5)]
        macs = float((each[0] * each[1]).sum()) * block * block
        moved = float(((each[2] + each[3]) * each[1]).sum()) * block
        return 150.0 * g.rows + 30.0 * float(each[0].sum()) + (0.05 if block > 1 else 0.6) * macs + 0.2 * moved
