"""Homes of values: which tile keeps which part of a value that many tiles want."""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.layout import Layout

PIECE = 32
"""Elements of the smallest piece of a block that is spread over its repetitions' tiles: 128 B of fp32, as poplibs'
linear mapping keeps on a tile at least (hardware.md 4)."""


def partition(layout: Layout, turn: int = 0, most: int | None = None) -> Layout:
    """A home for a value that is wanted repeated: the repetitions' tiles keep a part of the block each.

    Args:
        layout: what is wanted.
        turn: the number of the repetition that comes first, so that not all values lie on the same tiles.
        most: largest number of parts, if not all repetitions shall have one.
    """
    layout = _disjoint(layout)
    parts_wanted = min(layout.reps, max(1, layout.max_block // PIECE), most or layout.reps)
    best, parts = -1, 1
    for d in layout.order:  # slowest in memory first: its pieces are contiguous
        can = min(parts_wanted, int(layout.extents[d].min(initial=parts_wanted)))
        if can > parts:
            best, parts = d, can
    chosen = (turn + np.arange(parts) * layout.reps // parts) % layout.reps
    picked = np.ascontiguousarray(layout.tiles[..., chosen])
    if best < 0:
        return Layout(layout.view, layout.starts, layout.stops, picked, layout.order)
    ext = layout.extents[best]
    edges = layout.starts[best][:, None] + (np.arange(parts + 1) * ext[:, None]) // parts
    starts, stops = list(layout.starts), list(layout.stops)
    starts[best], stops[best] = edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1)
    tiles = np.moveaxis(picked, -1, best + 1)
    shape = list(layout.grid)
    shape[best] *= parts
    return Layout(layout.view, starts, stops, np.ascontiguousarray(tiles).reshape([*shape, 1]), layout.order)


def _disjoint(layout: Layout) -> Layout:
    """The layout with intervals that cover each dimension once: a halo belongs to the block that it starts in."""
    starts, stops = list(layout.starts), list(layout.stops)
    for d, n in enumerate(layout.view):
        low, high = starts[d], stops[d]
        if low[0] == 0 and high[-1] == n and bool((low[1:] == high[:-1]).all()):
            continue
        # Empty and repeated intervals keep their tile and hold nothing.
        edge = np.maximum.accumulate(np.clip(low, 0, n))
        edge[0] = 0
        starts[d], stops[d] = edge, np.append(edge[1:], n)
    return Layout(layout.view, starts, stops, layout.tiles, layout.order)


def groups_of(shape: tuple[int, ...], view: tuple[int, ...]) -> list[list[int]]:
    """For each dimension of `shape` the dimensions of the finer `view` (without size-1 dimensions) that make it up."""
    groups: list[list[int]] = []
    at = 0
    for size in shape:
        group: list[int] = []
        product = 1
        while product < size:
            product *= view[at]
            group.append(at)
            at += 1
        groups.append(group)
    return groups
