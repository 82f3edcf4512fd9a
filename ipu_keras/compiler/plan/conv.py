"""Splits of a convolution over the tiles: groups, batch, output rows, output channels, input channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipu_keras.compiler.plan.dot import grains, piece, split_counts
from ipu_keras.target import Target
from ipu_runtime.codelets.conv_model import nx1_cycles
from ipu_runtime.codelets.dot_model import amp_cycles, transpose_cycles
from ipu_runtime.codelets.reduce_model import reduce_add_cycles


@dataclass(frozen=True)
class ConvShape:
    """Sizes of a convolution.

    Attributes:
        groups, batch, ic, oc: groups; batch; input and output channels of a group.
        ins, outs, taps: input extents, outputs and kernel extents of each spatial dimension.
    """

    groups: int
    batch: int
    ic: int
    oc: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    taps: tuple[int, ...]


@dataclass(frozen=True)
class ConvPlan:
    """Parts of (groups, batch, outermost outputs, output channels, input channels, outermost taps), and estimates."""

    parts: tuple[int, int, int, int, int, int]
    cycles: int
    tile_bytes: int


@lru_cache(maxsize=4096)
def plan_conv(
    shape: ConvShape, dtype: str, target: Target, proportion: float = 0.6, batch_last: bool = False
) -> ConvPlan:
    """The cheapest split by the cycle model; see `plan.dot` for the terms and the memory bound."""
    size = 2 if dtype == "f16" else 4
    tiles = target.tiles
    first_out = shape.outs[0] if shape.outs else 1
    n_grain, c_grain = grains(dtype)
    axes = [
        split_counts(shape.groups, tiles),
        split_counts(shape.batch, tiles),
        split_counts(first_out, tiles),
        split_counts(shape.oc, tiles, n_grain),
        split_counts(shape.ic, tiles, c_grain),
        split_counts(shape.taps[0] if shape.taps else 1, tiles),
    ]
    while np.prod([len(a) for a in axes]) > 200_000:
        longest = int(np.argmax([len(a) for a in axes]))
        axes[longest] = axes[longest][::2]
    g, b, o, n, c, t = (a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij"))
    fits = g * b * o * n * c * t <= tiles
    g, b, o, n, c, t = g[fits], b[fits], o[fits], n[fits], c[fits], t[fits]
    g1, b1, o1 = -(-shape.groups // g), -(-shape.batch // b), -(-first_out // o)
    n1, c1 = piece(shape.oc, n, n_grain), piece(shape.ic, c, c_grain)
    first_taps = shape.taps[0] if shape.taps else 1
    t1 = -(-first_taps // t)
    last_tap = shape.taps[-1] if len(shape.taps) > 1 else 1
    taps = t1 * (int(np.prod(shape.taps[1:])) if shape.taps else 1)
    outer = int(np.prod(shape.outs[1:])) if shape.outs else 1
    inner_in = int(np.prod(shape.ins[1:])) if shape.ins else 1
    share = shape.ins[0] / max(1, first_out) if shape.ins else 1
    rows_in = np.minimum(shape.ins[0] if shape.ins else 1, np.ceil(o1 * share) + t1 - 1)
    inputs = g1 * b1 * rows_in * inner_in * c1
    weights = g1 * taps * c1 * n1
    outs = g1 * b1 * o1 * outer * n1
    # Channels that are cut make every point a fragment of its own; whole, rows of points are contiguous.
    points_in = g1 * b1 * rows_in * inner_in
    if batch_last:
        runs_in, runs_w = np.where(b > 1, points_in * c1 // b1, g1 * c1), g1 * c1 * np.where(n > 1, taps, 1)
    else:
        runs_in, runs_w = np.where(c > 1, points_in, g1 * b1), g1 * taps * np.where(n > 1, c1, 1)
    per_byte = 1 / target.exchange_bytes_per_cycle
    exchange = inputs * size * per_byte + target.fragment_cycles * runs_in
    exchange = exchange + (1 - 1 / (b * o)) * (weights * size * per_byte + target.fragment_cycles * runs_w)
    load = target.weight_load_bytes_per_cycle
    length = shape.outs[-1] if len(shape.outs) > 1 else 1
    points = b1 * o1 * outer
    by_row = (taps // last_tap, last_tap) if len(shape.taps) > 1 else (1, taps)
    many = nx1_cycles(points // max(1, length), length, by_row, c1, n1, g1, dtype, load)
    vertex = np.where(taps == 1, g1 * amp_cycles(points, c1, n1, dtype, load), many)
    if batch_last:
        vertex = vertex + transpose_cycles(g1 * c1 * rows_in * inner_in, b1, dtype)
    depth = c * t
    mine = -(-outs // depth)
    reduce = np.where(
        depth > 1,
        mine * depth * 4 * per_byte
        + target.fragment_cycles * depth
        + 2 * target.sync_cycles
        + target.exchange_fixed_cycles
        + reduce_add_cycles(depth, mine),
        0,
    )
    cycles = exchange + vertex + reduce
    memory = (inputs + weights) * size + outs * 4 * np.where(depth > 1, 2, 1)
    within = memory <= proportion * target.bytes_per_tile
    score = np.where(within, cycles, np.inf) if within.any() else memory.astype(float)
    best = int(np.lexsort((depth, score))[0])
    parts = (int(g[best]), int(b[best]), int(o[best]), int(n[best]), int(c[best]), int(t[best]))
    return ConvPlan(parts, int(cycles[best]), int(memory[best]))
