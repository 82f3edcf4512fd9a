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

AMP_DTYPES = ("f8", "f16", "f32")
"""Dtypes of operands that the AMP takes; "f8" stands for the bytes of quarters."""

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
        batch_last: whether a convolution's inputs have the batch innermost, as gradients of weights do.
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
    batch_last: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return int(np.prod([self.groups, self.batch, self.ic, self.oc, *self.outs, *self.taps], dtype=np.int64))


class Parts(NamedTuple):
    """Into how many pieces each dimension is cut: groups, batch, outermost and innermost outputs, output channels,
    input channels, outermost taps; numbers, or arrays over many combinations."""

    groups: Any
    batch: Any
    outer: Any
    inner: Any
    oc: Any
    ic: Any
    taps: Any


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
    if dtype not in AMP_DTYPES:
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


class _Blocks(NamedTuple):
    """A tile's part of a product for each combination of splits: the split itself, and what the tile then has.

    Attributes:
        parts: pieces of each dimension.
        groups, oc, ic: groups and channels of the longest pieces.
        rows, length: output rows (batch x outer outputs), and outputs along the innermost dimension.
        taps: kernel elements before the height, of the height, and of the innermost dimension.
        inputs, weights, outs: elements of the three operands.
        points: inputs of one channel; batch: of them along the batch.
    """

    parts: Parts
    groups: Ints
    oc: Ints
    ic: Ints
    rows: Ints
    length: Ints
    taps: tuple[Any, Any, Any]
    inputs: Ints
    weights: Ints
    outs: Ints
    points: Ints
    batch: Ints


def _blocks(p: Product, target: Target, axes: list[Ints]) -> _Blocks:
    """All combinations of splits.

    Args:
        axes: split counts of each dimension.
    """
    n_grain, c_grain = grains(p.dtype, p.partials, target)
    parts = Parts(*combinations(axes, target.tiles))
    first, last = (p.outs[0] if p.outs else 1), (p.outs[-1] if len(p.outs) > 1 else 1)
    groups, batch = ceil_div(p.groups, parts.groups), ceil_div(p.batch, parts.batch)
    outer, inner = ceil_div(first, parts.outer), ceil_div(last, parts.inner)
    oc, ic = piece(p.oc, parts.oc, n_grain), piece(p.ic, parts.ic, c_grain)
    taps = ceil_div(p.taps[0] if p.taps else 1, parts.taps)
    reach = _reach(p.ins[0], first, outer, taps) if p.ins else np.ones_like(outer)
    if len(p.ins) > 1:
        reach = reach * _count(p.ins[1:-1]) * _reach(p.ins[-1], last, inner, p.taps[-1])
    rows, length = (batch * outer * _count(p.outs[1:-1]), inner) if len(p.outs) > 1 else (batch, outer)
    every: list[Any] = [taps, *p.taps[1:]]
    height, width = (every[-2] if len(every) > 1 else 1), every[-1]
    points = groups * batch * reach
    return _Blocks(
        parts, groups, oc, ic, rows, length, (every[0] * _count(p.taps[1:-2]) if len(every) > 2 else 1, height, width),
        points * ic, groups * taps * _count(p.taps[1:]) * ic * oc, groups * rows * length * oc, points, batch,
    )  # fmt: skip


def _count(extents: tuple[int, ...]) -> int:
    return int(np.prod(extents, dtype=np.int64))


def _exchange(p: Product, x: _Blocks, size: int, target: Target) -> Ints:
    """Cycles to bring the operands from elsewhere.

    Channels that are cut make every point a fragment of its own; whole, rows of points are contiguous.
    """
    parts, field_cut = x.parts, x.parts.outer * x.parts.inner > 1
    taps = x.weights // np.maximum(x.groups * x.ic * x.oc, 1)
    if p.batch_last:
        runs_in = np.where(parts.batch > 1, x.inputs // x.batch, x.groups * x.ic)
        runs_w = x.groups * x.ic * np.where(parts.oc > 1, taps, 1)
    else:
        points = x.points // (x.groups * x.batch)
        runs_in = x.groups * x.batch * (
            np.where(field_cut, x.ic, 1) if p.turned[0] else np.where(parts.ic > 1, points, 1)
        )  # fmt: skip
        runs_w = x.groups * (
            np.where(parts.ic > 1, x.oc, 1) if p.turned[1] else taps * np.where(parts.oc > 1, x.ic, 1)
        )  # fmt: skip
    # Two tiles of a pair that want the same inputs share their buses (hardware.md 1.4, 4).
    per_byte = 1 / target.exchange_bytes_per_cycle
    paired = np.where(parts.oc % 2 == 0, 0.5, 1.0)
    # What lies on the tile already is discounted.
    inputs = (1 - 1 / parts.oc) * _carry(x.inputs * size, runs_in, per_byte * paired, size, target)
    share = parts.batch * parts.outer * parts.inner
    weights = (1 - 1 / share) * _carry(x.weights * size, runs_w, per_byte, size, target)
    found: Ints = inputs + weights + target.sync_cycles + target.exchange_fixed_cycles
    return found


def _vertices(p: Product, x: _Blocks, target: Target) -> tuple[list[str], Ints, Ints]:
    """The methods that can do it; for each split the number of the cheapest, and its cycles with transposes."""
    if p.dtype not in AMP_DTYPES:
        none = np.zeros(x.groups.shape, np.int64)
        return ["vector"], none, x.groups * vector(x.rows * x.length, x.oc, x.ic, target.workers)
    amp, names = amp_of(target, p.dtype, p.partials), _methods(p)
    priced = np.stack(
        [
            np.broadcast_to(product_cycles(m, x.rows, x.length, x.taps, x.ic, x.oc, x.groups, amp), x.groups.shape)
            for m in names
        ]
    )
    if "vmac" in names:
        # The vertical MAC takes whole groups of four.
        priced[names.index("vmac")] = np.where(x.groups % 4 == 0, priced[names.index("vmac")], 1 << 60)
    cycles = priced.min(0)
    if p.batch_last:
        down = x.inputs // x.batch
        cycles = cycles + transpose_cycles(down, x.batch, p.dtype, target.workers)
    elif p.turned[0]:
        cycles = cycles + x.groups * transpose_cycles(x.ic, x.length, p.dtype, target.workers)
    if p.turned[1]:
        cycles = cycles + x.groups * transpose_cycles(x.oc, x.ic, p.dtype, target.workers)
    return names, priced.argmin(0), cycles


def _memory(p: Product, x: _Blocks) -> Ints:
    """Bytes of the fullest tile: operands and partial sums, which an addition over tiles has twice."""
    summed = x.parts.ic * x.parts.taps > 1
    found: Ints = (x.inputs + x.weights) * _itemsize(p.dtype) + x.outs * _partial_size(p) * np.where(summed, 2, 1)
    return found


def _itemsize(dtype: str) -> int:
    return {"f16": 2, "f32": 4, "s8": 1, "u8": 1, "f8": 1}.get(dtype, 4)


def _partial_size(p: Product) -> int:
    return 2 if p.partials == "f16" else 4


@lru_cache(maxsize=4096)
def has_plan(p: Product, target: Target, proportion: float) -> bool:
    """Whether there is a plan that keeps to the memory; mostly a few splits into powers of two answer that.

    Args:
        p: the product.
        target: the chip.
        proportion: availableMemoryProportion.
    """
    one = np.ones(1, np.int64)
    groups, batch, outer, oc = (
        2 ** np.arange(size.bit_length()) for size in (p.groups, p.batch, p.outs[0] if p.outs else 1, p.oc)
    )
    coarse = _blocks(p, target, [groups, batch, outer, one, oc, one, one])
    if (_memory(p, coarse) <= proportion * target.bytes_per_tile).any():
        return True
    return any(plan.fits for plan in plans(p, target, proportion))


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
    x = _blocks(p, target, _axes(p, target))
    exchange = _exchange(p, x, _itemsize(p.dtype), target)
    names, which, vertex = _vertices(p, x, target)
    depth = x.parts.ic * x.parts.taps
    reduce, reduce_code, results = reduce_cost(depth, x.outs, _partial_size(p), target)
    if p.dtype == "f16" and p.partials == "f32":
        reduce = reduce + cast_cycles(results, target.workers)
    memory = _memory(p, x)
    within = memory <= proportion * target.bytes_per_tile
    costs = score(exchange + vertex + reduce, reduce_code, target)
    order = np.where(within, costs, np.inf) if within.any() else memory.astype(float)
    few = np.argpartition(order, min(len(order) - 1, 8 * most))[: 8 * most]
    few = few[np.lexsort((depth[few], order[few]))][:most]
    return tuple(
        Plan(
            Parts(*(int(counts[k]) for counts in x.parts)),
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


def _methods(p: Product) -> list[str]:
    """Methods that can do a product. Source: hardware.md 4; of quarters the AMP is the only one that is modelled."""
    if p.dtype == "f8":
        return ["amp"]
    names, half, taps = ["amp", "hmac"], p.dtype == "f16", _count(p.taps)
    if half and p.plain and taps > 1 and not p.batch_last:
        names.append("slic")
    if half and p.ic == p.oc == 1 and p.groups % 4 == 0 and not p.batch_last and not any(p.turned):
        names.append("vmac")
    if p.ic == 1 and taps == 1 and not p.turned[0] and not p.batch_last:
        names.append("outer")
    return names
