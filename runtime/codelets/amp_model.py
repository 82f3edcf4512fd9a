"""The ways in which poplibs multiplies on a tile, and the cycles of each. The planner and the report read the same.

Source: hardware.md 3.6 (poplibs poplin/PerformanceEstimation.hpp). Symbols as there: `rows` are field points times
batch, `ic` and `oc` the input and output channels of a group; an AMP block is `ins` input channels of `units` outputs.

The methods:
    amp    weights in the convolution units, 1 x 1 or one tap after another (kernel heights 1, 2 and 4)
    slic   1 x 4 taps of four channels at once; fp16, strides of 1 and 2
    hmac   horizontal multiply-accumulate: dot products over the input channels, no blocks to fill
    vmac   vertical multiply-accumulate: one output for one input channel (depthwise), fp16
    outer  outer product: one input channel
    vector integers, which have no AMP
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ipu_runtime.codelets.model import Ints, ceil_div

METHODS = ("amp", "slic", "hmac", "vmac", "outer", "vector")
"""Names by the number that a group's parameters hold."""

DEPTH = 4
"""Inputs that a convolution unit chains: times the elements of 8 B they are its weights (hardware.md 1.1)."""


class Amp(NamedTuple):
    """What of a target decides a product's cycles.

    Attributes:
        dtype: of the operands: "f16", "f32" or "f8" (quarters, with fp16 partial sums only).
        partials: dtype of the partial sums.
        units: convolution units.
        load: weight bytes loaded a cycle.
        workers: worker threads.
    """

    dtype: str
    partials: str
    units: int
    load: int
    workers: int

    @property
    def ins(self) -> int:
        """Input channels of a block: 32 fp8, 16 fp16 or 8 fp32."""
        return DEPTH * self.vector

    @property
    def vector(self) -> int:
        """Elements of 8 B."""
        return {"f8": 8, "f16": 4}.get(self.dtype, 2)

    @property
    def outs(self) -> int:
        """Partial sums that an accumulator loop takes at once: 4 fp32 or 8 fp16."""
        return 8 if self.partials == "f16" else 4

    @property
    def weight_load(self) -> int:
        """Cycles to fill the units."""
        return self.units * DEPTH * 8 // self.load


def amp_of(target: Any, dtype: str, partials: str) -> Amp:
    """The AMP unit of a target for operands and partial sums of some dtypes."""
    if dtype == "f16":
        half = partials == "f16"
        units = target.fp16_in_fp16_out_conv_units if half else target.fp16_in_fp32_out_conv_units
    elif dtype == "f8":
        units = target.fp8_in_fp16_out_conv_units
    else:
        units = target.fp32_in_fp32_out_conv_units
    return Amp(dtype, partials, int(units), int(target.weight_load_bytes_per_cycle), int(target.workers))


def _points(r: Ints, few: tuple[int, int, int], many: int, step: int) -> Ints:
    """Figures for 0, 1, 2 points, then `many` for the third and `step` for each further one."""
    return np.select([r == 0, r == 1, r == 2], list(few), many + step * (r - 3)).astype(np.int64)


def amp_1x1(rows: Any, ic: Any, oc: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of the 1x1 AMP vertex.

    Args:
        rows: field points times batch; divided evenly over the workers.
        ic, oc: channels of a group, padded to blocks.
        groups: groups, one after another.
        amp: the unit.
    """
    rows = np.asarray(rows, np.int64)
    half = amp.dtype == "f16"
    most, least = ceil_div(rows, amp.workers), rows // amp.workers

    def worker(r: Ints, zero: bool) -> Ints:
        if amp.dtype == "f8":
            return 17 + _points(r, (4, 18, 23), 27, 4) - (5 if zero else 0)
        if half:
            return _points(r, (21, 32, 41), 37, 4) - 7 + (0 if zero else 1)
        base = _points(r, (24, 47, 46), 46, 8)
        return base + (2 + 8 * r if zero else 0)

    inner = {z: np.maximum(amp.workers * worker(most, z), amp.workers * worker(least, z) + 14) for z in (True, False)}
    ig, og = ceil_div(np.asarray(ic, np.int64), amp.ins), ceil_div(np.asarray(oc, np.int64), amp.units)
    groups = np.asarray(groups, np.int64)
    if amp.dtype == "f8":
        # poplibs' vertex for quarters has other loops: input channels inside, one pass for each block of outputs.
        w, load = amp.workers, amp.weight_load
        passes = 20 * w + 11 + load + inner[True] + (ig - 1) * (17 * w + 6 + load + inner[False])
        return 46 + groups * (2 * w + 9 + og * (6 * w + 10 + passes))
    first = 50 + amp.workers * (7 + (3 if half else 0) * (ig * groups - 1))
    later = (ig - 1) * (15 + og * (19 + 6 + amp.weight_load + inner[False]))
    return first + groups * (13 + later + 11 + og * (18 + 7 + amp.weight_load + inner[True]))


def _row_share(rows: Ints, length: Ints, workers: int) -> tuple[Ints, Ints]:
    """Rows of the busiest worker, and their length: with fewer rows than workers a row itself is divided."""
    return ceil_div(rows, workers), np.where(rows < workers, ceil_div(rows * length, workers), length)


def fill_cycles(n: Any, amp: Amp) -> Ints:
    """Zeroes `n` partial sums. Source: hardware.md 3.4 (Fill1D)."""
    mine = ceil_div(np.asarray(n, np.int64), amp.workers)
    return amp.workers * (26 + ceil_div(mine, 4) if amp.partials == "f16" else 24 + ceil_div(mine, 2))


_HEAD = {1: 15, 2: 46, 4: 60}


def amp_nx1(rows: Any, length: Any, taps: tuple[Any, Any, Any], ic: Any, oc: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of the nx1 AMP vertex at the cheapest kernel height: a tap (or 2 or 4 of a column) is a pass of its own.

    Args:
        rows: output rows (batch x outer spatial outputs).
        length: outputs along the innermost spatial dimension.
        taps: kernel elements of the dimensions before the height, of the height, and of the innermost dimension.
        ic, oc, groups, amp: as for `amp_1x1`.
    """
    rows, length, groups = (np.asarray(a, np.int64) for a in (rows, length, groups))
    outer, height, last = (np.asarray(t, np.int64) for t in taps)
    og = ceil_div(np.asarray(oc, np.int64), amp.units)
    zeroing = fill_cycles(rows * length * oc * groups, amp)
    if amp.dtype == "f8":
        return _quarter_nx1(rows, length, (outer, height, last), ic, og, groups, amp) + zeroing
    mine, length = _row_share(rows, length, amp.workers)
    one = _points(length, (17, 29, 33), 34, 4) if amp.dtype == "f16" else _points(length, (17, 33, 44), 45, 8)
    worker = 17 + mine * (3 + one) - 9
    found: Ints | None = None
    for high, head in _HEAD.items():
        # With kernel height 4 weights are loaded at 8 B a cycle (hardware.md 1.1).
        load = amp.units * DEPTH if high == 4 else amp.weight_load
        ig, steps = ceil_div(np.asarray(ic, np.int64), amp.ins // high), outer * ceil_div(height, high)
        inner = steps * (14 + last * (12 + load + head + 3 + amp.workers * worker))
        cycles = 109 + 110 + groups * (16 + ig * (14 + og * (14 + inner))) + zeroing
        found = cycles if found is None else np.minimum(found, np.where((height > 1) | (high == 1), cycles, found))
    assert found is not None
    return found


def _quarter_nx1(
    rows: Ints, length: Ints, taps: tuple[Ints, Ints, Ints], ic: Any, og: Ints, groups: Ints, amp: Amp
) -> Ints:
    """The nx1 vertex for quarters, without the zeroing of its partial sums; `og`: blocks of output channels.

    Source: poplibs poplin/PerformanceEstimation.hpp, getConvPartialnx1*Quarter. Its text counts the load of weights
    twice for a row of taps; here it counts once for each tap, as the vertex loads them.
    """
    outer, height, last = taps
    workers = amp.workers
    mine, part = _row_share(rows, length, workers)
    one = 22 + _points(part, (0, 17, 22), 29, 4)
    each = np.maximum(workers * (18 + mine * one), workers * (18 + rows // workers * one) + 9)
    found: Ints | None = None
    for high in _HEAD:
        load = amp.units * DEPTH if high == 4 else amp.weight_load
        ig, steps = ceil_div(np.asarray(ic, np.int64), amp.ins // high), outer * ceil_div(height, high)
        inner = workers * 5 + 3 + workers * 15 + 13 + load + each + (last - 1) * (workers * 13 + 8 + load + each)
        cycles = 83 + groups * (workers * 5 + 7 + og * (workers * 8 + 10 + ig * (workers * 8 + 13 + steps * inner)))
        found = cycles if found is None else np.minimum(found, np.where((height > 1) | (high == 1), cycles, found))
    assert found is not None
    return found


def slic(rows: Any, length: Any, taps: tuple[Any, Any, Any], ic: Any, oc: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of SLIC: a pass takes 1 x 4 taps of four channels to a quarter of the units' outputs, a point a cycle.

    Its arguments are those of `amp_nx1`. Groups of one channel go four at a time. The vertex's own start is that of
    the nx1 vertex [unvalidated].
    """
    rows, length, groups = (np.asarray(a, np.int64) for a in (rows, length, groups))
    outer, height, last = (np.asarray(t, np.int64) for t in taps)
    depthwise = (np.asarray(ic) == 1) & (np.asarray(oc) == 1)
    outs = np.where(depthwise, 4, amp.units // 4)
    passes = np.where(depthwise, ceil_div(groups, 4), groups * ceil_div(np.asarray(ic), 4) * ceil_div(oc, outs))
    mine, part = _row_share(rows, length, amp.workers)
    worker = mine * (15 + np.maximum(part - 5, 0))
    one = 16 + 18 + amp.workers * worker
    return (
        109
        + 110
        + passes * outer * height * ceil_div(last, 4) * one
        + fill_cycles(rows * length * np.asarray(oc) * groups, amp)
    )


def hmac(rows: Any, length: Any, taps: Any, ic: Any, oc: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of the horizontal MAC: each output is a dot product over the input channels, tap by tap.

    Args:
        rows, length: output rows and outputs of a row.
        taps: kernel elements.
        ic, oc, groups, amp: as for `amp_1x1`.
    """
    rows, length, taps, ic, oc = (np.asarray(a, np.int64) for a in (rows, length, taps, ic, oc))
    half, plain = amp.dtype == "f16", taps == 1
    start = 16 - np.where(plain, 15, 6 if half else 0)
    # 64 bits a cycle where the channels are whole words of them, else two cycles.
    step = ceil_div(ic, amp.vector) * np.where(ic % amp.vector == 0, 1, 2)
    outs = ceil_div(oc, 2) if amp.partials == "f16" else oc
    point = 7 + outs * ((6 if half else 7) + step)
    mine, part = _row_share(np.where(plain, 1, rows), np.where(plain, rows * length, length), amp.workers)
    worker = start + taps * groups * mine * (np.where(plain, 13, 19) + part * point)
    zeroing = np.where(plain, 0, fill_cycles(rows * length * oc * groups, amp))
    return (65 if half else 58) - np.where(plain, 10, 0) + amp.workers * worker + zeroing


def vmac(points: Any, taps: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of the vertical MAC: 3 for eight channels and a tap of each output; its start as HMAC's [unvalidated]."""
    mine = ceil_div(np.asarray(points, np.int64), amp.workers)
    work = 16 + mine * (19 + np.asarray(taps, np.int64) * ceil_div(np.asarray(groups, np.int64), 8) * 3)
    return 65 + amp.workers * work + fill_cycles(np.asarray(points) * groups, amp)


def outer(rows: Any, oc: Any, groups: Any, amp: Amp) -> Ints:
    """Cycles of the outer product: one input channel; a worker has its share of the rows."""
    rows, oc, groups = (np.asarray(a, np.int64) for a in (rows, oc, groups))
    mine = ceil_div(rows, amp.workers)
    if amp.dtype == "f16":
        smooth, start, twice_point = (oc % 4 == 0) & (oc >= 12), 10, np.where(oc % 4 == 0, (oc - 12) // 4, 0) * 2
        twice = np.where(smooth, 12 + twice_point, 20 + 5 * oc)
    else:
        smooth, start = (oc % 2 == 0) & (oc >= 6), 11
        twice = np.where(smooth, 12 + (oc - 6), 20 + 4 * oc)
    return amp.workers * (25 + groups * (start + ceil_div(mine * twice, 2)))


def transpose_cycles(rows: Any, columns: Any, dtype: str, workers: int = 6) -> Ints:
    """On-tile transpose of a [rows, columns] block. Source: hardware.md 3.8 (getTransposeCycleEstimate).

    The workers share the block by its row groups or by its column groups, whichever is less.
    """
    grain, c = (4, 4) if dtype == "f16" else (2, 3)
    rg, cg = ceil_div(np.asarray(rows, np.int64), grain), ceil_div(np.asarray(columns, np.int64), grain)

    def one(r: Ints, g: Ints) -> Ints:
        return r * (12 + c * np.maximum(g - 2, 0))

    return 7 + workers * (29 + 18 + np.minimum(one(ceil_div(rg, workers), cg), one(rg, ceil_div(cg, workers))))


def vector(m: Any, n: Any, k: Any, workers: int = 6) -> Ints:
    """Integer products: seven cycles a multiply, seven an add, spread over workers (hardware.md 3.2)."""
    return 11 + workers * (17 + ceil_div(np.asarray(m, np.int64) * n, workers) * k * 14)


def product_cycles(
    method: str, rows: Any, length: Any, taps: tuple[Any, Any, Any], ic: Any, oc: Any, groups: Any, amp: Amp
) -> Ints:
    """Cycles of a tile's part of a product by one of METHODS; a matrix product is a convolution of one tap.

    Args:
        method: one of METHODS but "vector".
        rows: output rows (batch x outer spatial outputs).
        length: outputs along the innermost spatial dimension; the rows of a matrix product.
        taps: kernel elements of the dimensions before the height, of the height, and of the innermost dimension.
        ic, oc, groups: channels of a group, groups.
        amp: the unit.
    """
    every = np.asarray(taps[0]) * taps[1] * taps[2]
    if method == "slic":
        return slic(rows, length, taps, ic, oc, groups, amp)
    if method == "hmac":
        return hmac(rows, length, every, ic, oc, groups, amp)
    if method == "vmac":
        return vmac(np.asarray(rows) * length, every, groups, amp)
    points = np.asarray(rows) * length
    if method == "outer":
        return outer(points, oc, groups, amp)
    plain = amp_1x1(points, ic, oc, groups, amp)
    if (every == 1).all():
        return plain
    return np.where(every == 1, plain, amp_nx1(rows, length, taps, ic, oc, groups, amp))
