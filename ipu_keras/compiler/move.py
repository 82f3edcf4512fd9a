"""Moving an array from one mapping to another: rows of strided copies, by array arithmetic on the two grids.

Each dimension of the destination takes its elements from at most one dimension of the source along a line:
destination index = first + step k, source index = first + step k, for k < count. That covers identity, slice, pad,
reverse, transpose, concatenate and broadcast. The copies are the product over dimensions of the overlaps of the two
sides' intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout, common_view, squeeze

MAX_ROWS = 4_000_000


class Line(NamedTuple):
    """Which elements of one destination dimension come from which of a source dimension (None: the same for all)."""

    src_dim: int | None
    n: int
    dst_first: int = 0
    dst_step: int = 1
    src_first: int = 0
    src_step: int = 1


@dataclass
class Rows:
    """Copies, one per row; offsets and strides in elements. `counts`, `dst_strides`, `src_strides`: [dims][rows]."""

    dst_tile: Ints
    src_tile: Ints
    dst_off: Ints
    src_off: Ints
    counts: list[Ints]
    dst_strides: list[Ints]
    src_strides: list[Ints]

    def __len__(self) -> int:
        return len(self.dst_tile)


def identity(shape: tuple[int, ...]) -> list[Line]:
    """The map of an array onto itself."""
    return [Line(d, n) for d, n in enumerate(shape)]


def _ceil_div(a: Ints, b: int) -> Ints:
    return -(-a // b)


def _k_ranges(starts: Ints, stops: Ints, first: int, step: int, count: int) -> tuple[Ints, Ints]:
    """For intervals of index = first + step k: the k that fall in each."""
    if step > 0:
        low, high = _ceil_div(starts - first, step), _ceil_div(stops - first, step)
    else:
        low, high = (first - stops) // -step + 1, (first - starts) // -step + 1
    return np.clip(low, 0, count), np.clip(high, 0, count)


def _pairs(line: Line, dst: tuple[Ints, Ints], src: tuple[Ints, Ints] | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Overlaps of a dimension: index of the destination's and the source's interval, first k, number of k."""
    d_low, d_high = _k_ranges(dst[0], dst[1], line.dst_first, line.dst_step, line.n)
    if src is None:
        keep = np.flatnonzero(d_high > d_low)
        return keep, np.zeros(len(keep), np.int64), d_low[keep], (d_high - d_low)[keep]
    s_low, s_high = _k_ranges(src[0], src[1], line.src_first, line.src_step, line.n)
    if len(d_low) * len(s_low) <= 1 << 16:
        low = np.maximum(d_low[:, None], s_low[None, :])
        high = np.minimum(d_high[:, None], s_high[None, :])
        di, si = np.nonzero(high > low)
        return di, si, low[di, si], (high - low)[di, si]
    # Many intervals: the source is a partition, so the overlaps of each destination interval are a run of its order.
    order = np.argsort(s_low, kind="stable")
    lows, highs = s_low[order], s_high[order]
    first = np.searchsorted(highs, d_low, "right")
    last = np.searchsorted(lows, d_high, "left")
    n = np.where(d_high > d_low, np.maximum(last - first, 0), 0)
    di = np.repeat(np.arange(len(d_low)), n)
    within = np.arange(len(di)) - np.repeat(np.cumsum(n) - n, n)
    si = order[np.repeat(first, n) + within]
    low, high = np.maximum(d_low[di], s_low[si]), np.minimum(d_high[di], s_high[si])
    keep = high > low
    return di[keep], si[keep], low[keep], (high - low)[keep]


def _strides(layout: Layout, picked: list[Ints]) -> list[Ints]:
    """Stride of each dimension inside the blocks given by interval indices `picked`, in elements."""
    strides: list[Ints] = [np.ones(1, np.int64)] * len(layout.view)
    step: Ints = np.ones(1, np.int64)
    for d in reversed(layout.order):
        strides[d] = step
        step = step * layout.extents[d][picked[d]]
    return strides


def plan_move(dst: Layout, src: Layout, lines: list[Line] | None = None) -> Rows:
    """Copies that fill `dst` from `src`.

    Args:
        dst: the wanted mapping; its blocks may overlap and repeat.
        src: the present mapping, a partition.
        lines: for each dimension of `dst.view` where it comes from, in dimensions of `src.view`;
            None: both are views of one array.

    Returns:
        Rows, sorted by destination tile.
    """
    if lines is None:
        view = common_view(dst.view, src.view)
        fine_dst, fine_src = (None, None) if view is None else (squeeze(dst).refined(view), squeeze(src).refined(view))
        if fine_dst is None or fine_src is None:
            return _by_runs(dst, src)
        dst, src, lines = fine_dst, fine_src, identity(fine_dst.view)
    return _by_product(dst, src, lines)


def _by_product(dst: Layout, src: Layout, lines: list[Line]) -> Rows:
    rank = len(dst.view)
    sides = [
        _pairs(
            line,
            (dst.starts[d], dst.stops[d]),
            None if line.src_dim is None else (src.starts[line.src_dim], src.stops[line.src_dim]),
        )
        for d, line in enumerate(lines)
    ]
    counts = [len(s[0]) for s in sides]
    total = math.prod(counts) * dst.reps
    if total > MAX_ROWS:
        raise MemoryError(f"an exchange of {total:,} copies from {src!r} to {dst!r}")
    index = (
        np.unravel_index(np.arange(total, dtype=np.int64), [*counts, dst.reps])
        if total
        else [np.zeros(0, np.int64)] * (rank + 1)
    )
    d_pick = [sides[d][0][index[d]] for d in range(rank)]
    s_pick: list[Ints] = [np.zeros(total, np.int64)] * len(src.view)
    dst_tile = dst.tiles[(*d_pick, index[rank])]
    d_str = _strides(dst, d_pick)
    for d, line in enumerate(lines):
        if line.src_dim is not None:
            s_pick[line.src_dim] = sides[d][1][index[d]]
    s_str = _strides(src, s_pick)
    dst_off, src_off = np.zeros(total, np.int64), np.zeros(total, np.int64)
    n: list[Ints] = []
    dst_steps: list[Ints] = []
    src_steps: list[Ints] = []
    for d in dst.order:
        line = lines[d]
        k0 = sides[d][2][index[d]]
        n.append(sides[d][3][index[d]])
        dst_off += (line.dst_first + line.dst_step * k0 - dst.starts[d][d_pick[d]]) * d_str[d]
        dst_steps.append(d_str[d] * line.dst_step)
        if line.src_dim is None:
            src_steps.append(np.zeros(1, np.int64))
        else:
            s = line.src_dim
            src_off += (line.src_first + line.src_step * k0 - src.starts[s][s_pick[s]]) * s_str[s]
            src_steps.append(s_str[s] * line.src_step)
    if src.reps == 1:
        src_tile = src.tiles[(*s_pick, 0)] if len(src.view) else np.full(total, src.tiles[0])
    else:
        choices = src.tiles[tuple(s_pick)] if len(src.view) else np.broadcast_to(src.tiles, (total, src.reps))
        here = choices == dst_tile[:, None]
        pick = np.where(here.any(1), here.argmax(1), np.arange(total) % src.reps)
        src_tile = choices[np.arange(total), pick]
    rows = Rows(dst_tile, src_tile, dst_off, src_off, n, dst_steps, src_steps)
    return _sorted(_collapse(rows))


def _collapse(rows: Rows) -> Rows:
    """Drop dimensions of one element and join neighbours that are contiguous on both sides."""
    n, ds, ss = rows.counts, rows.dst_strides, rows.src_strides
    i = 0
    while i < len(n):
        if bool((n[i] == 1).all()):
            del n[i], ds[i], ss[i]
            continue
        if i > 0 and bool((ds[i - 1] == ds[i] * n[i]).all()) and bool((ss[i - 1] == ss[i] * n[i]).all()):
            n[i] = n[i] * n[i - 1]
            del n[i - 1], ds[i - 1], ss[i - 1]
            continue
        i += 1
    return rows


def _sorted(rows: Rows) -> Rows:
    if len(rows) and bool((np.diff(rows.dst_tile) < 0).any()):
        order = np.argsort(rows.dst_tile, kind="stable")

        def take(a: Ints) -> Ints:
            return a if len(a) == 1 else a[order]

        return Rows(
            take(rows.dst_tile),
            take(rows.src_tile),
            take(rows.dst_off),
            take(rows.src_off),
            [take(a) for a in rows.counts],
            [take(a) for a in rows.dst_strides],
            [take(a) for a in rows.src_strides],
        )
    return rows


def places(layout: Layout) -> tuple[Ints, Ints]:
    """Tile and offset (in elements) of each element of a partition, in row-major order."""
    rank = len(layout.view)
    picks = []
    for d, size in enumerate(layout.view):
        order = np.argsort(layout.starts[d], kind="stable")
        pick = order[np.searchsorted(layout.starts[d][order], np.arange(size), "right") - 1]
        picks.append(pick.reshape([-1 if e == d else 1 for e in range(rank)]))
    offsets = np.zeros(layout.view, np.int64)
    strides = _strides(layout, picks)
    for d, size in enumerate(layout.view):
        local = np.arange(size).reshape([-1 if e == d else 1 for e in range(rank)]) - layout.starts[d][picks[d]]
        offsets = offsets + local * strides[d]
    tiles = layout.tiles[..., 0][tuple(np.broadcast_to(p, layout.view) for p in picks)] if rank else layout.tiles[0]
    return np.broadcast_to(tiles, layout.view).reshape(-1), offsets.reshape(-1)


def _slots(layout: Layout) -> tuple[Ints, Ints, Ints]:
    """Everything that the blocks hold, for layouts whose blocks may overlap.

    Returns:
        For each held element: tile of each repetition [reps, elements], offset, and the element's row-major number.
    """
    rank = len(layout.view)
    picks, offsets, numbers = [], np.zeros((1,) * rank, np.int64), np.zeros((1,) * rank, np.int64)
    locals_ = []
    for d, extents in enumerate(layout.extents):
        shape = [-1 if e == d else 1 for e in range(rank)]
        pick = np.repeat(np.arange(len(extents)), extents)
        local = np.arange(len(pick)) - np.repeat(np.cumsum(extents) - extents, extents)
        picks.append(pick.reshape(shape))
        locals_.append(local.reshape(shape))
        numbers = numbers * layout.view[d] + (local + layout.starts[d][pick]).reshape(shape)
    for local, stride in zip(locals_, _strides(layout, picks), strict=True):
        offsets = offsets + local * stride
    full = numbers.shape
    tiles = layout.tiles[tuple(np.broadcast_to(p, full) for p in picks)] if rank else layout.tiles
    return tiles.reshape(-1, layout.reps).T, np.broadcast_to(offsets, full).reshape(-1), numbers.reshape(-1)


def _by_runs(dst: Layout, src: Layout) -> Rows:
    """The general way, for views that no common one refines: runs of elements that are neighbours on both sides."""
    parts = []
    s_tile, s_off = places(src)
    d_tiles, d_off, number = _slots(dst)
    s_tile, s_off = s_tile[number], s_off[number]
    for d_tile in d_tiles:
        new = np.ones(len(d_tile), bool)
        new[1:] = (np.diff(d_tile) != 0) | (np.diff(s_tile) != 0) | (np.diff(d_off) != 1) | (np.diff(s_off) != 1)
        first = np.flatnonzero(new)
        count = np.diff(np.append(first, len(d_tile)))
        parts.append((d_tile[first], s_tile[first], d_off[first], s_off[first], count))
    joined = [np.concatenate([p[i] for p in parts]) for i in range(5)]
    one = np.ones(1, np.int64)
    return _sorted(_collapse(Rows(joined[0], joined[1], joined[2], joined[3], [joined[4]], [one], [one])))
