"""Plans of matrix products and convolutions: how the work is cut over the tiles, and which vertex does it.

A matrix product is a convolution of one tap (hardware.md 4): its rows are the field, its depth the input channels. All
combinations of a thinned list of split counts are priced by array arithmetic: operands exchanged, vertex by each method
that can do it, partial sums exchanged and reduced. The memory bound: operands and partial sums of a tile within
availableMemoryProportion of it. The formulas are those that time the program.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.compiler.plan.reduction import reduce_cost
from ipu_keras.compiler.plan.splits import LADDER, Ints, combinations, piece, split_counts
from ipu_keras.compiler.plan.traffic import score
from ipu_keras.target import Target
from ipu_runtime.codelets.amp_model import amp_of, product_cycles, transpose_cycles, vector
from ipu_runtime.codelets.copy_model import rearrange_cycles
from ipu_runtime.codelets.model import ceil_div

MOST = 250_000
"""Combinations that are priced at most."""


@dataclass(frozen=True)
class Product:
    """Sizes of a product and how its operands lie.

    Attributes:
        dtype: of the operands.
        partials: dtype of the partial sums.
        groups, batch, ic, oc: groups; batch; input and output channels of a group.
        ins, outs, taps: input extents, outputs and kernel extents of each spatial dimension; a matrix product has its
            rows here and one tap.
        plain: strides of at most 2, no dilated inputs, no reversed windows: what SLIC takes.
        turned: whether the rows come as [channels, rows], and the weights as [outputs, inputs]; they are transposed
            on the tiles.
    """

    dtype: str
    partials: str
    groups: int
    batch: int
    ic: int
    oc: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    taps: tuple[int, ...]
    plain: bool = True
    turned: tuple[bool, bool] = (False, False)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return int(np.prod([self.groups, self.batch, self.ic, self.oc, *self.outs, *self.taps], dtype=np.int64))


class Parts(NamedTuple):
    """Into how many pieces each dimension is cut: groups, batch, outermost and innermost outputs, output channels,
    input channels, outermost taps."""

    groups: int
    batch: int
    outer: int
    inner: int
    oc: int
    ic: int
    taps: int


@dataclass(frozen=True)
class Plan:
    """A way to do a product, and what the planner expects of it.

    Attributes:
        parts: pieces of each dimension.
        method: one of `amp_model.METHODS`.
        exchange, vertex, reduce: cycles to bring the operands, of the vertices (with transposes), and to add up and
            cast.
        reduce_code: bytes of a tile's exchange code to add up.
        tile_bytes: operands and partial sums of the fullest tile.
        fits: whether these are within availableMemoryProportion.
    """

    parts: Parts
    method: str
    exchange: int
    vertex: int
    reduce: int
    tile_bytes: int
    reduce_code: int
    fits: bool

    @property
    def cycles(self) -> int:
        """All of it."""
        return self.exchange + self.vertex + self.reduce

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for the executable's header."""
        return {**dataclasses.asdict(self), "parts": self.parts._asdict()}


def grains(dtype: str, partials: str, target: Target) -> tuple[int, int]:
    """(output, input) channels of an AMP block: pieces are whole blocks. Source: hardware.md 1.1, 4."""
    if dtype not in ("f16", "f32"):
        return 1, 1
    amp = amp_of(target, dtype, partials)
    return amp.units, amp.ins


def _axes(p: Product, target: Target) -> list[Ints]:
    """Split counts of each dimension; fewer where all together would be too many."""
    n_grain, c_grain = grains(p.dtype, p.partials, target)
    sizes = [p.groups, p.batch, p.outs[0] if p.outs else 1, p.outs[-1] if len(p.outs) > 1 else 1, p.oc, p.ic]
    sizes.append(p.taps[0] if p.taps else 1)
    steps = [1, 1, 1, 1, n_grain, c_grain, 1]
    ladder = LADDER
    while True:
        axes = [split_counts(n, target.tiles, g, ladder) for n, g in zip(sizes, steps, strict=True)]
        # An even number of output-channel pieces halves the inputs' time (tiles of a pair), at the same pieces.
        axes[4] = np.unique(np.concatenate([axes[4], np.minimum(axes[4] + axes[4] % 2, max(1, -(-p.oc // n_grain)))]))
        if np.prod([len(a) for a in axes]) <= 40 * MOST and len(combinations(axes, target.tiles)[0]) <= MOST:
            return axes
        ladder = ladder * 3 // 4


@lru_cache(maxsize=4096)
def plans(p: Product, target: Target, proportion: float = 0.6, most: int = 6) -> tuple[Plan, ...]:
    """The cheapest plans, best first.

    Args:
        p: the product.
        target: the chip.
        proportion: availableMemoryProportion; if nothing fits it, the plans that need the least memory.
        most: how many plans.

    Source: hardware.md 4 (poplibs poplin/ConvPlan.cpp, ConvModel.cpp).
    """
    half, real = p.dtype == "f16", p.dtype in ("f16", "f32")
    size = {"f16": 2, "f32": 4, "s8": 1, "u8": 1}.get(p.dtype, 4)
    partial_size = 2 if p.partials == "f16" else 4
    n_grain, c_grain = grains(p.dtype, p.partials, target)
    g, b, o, i, n, c, t = combinations(_axes(p, target), target.tiles)
    first, last = (p.outs[0] if p.outs else 1), (p.outs[-1] if len(p.outs) > 1 else 1)
    g1, b1, o1, i1 = -(-p.groups // g), -(-p.batch // b), -(-first // o), -(-last // i)
    n1, c1 = piece(p.oc, n, n_grain), piece(p.ic, c, c_grain)
    t1 = -(-(p.taps[0] if p.taps else 1) // t)
    # ---- sizes of a tile's blocks ----
    middle = int(np.prod(p.outs[1:-1], dtype=np.int64))
    rows_in = _reach(p.ins[0], first, o1, t1) if p.ins else np.ones_like(o1)
    if len(p.ins) > 1:
        rows_in = rows_in * int(np.prod(p.ins[1:-1], dtype=np.int64)) * _reach(p.ins[-1], last, i1, p.taps[-1])
    other_taps = int(np.prod(p.taps[1:], dtype=np.int64))
    points_in, taps = g1 * b1 * rows_in, t1 * other_taps
    inputs, weights, outs = points_in * c1, g1 * taps * c1 * n1, g1 * b1 * o1 * middle * i1 * n1
    # ---- operands ----
    # Channels that are cut make every point a fragment of its own; whole, rows of points are contiguous.
    if p.turned[0] and p.taps and (len(p.outs) > 1 or p.taps[0] > 1 or p.batch > 1):
        runs_in, runs_w = np.where(b > 1, points_in * c1 // b1, g1 * c1), g1 * c1 * np.where(n > 1, taps, 1)
    else:
        runs_in = g1 * b1 * (np.where(o * i > 1, c1, 1) if p.turned[0] else np.where(c > 1, rows_in, 1))
        runs_w = g1 * (np.where(c > 1, n1, 1) if p.turned[1] else taps * np.where(n > 1, c1, 1))
    in_bytes, w_bytes = inputs * size, weights * size
    # Two tiles of a pair that want the same inputs share their buses (hardware.md 1.4, 4).
    per_byte = 1 / target.exchange_bytes_per_cycle
    paired = np.where(n % 2 == 0, 0.5, 1.0)
    # What lies on the tile already is discounted.
    exchange = (1 - 1 / n) * _carry(in_bytes, runs_in, per_byte * paired, size, target)
    exchange = exchange + (1 - 1 / (b * o * i)) * _carry(w_bytes, runs_w, per_byte, size, target)
    exchange = exchange + target.sync_cycles + target.exchange_fixed_cycles
    # ---- vertex ----
    rows, length = (b1 * o1 * middle, i1) if len(p.outs) > 1 else (b1, o1)
    if real:
        amp = amp_of(target, p.dtype, p.partials)
        tap = (t1 * int(np.prod(p.taps[1:-2], dtype=np.int64)) if len(p.taps) > 2 else 1,
               t1 if len(p.taps) == 2 else (p.taps[-2] if len(p.taps) > 2 else 1),
               t1 if len(p.taps) == 1 else (p.taps[-1] if p.taps else 1))  # fmt: skip
        names = _methods(p, half)
        priced = np.stack(
            [np.broadcast_to(product_cycles(m, rows, length, tap, c1, n1, g1, amp), g.shape) for m in names]
        )
        # The outer product takes one input channel, the vertical MAC whole groups of four.
        if "vmac" in names:
            priced[names.index("vmac")] = np.where(g1 % 4 == 0, priced[names.index("vmac")], 1 << 60)
        which = priced.argmin(0)
        vertex = priced.min(0)
        if p.turned[0]:
            across, down = (b1, g1 * c1 * rows_in) if len(p.outs) > 1 or p.batch > 1 else (o1, c1)
            again = 1 if len(p.outs) > 1 or p.batch > 1 else g1
            vertex = vertex + again * transpose_cycles(down, across, p.dtype, target.workers)
        if p.turned[1]:
            vertex = vertex + g1 * transpose_cycles(n1, c1, p.dtype, target.workers)
    else:
        names, which = ["vector"], np.zeros(g.shape, np.int64)
        vertex = g1 * vector(rows * length, n1, c1, target.workers)
    # ---- sums ----
    depth = c * t
    reduce, reduce_code, results = reduce_cost(depth, outs, partial_size, target)
    if half and p.partials == "f32":
        reduce = reduce + cast_cycles(results, target.workers)
    memory = in_bytes + w_bytes + outs * partial_size * np.where(depth > 1, 2, 1)
    within = memory <= proportion * target.bytes_per_tile
    costs = score(exchange + vertex + reduce, reduce_code, target)
    order = np.where(within, costs, np.inf) if within.any() else memory.astype(float)
    few = np.argpartition(order, min(len(order) - 1, 8 * most))[: 8 * most]
    few = few[np.lexsort((depth[few], order[few]))][:most]
    return tuple(
        Plan(
            Parts(*(int(a[k]) for a in (g, b, o, i, n, c, t))),
            names[int(which[k])],
            round(float(exchange[k])),
            int(vertex[k]),
            round(float(reduce[k])),
            int(memory[k]),
            int(reduce_code[k]),
            bool(within[k]),
        )
        for k in few.tolist()
        if np.isfinite(order[k])
    )


def cast_cycles(n: Ints, workers: int) -> Ints:
    """Sums of fp32 become fp16. Source: hardware.md 3.4 (Cast1D): 12 + workers x (18 + 19 + 2 for four)."""
    found: Ints = 12 + workers * (37 + 2 * ceil_div(ceil_div(n, workers), 4))
    return found


def _reach(ins: int, outs: int, mine: Ints, taps: Ints | int) -> Ints:
    """Inputs that a piece of outputs reads along a dimension."""
    found: Ints = np.minimum(ins, np.ceil(mine * (ins / max(1, outs))).astype(np.int64) + taps - 1)
    return found


def _carry(nbytes: Ints, runs: Ints, per_byte: Any, size: int, target: Target) -> Ints:
    """Cycles to bring blocks that come in runs; many runs are put in order on one side instead."""
    price = target.fragment_price
    apart = np.minimum(price * runs, price + rearrange_cycles(nbytes, size))
    found: Ints = nbytes * per_byte + np.minimum(apart, target.fragment_cycles * runs)
    return found


def _methods(p: Product, half: bool) -> list[str]:
    """Methods that can do a product. Source: hardware.md 4."""
    names = ["amp", "hmac"]
    taps = int(np.prod(p.taps, dtype=np.int64))
    if half and p.plain and taps > 1 and not any(p.turned):
        names.append("slic")
    if half and p.ic == p.oc == 1 and p.groups % 4 == 0 and not any(p.turned):
        names.append("vmac")
    if p.ic == 1 and taps == 1 and not p.turned[0]:
        names.append("outer")
    return names
