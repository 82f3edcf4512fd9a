"""Convolutions on a tile: the AMP unit, nx1 form. Source: hardware.md 3.6 (poplin/PerformanceEstimation.hpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets.dot_model import amp_cycles, transpose_cycles
from ipu_runtime.codelets.model import WORKERS, Ints, Operand, ceil_div, per_worker, pointers, product
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


def nx1_cycles(
    rows: Any, row_length: Any, taps: tuple[Any, Any], ic: Any, oc: Any, groups: Any, dtype: str, load: int = 8
) -> Ints:
    """Cycles of the nx1 AMP vertex with kernel height 1: every tap is a pass of its own over the output rows.

    Args:
        rows: output rows (batch x outer spatial outputs).
        row_length: outputs along the innermost spatial dimension.
        taps: kernel elements of the outer dimensions, and of the innermost.
        ic: input channels of a group; padded to 16 (fp16) or 8 (fp32).
        oc: output channels of a group; padded to 8 (fp16) or 16 (fp32).
        groups: convolution groups.
        dtype: "f16" or "f32".
        load: weight bytes loaded a cycle.
    """
    half = dtype == "f16"
    units, in_block = (8, 16) if half else (16, 8)
    rows, length = np.asarray(rows, np.int64), np.asarray(row_length, np.int64)
    mine, outs = ceil_div(rows, WORKERS), rows * length * oc * groups
    # With fewer rows than workers a row itself is divided.
    length = np.where(rows < WORKERS, ceil_div(rows * length, WORKERS), length)
    # Figures for 0, 1, 2 and more points of a row.
    if half:
        one = np.select([length == 0, length == 1, length == 2], [17, 29, 33], 34 + 4 * (length - 3))
    else:
        one = np.select([length == 0, length == 1, length == 2], [17, 33, 44], 45 + 8 * (length - 3))
    worker = 17 + mine * (3 + one) - 9
    loads = units * 32 // load
    ig, og = ceil_div(np.asarray(ic, np.int64), in_block), ceil_div(np.asarray(oc, np.int64), units)
    outer, last = taps
    inner = outer * (14 + last * (12 + (loads + 15 + 3))) + outer * last * WORKERS * worker
    # The partial sums are zeroed by Fill1D (hardware.md 3.4).
    zeroing = WORKERS * (24 + ceil_div(per_worker(outs), 2))
    return 109 + 110 + np.asarray(groups) * (16 + ig * (14 + og * (14 + inner))) + zeroing


class Conv:
    """Batches, groups, up to three spatial dimensions."""

    name = "convPartial"
    source = "poplibs poplin/PerformanceEstimation.hpp (AMP 1x1 and nx1)"
    code_bytes = 2048  # [unvalidated] hardware.md 5.1

    def _dims(self, g: GroupView) -> tuple[int, list[Ints], list[Ints], list[Ints]]:
        nd = int(g.params[0])
        cols = [[g.col(5 + 4 * d + i) for d in range(nd)] for i in range(3)]
        return nd, cols[0], cols[1], cols[2]

    def operands(self, g: GroupView) -> list[Operand]:
        """Input, weights, partial sums."""
        nd, s, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        size = DTYPES[int(g.params[1])].itemsize
        return [
            Operand(g.col(5 + 4 * nd), product([groups, batch, ic, *s], g.rows) * size, "r"),
            Operand(g.col(6 + 4 * nd), product([groups, ic, oc, *k], g.rows) * size, "r"),
            Operand(g.col(7 + 4 * nd), product([groups, batch, oc, *o], g.rows) * 4, "w"),
        ]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """1x1 or nx1 AMP, whichever the kernel is."""
        nd, _, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        dtype = DTYPES[int(g.params[1])].name
        taps, outs = product(k, g.rows), product([batch, *o], g.rows)
        load = target.weight_load_bytes_per_cycle
        if g.params[2]:
            # Batch last: every input is transposed on the tile first.
            _, s, _, _ = self._dims(g)
            turn = transpose_cycles(product([groups, ic, *s], g.rows), batch, dtype)
        else:
            turn = np.zeros(1, np.int64)
        one_by_one = groups * amp_cycles(outs, ic, oc, dtype, load)
        length = o[-1] if nd else np.ones(1, np.int64)
        last = k[-1] if nd else np.ones(1, np.int64)
        many = nx1_cycles(outs // np.maximum(length, 1), length, (taps // last, last), ic, oc, groups, dtype, load)
        return np.broadcast_to(np.where(taps == 1, one_by_one, many) + turn, g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """Three pointers, the sizes, a work list entry for each tap and worker."""
        _, _, _, k = self._dims(g)
        return pointers(3, 10) + 6 * WORKERS * product(k, g.rows)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        _, _, o, k = self._dims(g)
        groups, batch, ic, oc = (g.col(i) for i in range(1, 5))
        macs = product([groups, batch, ic, oc, *o, *k], g.rows).astype(np.float64)
        return 300.0 * g.rows + 0.04 * float(macs.sum()) + float(product([groups, batch, *o, *k], g.rows).sum()) * 5
