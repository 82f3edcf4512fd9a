"""Ways to cut index spaces over the tiles: counts worth trying, lengths of the longest piece, all combinations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LADDER = 512
"""Counts of one dimension that are tried at most."""


def split_counts(size: int, most: int, grain: int = 1, ladder: int = LADDER) -> Ints:
    """Split counts worth trying: those that change the longest piece in grains, thinned to a geometric ladder.

    Args:
        size: length of the dimension.
        most: largest count.
        grain: pieces are multiples of it.
        ladder: how many counts at most.

    Example:
        >>> split_counts(10, 100)
        array([ 1,  2,  3,  4,  5, 10])
    """
    units = max(1, -(-size // grain))
    most = max(1, min(units, most))
    pieces = np.unique(-(-units // np.arange(1, most + 1)))
    counts = np.unique(-(-units // pieces))
    if len(counts) > ladder:
        steps = np.unique(np.round(np.geomspace(1, counts[-1], ladder)).astype(int))
        counts = np.unique(counts[np.searchsorted(counts, steps).clip(0, len(counts) - 1)])
    return counts


def piece(size: int, parts: Ints, grain: int = 1) -> Ints:
    """Length of the longest of `parts` pieces made of whole grains."""
    units = max(1, -(-size // grain))
    return np.minimum(-(-units // parts) * grain, max(size, 1))


def combinations(axes: Sequence[Ints], most: int) -> list[Ints]:
    """All choices of one count from each axis whose product is at most `most`, as one array for each axis."""
    found = [np.zeros(1, np.int64)][:0]
    product = np.ones(1, np.int64)
    for axis in axes:
        wide = product[:, None] * axis[None]
        old, new = np.nonzero(wide <= most)
        found = [*(a[old] for a in found), axis[new]]
        product = wide[old, new]
    return found


def spread_parts(dims: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Divide a split of several dimensions' product among them, outermost first."""
    out = []
    for n in dims:
        p = max(1, min(n, parts))
        p = -(-n // -(-n // p)) if n else 1
        out.append(p)
        parts = max(1, parts // p)
    return tuple(out)
