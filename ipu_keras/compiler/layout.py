"""Tile mapping: how an array is cut into blocks and on which tile each block lies.

An array is seen through a *view*, a shape with the same elements in the same row-major order (so a reshape moves
nothing), cut in each dimension of the view into intervals. The product of the intervals is a grid of blocks; a block
lies whole and contiguous on one tile, its dimensions in the layout's memory order. A layout that holds home values is a
partition and has at most one block on a tile; a layout that an operation wants its operand in may overlap (the halo of
a convolution) and may be repeated (`tiles` has a last axis of repetitions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Layout:
    """Where the blocks of an array lie.

    Args:
        view: dimensions, row-major, of the array's elements.
        starts: for each dimension, the first index of each interval.
        stops: for each dimension, one past the last index of each interval.
        tiles: int array [intervals of dim 0, ..., intervals of the last dim, repetitions].
        order: memory order of the dimensions inside a block, outermost first; row-major if not given.
    """

    def __init__(
        self,
        view: tuple[int, ...],
        starts: Sequence[Ints],
        stops: Sequence[Ints],
        tiles: Ints,
        order: tuple[int, ...] | None = None,
    ) -> None:
        self.view = view
        self.starts, self.stops, self.tiles = tuple(starts), tuple(stops), tiles
        self.order = tuple(range(len(view))) if order is None else order

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for layouts that put every element at the same place."""
        return (
            self.view,
            self.order,
            tuple(a.tobytes() for a in self.starts),
            tuple(a.tobytes() for a in self.stops),
            self.tiles.tobytes(),
            self.tiles.shape,
        )

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Equal for layouts of one form: the same cuts in the same order, whatever the tiles."""
        cuts = (*(a.tobytes() for a in self.starts), *(a.tobytes() for a in self.stops))
        return self.view, self.order, cuts, self.tiles.shape

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of intervals in each dimension."""
        return self.tiles.shape[:-1]

    @property
    def reps(self) -> int:
        """How many copies of each block there are."""
        return self.tiles.shape[-1]

    @cached_property
    def extents(self) -> tuple[Ints, ...]:
        """For each dimension, the length of each interval."""
        return tuple(b - a for a, b in zip(self.starts, self.stops, strict=True))

    @cached_property
    def is_partition(self) -> bool:
        """Whether the intervals of each dimension hold every index once, so that the blocks can be copied from."""
        for d, n in enumerate(self.view):
            order = np.argsort(self.starts[d], kind="stable")
            order = order[self.extents[d][order] > 0]
            low, high = self.starts[d][order], self.stops[d][order]
            if n == 0:
                continue
            if len(low) == 0 or low[0] != 0 or high[-1] != n or bool((low[1:] != high[:-1]).any()):
                return False
        return True

    @cached_property
    def block_sizes(self) -> Ints:
        """Elements of each block, an array of the grid's shape."""
        sizes = np.ones(self.grid, np.int64)
        for d, ext in enumerate(self.extents):
            sizes = sizes * ext.reshape([-1 if e == d else 1 for e in range(len(self.view))])
        return sizes

    def per_block(self, dim: int, values: Ints) -> Ints:
        """Values given per interval of `dim`, spread over all blocks and repetitions, flat."""
        shape = [1] * (len(self.view) + 1)
        shape[dim] = -1
        return np.broadcast_to(values.reshape(shape), self.tiles.shape).reshape(-1)

    @cached_property
    def flat_tiles(self) -> Ints:
        """The tile of each block and repetition, in grid order."""
        return self.tiles.reshape(-1)

    @cached_property
    def flat_sizes(self) -> Ints:
        """Elements of each block and repetition, in grid order."""
        return np.broadcast_to(self.block_sizes[..., None], self.tiles.shape).reshape(-1)

    @cached_property
    def max_block(self) -> int:
        """Elements of the largest block."""
        return int(self.block_sizes.max(initial=0))

    def refined(self, view: tuple[int, ...]) -> Layout | None:
        """The same mapping seen through a finer view (each dimension split in several), or None if a cut forbids it.

        Args:
            view: a shape whose dimensions multiply, in groups, to this layout's dimensions.
        """
        if view == self.view:
            return self
        starts: list[Ints] = []
        stops: list[Ints] = []
        order_groups: list[list[int]] = []
        at = 0
        for d, size in enumerate(self.view):
            parts: list[int] = []
            while math.prod(parts) != size or (not parts and size == 1):
                if at >= len(view):
                    return None
                parts.append(view[at])
                at += 1
                if size == 1:
                    break
            # trailing 1s belong to the group on their left
            while at < len(view) and view[at] == 1 and (d + 1 == len(self.view) or self.view[d + 1] != 1):
                parts.append(1)
                at += 1
            split = _split(parts, self.starts[d], self.stops[d])
            if split is None:
                return None
            order_groups.append(list(range(at - len(parts), at)))
            starts.extend(s for s, _ in split)
            stops.extend(e for _, e in split)
        if at != len(view):
            return None
        order = tuple(i for d in self.order for i in order_groups[d])
        tiles = self.tiles.reshape([len(s) for s in starts] + [self.reps])
        return Layout(view, starts, stops, tiles, order)

    def transposed(self, perm: tuple[int, ...]) -> Layout:
        """The layout of the transposed array, not a byte moved: result dimension i is this one's `perm[i]`."""
        position = {d: i for i, d in enumerate(perm)}
        return Layout(
            tuple(self.view[d] for d in perm),
            [self.starts[d] for d in perm],
            [self.stops[d] for d in perm],
            self.tiles.transpose((*perm, len(perm))),
            tuple(position[d] for d in self.order),
        )

    def keep(self, dims: Sequence[int]) -> Layout:
        """The layout of an operand that has only `dims` of the view: the other dimensions repeat it."""
        dims = list(dims)
        rest = [d for d in range(len(self.view)) if d not in dims]
        tiles = self.tiles.transpose([*dims, *rest, len(self.view)])
        tiles = tiles.reshape([self.tiles.shape[d] for d in dims] + [-1])
        position = {d: i for i, d in enumerate(dims)}
        return Layout(
            tuple(self.view[d] for d in dims),
            [self.starts[d] for d in dims],
            [self.stops[d] for d in dims],
            tiles,
            tuple(position[d] for d in self.order if d in position),
        )

    def __repr__(self) -> str:
        return f"Layout({self.view} cut {self.grid} x{self.reps} on {self.flat_tiles.min()}..{self.flat_tiles.max()})"


def _split(parts: list[int], starts: Ints, stops: Ints) -> list[tuple[Ints, Ints]] | None:
    """Write the intervals of one dimension as a product of intervals of `parts`."""
    if len(parts) == 1:
        return [(starts, stops)]
    inner = math.prod(parts[1:])
    if bool((starts % inner == 0).all()) and bool((stops % inner == 0).all()):
        whole = [(np.zeros(1, np.int64), np.full(1, p, np.int64)) for p in parts[1:]]
        return [(starts // inner, stops // inner), *whole]
    outer = parts[0]
    n = len(starts)
    if n % outer == 0:
        per = n // outer
        base = np.arange(outer).repeat(per) * inner
        s, e = starts - base, stops - base
        if bool((s >= 0).all()) and bool((e <= inner).all()):
            s, e = s.reshape(outer, per), e.reshape(outer, per)
            if bool((s == s[0]).all()) and bool((e == e[0]).all()):
                rest = _split(parts[1:], s[0], e[0])
                if rest is not None:
                    ones = np.arange(outer, dtype=np.int64)
                    return [(ones, ones + 1), *rest]
    return None


def common_view(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The coarsest shape that refines both, or None (as for [6, 4] and [8, 3]). Size-1 dimensions are dropped."""
    ends: set[int] = {1}
    for shape in (a, b):
        n = 1
        for d in reversed(shape):
            n *= d
            ends.add(n)
    if 0 in ends:
        return None
    ordered = sorted(ends)
    view = []
    for small, large in pairwise(ordered):
        if large % small:
            return None
        view.append(large // small)
    return tuple(reversed(view))


def squeeze(layout: Layout) -> Layout:
    """The same mapping without the view's size-1 dimensions.

    Several intervals of such a dimension (windows that all reach its one element, or none) are repetitions.
    """
    keep = [d for d, n in enumerate(layout.view) if n != 1]
    if len(keep) == len(layout.view):
        return layout
    position = {d: i for i, d in enumerate(keep)}
    tiles = layout.tiles
    small = [d for d, n in enumerate(layout.view) if n == 1]
    for d in small:
        if layout.grid[d] != 1 or layout.extents[d][0] != 1:
            tiles = tiles.take(np.flatnonzero(layout.extents[d]), d)
    reps = math.prod(tiles.shape[d] for d in [*small, -1])
    tiles = tiles.transpose([*keep, *small, len(layout.view)]).reshape([*(layout.grid[d] for d in keep), reps])
    return Layout(
        tuple(layout.view[d] for d in keep),
        [layout.starts[d] for d in keep],
        [layout.stops[d] for d in keep],
        tiles,
        tuple(position[d] for d in layout.order if d in position),
    )


def unsqueeze(layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """A squeezed layout given the size-1 dimensions of `shape` again, if the other dimensions are its own."""
    if layout.view == shape:
        return layout
    base = squeeze(layout)
    big = [d for d, n in enumerate(shape) if n != 1]
    if base.view != tuple(shape[d] for d in big):
        return None
    starts: list[Ints] = []
    stops: list[Ints] = []
    for d in range(len(shape)):
        if d in big:
            starts.append(base.starts[big.index(d)])
            stops.append(base.stops[big.index(d)])
        else:
            starts.append(np.zeros(1, np.int64))
            stops.append(np.ones(1, np.int64))
    tiles = base.tiles.reshape([len(s) for s in starts] + [base.reps])
    small = [d for d in range(len(shape)) if d not in big]
    return Layout(shape, starts, stops, tiles, (*small, *(big[d] for d in base.order)))


def even(size: int, parts: int, grain: int = 1) -> tuple[Ints, Ints]:
    """Cut `size` into at most `parts` intervals of nearly equal length, each but the last a multiple of `grain`."""
    if size == 0:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    units = -(-size // grain)
    parts = max(1, min(parts, units))
    edges = (np.arange(parts + 1, dtype=np.int64) * units // parts) * grain
    edges[-1] = size
    return edges[:-1], edges[1:]


def grid_layout(
    view: tuple[int, ...],
    parts: Sequence[int],
    first_tile: int = 0,
    order: tuple[int, ...] | None = None,
    grains: Sequence[int] | None = None,
) -> Layout:
    """Cut dimension d into `parts[d]` intervals and number the blocks over consecutive tiles."""
    starts, stops = [], []
    for d, n in enumerate(view):
        s, e = even(n, parts[d], 1 if grains is None else grains[d])
        starts.append(s)
        stops.append(e)
    shape = [len(s) for s in starts]
    tiles = np.arange(math.prod(shape), dtype=np.int64).reshape([*shape, 1]) + first_tile
    return Layout(view, starts, stops, tiles, order)


def whole(view: tuple[int, ...], tile: int = 0) -> Layout:
    """All of the array on one tile."""
    return grid_layout(view, [1] * len(view), tile)


def spread(
    view: tuple[int, ...], itemsize: int, tiles: int, least_bytes: int = 128, locked: Sequence[int] = ()
) -> Layout:
    """The default mapping of an array that nothing else decides: cut from the outermost dimension on.

    Args:
        view: the array's dimensions.
        itemsize: bytes of an element.
        tiles: tiles of the chip.
        least_bytes: no block smaller than this unless the array is. Source: poplibs `mapTensorLinearly`, 128 B.
        locked: dimensions that may not be cut.
    """
    total = math.prod(view) * itemsize
    want = max(1, min(tiles, -(-total // least_bytes)))
    parts = []
    for d, n in enumerate(view):
        # The innermost dimension keeps runs of eight elements together: copies of single elements cost most.
        most = -(-n // 8) if d == len(view) - 1 and d > 0 else n
        p = 1 if d in locked else max(1, min(most, want))
        # Equal pieces: 32 rows over 20 tiles need 2 rows on a tile, so 16 tiles do as well.
        p = -(-n // -(-n // p)) if n else 1
        parts.append(p)
        want //= p
    return grid_layout(view, parts)
