"""Where partial results lie and meet: layouts of sums over cut dimensions, and who adds up which share of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout, common_view, even, squeeze, unsqueeze

GRAIN = 8
"""Elements that stay together when the innermost dimension of a block is cut: poplibs keeps channels in such groups."""


def without(layout: Layout, reduced: list[int]) -> tuple[Layout, list[int]]:
    """Layout of the blocks' partial results: each cut reduced dimension stays, cut to single elements, in front.

    Returns:
        The layout, whose view is [cuts of each cut reduced dimension..., kept dimensions...], and the cut dimensions.
    """
    cut = [d for d in reduced if layout.grid[d] > 1]
    kept = [d for d in range(len(layout.view)) if d not in reduced]
    starts, stops, view = [], [], []
    for d in cut:
        g = layout.grid[d]
        view.append(g)
        starts.append(np.arange(g, dtype=np.int64))
        stops.append(np.arange(1, g + 1, dtype=np.int64))
    for d in kept:
        view.append(layout.view[d])
        starts.append(layout.starts[d])
        stops.append(layout.stops[d])
    single = [d for d in reduced if d not in cut]
    tiles = layout.tiles.transpose([*cut, *kept, *single, len(layout.view)])
    tiles = tiles.reshape([len(s) for s in starts] + [-1])
    position = {d: len(cut) + i for i, d in enumerate(kept)}
    order = (*range(len(cut)), *(position[d] for d in layout.order if d in position))
    return Layout(tuple(view), starts, stops, tiles, order), cut


def in_front(layout: Layout, depth: int) -> Layout:
    """A whole dimension of `depth` in front of a layout: each block with all its partial results."""
    none = np.zeros(1, np.int64)
    return Layout(
        (depth, *layout.view),
        [none, *layout.starts],
        [none + depth, *layout.stops],
        layout.tiles[None],
        (0, *(d + 1 for d in layout.order)),
    )


def merge_front(layout: Layout, n: int) -> Layout:
    """The first n dimensions, all cut to single elements, as one."""
    depth = math.prod(layout.view[:n])
    edges = np.arange(depth, dtype=np.int64)
    tiles = layout.tiles.reshape([depth, *layout.tiles.shape[n:]])
    rest = [d for d in layout.order if d >= n]
    return Layout(
        (depth, *layout.view[n:]),
        [edges, *layout.starts[n:]],
        [edges + 1, *layout.stops[n:]],
        tiles,
        (0, *(d - n + 1 for d in rest)),
    )


def regroup(layout: Layout, parts: int, size: int) -> Layout:
    """The first dimension cut into `parts` runs; each run's tiles share the block, at least 64 B each.

    Args:
        layout: partial sums, the first dimension cut to single elements.
        parts: runs.
        size: bytes of an element.
    """
    starts, stops = even(layout.view[0], parts)
    order = [d - 1 for d in layout.order if d > 0]
    shares = _shares(layout.starts[1:], layout.stops[1:], order, int((stops - starts).min()), size)
    kept = _finer(layout.starts[1:], layout.stops[1:], shares, order)
    tiles = layout.tiles[starts[:, None] + np.arange(math.prod(shares.values()))]
    tiles = _beside(tiles[..., 0], 1, shares)[..., None]
    return Layout(layout.view, [starts, *kept[0]], [stops, *kept[1]], tiles, layout.order)


def scatter(layout: Layout, size: int, wanted: Layout | None) -> Layout:
    """Where the results of partials [depth, kept...] go: the mapping wanted, or spread over the partials' tiles."""
    kept_view = layout.view[1:]
    if wanted is not None:
        view = common_view(wanted.view, kept_view)
        fine = None if view is None else squeeze(wanted).refined(view)
        if fine is not None and fine.reps == 1 and view == tuple(n for n in kept_view if n != 1):
            full = unsqueeze(fine, kept_view)
            if full is not None:
                return full
    depth = layout.view[0]
    starts, stops = list(layout.starts[1:]), list(layout.stops[1:])
    tiles = layout.tiles[..., 0]
    if not kept_view:
        return Layout((), [], [], tiles[:1])
    # Cut the kept dimensions of each block further, one piece for each partial's tile.
    order = tuple(d - 1 for d in layout.order if d > 0)
    shares = _shares(starts, stops, order, depth, size)
    starts, stops = _finer(starts, stops, shares, order)
    tiles = _beside(tiles[: math.prod(shares.values())], 0, shares)
    return Layout(kept_view, starts, stops, tiles[..., None], order)


def _shares(
    starts: Sequence[Ints], stops: Sequence[Ints], order: Sequence[int], tiles: int, size: int
) -> dict[int, int]:
    """Into how many pieces each dimension of a block is cut, so that the tiles with its partial sums have one each.

    The outermost dimensions in memory first, so that pieces are contiguous; no piece is below 64 B.

    Args:
        starts, stops: intervals of each dimension.
        order: memory order of the dimensions.
        tiles: that hold partial sums of a block.
        size: bytes of an element.
    """
    extents = [stop - start for start, stop in zip(starts, stops, strict=True)]
    left = max(1, min(tiles, math.prod(int(e.max()) for e in extents) * size // 64))
    found: dict[int, int] = {}
    for d in order:
        most = int(extents[d].min())
        pieces = max(1, min(left, most // GRAIN if d == order[-1] and len(order) > 1 else most))
        if pieces > 1:
            found[d] = pieces
            left //= pieces
    return found


def _finer(
    starts: Sequence[Ints], stops: Sequence[Ints], pieces: dict[int, int], order: Sequence[int]
) -> tuple[list[Ints], list[Ints]]:
    """Intervals cut into so many pieces each; those of the innermost dimension are of whole grains but for the last."""
    firsts, lasts = list(starts), list(stops)
    for d, count in pieces.items():
        grain = GRAIN if d == order[-1] and len(order) > 1 else 1
        length = (stops[d] - starts[d])[:, None]
        units = -(-length // grain)
        edges = starts[d][:, None] + np.minimum(np.arange(count + 1) * units // count * grain, length)
        firsts[d], lasts[d] = edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1)
    return firsts, lasts


def _beside(tiles: Ints, axis: int, pieces: dict[int, int]) -> Ints:
    """Tiles of each block's pieces, [..., pieces, grid...], as the tiles of the finer grid."""
    shape = tiles.shape
    split = tiles.reshape([*shape[:axis], *pieces.values(), *shape[axis + 1 :]])
    grid = len(shape) - axis - 1
    places = {d: axis + i for i, d in enumerate(pieces)}
    axes, merged_shape = list(range(axis)), list(shape[:axis])
    for d in range(grid):
        axes.append(axis + len(pieces) + d)
        if d in places:
            axes.append(places[d])
        merged_shape.append(shape[axis + 1 + d] * pieces.get(d, 1))
    return np.ascontiguousarray(split.transpose(axes)).reshape(merged_shape)
