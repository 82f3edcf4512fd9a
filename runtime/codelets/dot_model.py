"""Matrix products on a tile: the AMP unit. Source: hardware.md 3.6 (poplibs poplin/PerformanceEstimation.hpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.model import WORKERS, Ints, Operand, ceil_div, pointers
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


def amp_cycles(rows: Any, k: Any, n: Any, dtype: str, weight_bytes_per_cycle: int = 8) -> Ints:
    """Cycles of the 1x1 AMP vertex for a [rows, k] x [k, n] product with fp32 partials.

    Args:
        rows: rows of the left operand.
        k: input channels; padded to 16 (fp16) or 8 (fp32).
        n: output channels; padded to 8 (fp16 with fp32 partials: 8 units) or 16 (fp32: 16 units).
        dtype: "f16" or "f32".
        weight_bytes_per_cycle: 8, or 16 with 128-bit weight loads.

    Returns:
        Cycles, an array over the inputs' broadcast shape.
    """
    rows, k, n = np.asarray(rows, np.int64), np.asarray(k, np.int64), np.asarray(n, np.int64)
    half = dtype == "f16"
    units, in_block = (8, 16) if half else (16, 8)
    loads = units * 32 // weight_bytes_per_cycle  # 16 fp16 or 8 fp32 weights of each unit
    most, least = ceil_div(rows, WORKERS), rows // WORKERS

    def worker(r: Ints, zero: bool) -> Ints:
        if half:
            base: Ints = np.select([r == 0, r == 1, r == 2], [21, 32, 41], 37 + 4 * (r - 3)).astype(np.int64)
            return base - 7 + (0 if zero else 1)
        base = np.select([r == 0, r == 1, r == 2], [24, 47, 46], 46 + 8 * (r - 3)).astype(np.int64)
        return base + (2 + 8 * r if zero else 0)

    inner = {z: np.maximum(WORKERS * worker(most, z), WORKERS * worker(least, z) + 14) for z in (True, False)}
    ig, og, passes = ceil_div(k, in_block), ceil_div(n, units), 1
    s1, s2 = 7, (3 if half else 0)
    return (
        50
        + WORKERS * (s1 + s2 * (ig - 1))
        + 13
        + (ig - 1) * (15 + og * (19 + passes * (6 + loads + inner[False])))
        + 11
        + og * (18 + passes * (7 + loads + inner[True]))
    )


def transpose_cycles(rows: Any, columns: Any, dtype: str) -> Ints:
    """On-tile transpose of a [rows, columns] block. Source: hardware.md 3.8 (getTransposeCycleEstimate).

    The six workers share the block by its row groups or by its column groups, whichever is less.
    """
    grain, c = (4, 4) if dtype == "f16" else (2, 3)
    rg, cg = ceil_div(np.asarray(rows, np.int64), grain), ceil_div(np.asarray(columns, np.int64), grain)

    def one(r: Ints, g: Ints) -> Ints:
        return r * (12 + c * np.maximum(g - 2, 0))

    return 7 + WORKERS * (29 + 18 + np.minimum(one(ceil_div(rg, WORKERS), cg), one(rg, ceil_div(cg, WORKERS))))


def vector_cycles(m: Any, n: Any, k: Any) -> Ints:
    """Integer products have no AMP: seven cycles a multiply, seven an add, spread over workers (hardware.md 3.2)."""
    return 11 + WORKERS * (17 + ceil_div(np.asarray(m, np.int64) * n, WORKERS) * k * 14)


class Dot:
    """Batches of [m, k] x [k, n]."""

    name = "dotPartial"
    source = "poplibs poplin/PerformanceEstimation.hpp (AMP)"
    code_bytes = 1536  # [unvalidated] hardware.md 5.1: AMP codelets 0.5 to 2 KiB

    def operands(self, g: GroupView) -> list[Operand]:
        """A, B, C."""
        batch, m, n, k = (g.col(i) for i in range(1, 5))
        size = DTYPES[int(g.params[0])].itemsize
        return [
            Operand(g.col(5), batch * m * k * size, "r"),
            Operand(g.col(6), batch * k * n * size, "r"),
            Operand(g.col(7), batch * m * n * 4, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Batches one after another; an operand stored the other way round is transposed on the tile first."""
        batch, m, n, k = (g.col(i) for i in range(1, 5))
        dtype = DTYPES[int(g.params[0])].name
        if dtype not in ("f32", "f16"):
            return batch * vector_cycles(m, n, k)
        one = amp_cycles(m, k, n, dtype, target.weight_load_bytes_per_cycle)
        if g.params[1]:
            one = one + transpose_cycles(k, m, dtype)
        if g.params[2]:
            one = one + transpose_cycles(n, k, dtype)
        return batch * one

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, sizes and strides."""
        return np.full(g.rows, pointers(3, 6), np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        batch, m, n, k = (g.col(i).astype(np.float64) for i in range(1, 5))
        return 150.0 * g.rows + 0.03 * float(np.broadcast_to(batch * m * n * k, g.rows).sum())
