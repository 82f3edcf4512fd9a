"""Layouts of operands whose dimensions have names on one grid of tiles: rows, columns, depth, and so on.

A dot or convolution cuts its index space by name; the tiles are a grid with one axis for each cut name. An operand has
some of the names, in its own order, and is repeated along the axes of the others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout

Name = Hashable
Cut = tuple[Ints, Ints]
Other = tuple[tuple[Name, ...], Cut]


class Grid:
    """The tiles of one operation.

    Args:
        cuts: intervals of each name; the tiles are numbered over their product, the last name fastest.
    """

    def __init__(self, cuts: Mapping[Name, Cut]) -> None:
        self.names = list(cuts)
        self.cuts = dict(cuts)
        counts = [len(s) for s, _ in cuts.values()]
        self.tiles = np.arange(math.prod(counts), dtype=np.int64).reshape(counts)

    @property
    def flat(self) -> Ints:
        """All tiles, in grid order."""
        return self.tiles.reshape(-1)

    def spread(self, names: Sequence[Name], values: Ints) -> Ints:
        """Values given for each combination of intervals of `names` (in the grid's order), one for each tile."""
        shape = [len(self.cuts[n][0]) if n in names else 1 for n in self.names]
        return np.broadcast_to(values.reshape(shape), self.tiles.shape).reshape(-1)

    def extent(self, names: Sequence[Name]) -> Ints:
        """For each tile the product of its block's extents in some names."""
        out = np.ones(self.tiles.size, np.int64)
        for name in names:
            s, e = self.cuts[name]
            out = out * self.spread([name], e - s)
        return out

    def layout(
        self,
        dims: Sequence[Name],
        sizes: Sequence[int],
        order: Sequence[Name],
        other: Mapping[Name, Other] | None = None,
    ) -> Layout:
        """Layout of an operand.

        Args:
            dims: names of the operand's dimensions.
            sizes: their sizes.
            order: the same names in memory order of a block.
            other: names that are no names of the grid: the axes that cut them (none: uncut), and their intervals, one
                for each combination of the axes' indices, the last axis fastest.
        """
        other = other or {}
        starts, stops, axes, shape = [], [], [], []
        for name in dims:
            by, cut = other[name] if name in other else ((name,), self.cuts[name])
            starts.append(cut[0])
            stops.append(cut[1])
            shape.append(len(cut[0]))
            axes += [self.names.index(axis) for axis in by]
        rest = [a for a in range(self.tiles.ndim) if a not in axes]
        tiles = self.tiles.transpose(axes + rest).reshape([*shape, -1])
        where = {name: i for i, name in enumerate(dims)}
        return Layout(tuple(sizes), starts, stops, np.ascontiguousarray(tiles), tuple(where[n] for n in order))

    def partial(
        self, summed: Sequence[Name], dims: Sequence[Name], sizes: Sequence[int], order: Sequence[Name]
    ) -> tuple[Layout, int]:
        """Layout of partial sums over the cut names in `summed`: those in front, cut to single elements, then `dims`.

        Returns:
            The layout and how many dimensions stand in front.
        """
        front = [n for n in summed if len(self.cuts[n][0]) > 1]
        other: dict[Name, Other] = {}
        counts = []
        for name in front:
            n = len(self.cuts[name][0])
            edges = np.arange(n, dtype=np.int64)
            other[name] = ((name,), (edges, edges + 1))
            counts.append(n)
        layout = self.layout([*front, *dims], [*counts, *sizes], [*front, *order], other)
        return layout, len(front)
