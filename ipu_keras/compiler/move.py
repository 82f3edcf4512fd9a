"""Moving an array from one mapping to another: rows of strided copies, by array arithmetic on the two grids.

Each dimension of the destination takes its elements from at most one dimension of the source along a line:
destination index = first + step k, source index = first + step k, for k < count. That covers identity, slice, pad,
reverse, transpose, concatenate and broadcast. The copies are the product over dimensions of the overlaps of the two
sides' intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout, squeeze
from ipu_keras.errors import PlanError
from ipu_keras.target import Target
from ipu_runtime.codelets.copy_model import MAX_DIMS, Crossing, Traffic, crossing, traffic
from ipu_runtime.codelets.model import product

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
    _how: dict[int, Crossing] = field(default_factory=dict, repr=False, compare=False)
    _traffic: dict[int, Traffic] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.dst_tile)

    def picked(self, which: Ints) -> Rows:
        """Some copies, in another order or several times; columns of one value stay so."""

        def take(a: Ints) -> Ints:
            return a if len(a) == 1 else a[which]

        return Rows(
            self.dst_tile[which],
            self.src_tile[which],
            self.dst_off[which],
            self.src_off[which],
            [take(a) for a in self.counts],
            [take(a) for a in self.dst_strides],
            [take(a) for a in self.src_strides],
        )

    def crossing(self, itemsize: int, price: float) -> Crossing:
        """How the copies cross the exchange, worked out once; see `copy_model.crossing`."""
        if itemsize not in self._how:
            far = self.src_tile != self.dst_tile
            self._how[itemsize] = crossing(far, self.counts, self.dst_strides, self.src_strides, itemsize, price)
        return self._how[itemsize]

    def traffic(self, itemsize: int, target: Target) -> Traffic:
        """What the copies do to the tiles, worked out once; see `copy_model.traffic`."""
        if itemsize not in self._traffic:
            count = len(self)
            self._traffic[itemsize] = traffic(
                self.src_tile,
                self.dst_tile,
                np.broadcast_to(self.src_off, count) * itemsize,
                [*self.src_strides, *self.counts[1:]],
                product(self.counts, count) * itemsize,
                self.crossing(itemsize, target.fragment_price),
                itemsize,
                target.tiles,
                target.memcpy_bytes_per_cycle,
            )
        return self._traffic[itemsize]


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
    if len(d_low) * len(s_low) <= 1 << 10:
        low = np.maximum(d_low[:, None], s_low[None, :])
        high = np.minimum(d_high[:, None], s_high[None, :])
        di, si = np.nonzero(high > low)
        return di, si, low[di, si], (high - low)[di, si]
    # Many intervals: the source is a partition, so the overlaps of each destination interval are a run of its order.
    # Intervals that no k falls in come first, or the upper ends would not be in order.
    order = np.lexsort((s_high, s_low))
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


class Pairs(NamedTuple):
    """Overlaps of a group of destination dimensions with the group of source dimensions it comes from.

    Each overlap is a run along the innermost dimension of both sides. Arrays over the overlaps.

    Attributes:
        d_pick, s_pick: interval index in each dimension of the destination's and of the source's group.
        d_local, s_local: place of the run's first element inside the block, in each dimension.
        length: elements of the run.
        d_step, s_step: its steps in the innermost dimensions; 0 for a source that has no such dimension.
    """

    d_pick: dict[int, Ints]
    s_pick: dict[int, Ints]
    d_local: dict[int, Ints]
    s_local: dict[int, Ints]
    length: Ints
    d_step: tuple[int, int]
    s_step: tuple[int, int]


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
    if not src.is_partition:
        raise PlanError(f"a copy from {src!r}, which does not hold every element once")
    if lines is not None:
        return _by_product(dst, src, [_line(dst, src, d, line) for d, line in enumerate(lines)])
    dst, src = squeeze(dst), squeeze(src)
    groups = common_groups(dst.view, src.view)
    if groups is None:
        none = np.zeros(0, np.int64)
        return Rows(none, none, none, none, [], [], [])
    pairs = []
    for d_dims, s_dims in groups:
        if len(d_dims) == len(s_dims) == 1:
            pairs.append(_line(dst, src, d_dims[0], Line(s_dims[0], dst.view[d_dims[0]])))
        else:
            pairs.append(_runs(dst, src, d_dims, s_dims))
    return _by_product(dst, src, pairs)


def common_groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Dimensions of two shapes of the same elements, in the smallest groups that hold the same elements; None if empty.

    Example:
        >>> common_groups((6, 4, 5), (8, 3, 5))
        [([0, 1], [0, 1]), ([2], [2])]
    """
    if 0 in a or 0 in b:
        return None
    groups = []
    i = j = 0
    while i < len(a):
        left, right = [i], [j]
        n, m = a[i], b[j]
        while n != m:
            if n < m:
                i += 1
                left.append(i)
                n *= a[i]
            else:
                j += 1
                right.append(j)
                m *= b[j]
        groups.append((left, right))
        i, j = i + 1, j + 1
    return groups


def _line(dst: Layout, src: Layout, d: int, line: Line) -> Pairs:
    """Overlaps of one dimension with the line of a source dimension that it comes from."""
    s = line.src_dim
    side = None if s is None else (src.starts[s], src.stops[s])
    di, si, k, n = _pairs(line, (dst.starts[d], dst.stops[d]), side)
    d_local = line.dst_first + line.dst_step * k - dst.starts[d][di]
    if s is None:
        return Pairs({d: di}, {}, {d: d_local}, {}, n, (d, line.dst_step), (-1, 0))
    s_local = line.src_first + line.src_step * k - src.starts[s][si]
    return Pairs({d: di}, {s: si}, {d: d_local}, {s: s_local}, n, (d, line.dst_step), (s, line.src_step))


def _runs(dst: Layout, src: Layout, d_dims: list[int], s_dims: list[int]) -> Pairs:
    """Overlaps of groups of several dimensions: the rows of the destination's intervals, cut where the source's end."""
    *outer, inner = d_dims
    sizes = [*(int(dst.extents[d].sum()) for d in outer), len(dst.starts[inner])]
    total = math.prod(sizes)
    edges = _row_starts(src, s_dims)
    if total + len(edges) > MAX_ROWS:
        raise PlanError(f"a reshape of {total:,} rows between {src!r} and {dst!r}")
    index = np.unravel_index(np.arange(total), sizes)
    d_pick: dict[int, Ints] = {inner: index[-1]}
    d_local: dict[int, Ints] = {}
    first: Ints = np.zeros(total, np.int64)
    for d, at in zip(outer, index, strict=False):
        n = dst.extents[d]
        owner = np.repeat(np.arange(len(n)), n)
        local = np.arange(len(owner)) - np.repeat(np.cumsum(n) - n, n)
        d_pick[d], d_local[d] = owner[at], local[at]
        first = first * dst.view[d] + (dst.starts[d][owner] + local)[at]
    first = first * dst.view[inner] + dst.starts[inner][index[-1]]
    end = first + dst.extents[inner][index[-1]]
    # Each row becomes as many runs as rows of the source's intervals lie in it.
    low, high = np.searchsorted(edges, first, "right"), np.searchsorted(edges, end, "left")
    count = np.where(end > first, high - low + 1, 0)
    row = np.repeat(np.arange(total), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    cut = low[row] + within
    start = np.maximum(first[row], edges[cut - 1])
    stop = np.minimum(end[row], np.append(edges, np.iinfo(np.int64).max)[cut])
    d_pick = {d: v[row] for d, v in d_pick.items()}
    d_local = {d: v[row] for d, v in d_local.items()}
    d_local[inner] = start - first[row]
    s_pick: dict[int, Ints] = {}
    s_local: dict[int, Ints] = {}
    rest = start
    for s in reversed(s_dims):
        place, rest = rest % src.view[s], rest // src.view[s]
        order = np.argsort(src.starts[s], kind="stable")
        order = order[src.extents[s][order] > 0]
        s_pick[s] = order[np.searchsorted(src.starts[s][order], place, "right") - 1]
        s_local[s] = place - src.starts[s][s_pick[s]]
    return Pairs(d_pick, s_pick, d_local, s_local, stop - start, (inner, 1), (s_dims[-1], 1))


def _row_starts(layout: Layout, dims: list[int]) -> Ints:
    """Where the rows of a partition's intervals start, in elements of a group of dimensions, in order."""
    *outer, inner = dims
    starts = np.sort(layout.starts[inner][layout.extents[inner] > 0])
    rows = math.prod(layout.view[d] for d in outer)
    found: Ints = (np.arange(rows)[:, None] * layout.view[inner] + starts).reshape(-1)
    return found


def _by_product(dst: Layout, src: Layout, groups: list[Pairs]) -> Rows:
    counts = [len(g.length) for g in groups]
    total = math.prod(counts) * dst.reps
    if total > MAX_ROWS:
        raise PlanError(f"an exchange of {total:,} copies from {src!r} to {dst!r}")
    # A group's arrays lie along an axis of their own: what depends on few groups is worked out on few numbers, and
    # spread over all copies at the end.
    shape = (*counts, dst.reps)
    d_pick: list[Ints] = [np.zeros(1, np.int64)] * len(dst.view)
    s_pick: list[Ints] = [np.zeros(1, np.int64)] * len(src.view)
    for axis, g in enumerate(groups):
        for d, values in g.d_pick.items():
            d_pick[d] = _along(axis, values, shape)
        for s, values in g.s_pick.items():
            s_pick[s] = _along(axis, values, shape)
    d_str, s_str = _strides(dst, d_pick), _strides(src, s_pick)
    dst_off, src_off = np.zeros(1, np.int64), np.zeros(1, np.int64)
    rows: dict[int, tuple[Ints, Ints, Ints]] = {}
    for axis, g in enumerate(groups):
        for d, values in g.d_local.items():
            dst_off = dst_off + _along(axis, values, shape) * d_str[d]
        for s, values in g.s_local.items():
            src_off = src_off + _along(axis, values, shape) * s_str[s]
        d, s = g.d_step[0], g.s_step[0]
        src_step = s_str[s] * g.s_step[1] if s >= 0 else np.zeros(1, np.int64)
        length = _along(axis, g.length, shape)
        rows[d] = (_spread(length, shape), _spread(d_str[d] * g.d_step[1], shape), _spread(src_step, shape))
    inner_order = [rows[d] for d in dst.order if d in rows]
    dst_tile = _whole(dst.tiles[(*d_pick, _along(len(groups), np.arange(dst.reps), shape))], shape)
    if src.reps == 1:
        src_tile = _whole(src.tiles[(*s_pick, 0)] if len(src.view) else src.tiles[:1], shape)
    else:
        choices = src.tiles[tuple(s_pick)] if len(src.view) else src.tiles
        choices = np.broadcast_to(choices, (*shape, src.reps)).reshape(total, src.reps)
        here = choices == dst_tile[:, None]
        pick = np.where(here.any(1), here.argmax(1), np.arange(total) % src.reps)
        src_tile = choices[np.arange(total), pick]
    found = Rows(
        dst_tile, src_tile, _whole(dst_off, shape), _whole(src_off, shape),
        [r[0] for r in inner_order], [r[1] for r in inner_order], [r[2] for r in inner_order],
    )  # fmt: skip
    return _sorted(_unrolled(_collapse(found)))


def _along(axis: int, values: Ints, shape: tuple[int, ...]) -> Ints:
    """Values along one axis of a product."""
    return values.reshape((1,) * axis + (len(values),) + (1,) * (len(shape) - axis - 1))


def _whole(values: Ints, shape: tuple[int, ...]) -> Ints:
    """One value for each element of a product, in order."""
    found: Ints = np.broadcast_to(values, shape).reshape(-1)
    return found


def _spread(values: Ints, shape: tuple[int, ...]) -> Ints:
    """The same, but one value where all are equal."""
    first = values.reshape(-1)[:1]
    return first if len(first) and bool((values == first).all()) else _whole(values, shape)


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


def _unrolled(rows: Rows) -> Rows:
    """Copies of no more dimensions than the codelet has room for: the outermost ones become copies of their own."""
    while len(rows.counts) > MAX_DIMS:
        n = np.broadcast_to(rows.counts[0], len(rows))
        total = int(n.sum())
        if total > MAX_ROWS:
            raise PlanError(f"an exchange of {total:,} copies of {len(rows.counts)} dimensions")
        at = np.arange(total) - np.repeat(np.cumsum(n) - n, n)
        rows = rows.picked(np.repeat(np.arange(len(rows)), n))
        rows.dst_off = rows.dst_off + at * rows.dst_strides.pop(0)
        rows.src_off = rows.src_off + at * rows.src_strides.pop(0)
        del rows.counts[0]
    return rows


def _sorted(rows: Rows) -> Rows:
    tiles = rows.dst_tile
    if len(rows) and bool((tiles[1:] < tiles[:-1]).any()):
        if int(tiles.max()) < 1 << 16:
            tiles = tiles.astype(np.uint16)  # sorted by digits: ten times as fast
        return rows.picked(np.argsort(tiles, kind="stable"))
    return rows
