"""Where every byte goes: lifetimes over the supersteps, a place on each tile, and the check against the chip.

Variables that live always (weights, states, constants) come first, then the others from the largest down, each at the
lowest place that is free during its life. Tiles whose variables have equal sizes and lives share one placement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipu_keras.compiler._place import first_fit
from ipu_keras.compiler.layout import Ints
from ipu_keras.compiler.lower.context import RawStep, Var


@dataclass
class Placement:
    """Result of placing: variables have their `offsets` by tile; `ends` is what each tile needs for them."""

    vars: list[Var]
    ends: Ints


def lifetimes(body: list[list[RawStep]], first_step: int, loop: tuple[int, int], vars_: list[Var]) -> list[Var]:
    """Set each variable's first and last live step; returns those that are used.

    Args:
        body: supersteps.
        first_step: number of the first of them.
        loop: first and last step of the loop: what is made before it and used in it lives to its end.
        vars_: all variables.
    """
    for var in vars_:
        var.first = var.last = -1
    for i, step in enumerate(body):
        number = first_step + i
        for part in step:
            for var in [*part.reads, *part.writes]:
                if var.first < 0:
                    var.first = number
                var.last = number
    used = []
    for var in vars_:
        if var.pinned:
            var.first, var.last = 0, loop[1]
        elif var.first >= 0 and var.first < loop[0] <= var.last:
            var.last = loop[1]
        if var.pinned or var.first >= 0:
            used.append(var)
    return used


def place(used: list[Var], tiles: int, guard: int) -> Placement:
    """Give each variable an offset on each of its tiles.

    Args:
        used: variables with their lifetimes.
        tiles: tiles of the chip.
        guard: bytes between allocations (strict mode).
    """
    order = sorted(used, key=lambda v: (not v.pinned, -int(v.sizes.max(initial=0)), v.first))
    counts = [len(v.tiles) for v in order]
    owner = np.repeat(np.arange(len(order)), counts)
    all_tiles = np.concatenate([v.tiles for v in order]) if order else np.zeros(0, np.int64)
    all_sizes = np.concatenate([v.sizes for v in order]) if order else np.zeros(0, np.int64)
    by_tile = np.argsort(all_tiles, kind="stable")
    edges = np.searchsorted(all_tiles[by_tile], np.arange(tiles + 1))
    first = np.array([v.first for v in order], np.int32)
    last = np.array([v.last for v in order], np.int32)
    offsets = np.zeros(len(owner), np.int64)
    ends = np.zeros(tiles, np.int64)
    known: dict[bytes, tuple[Ints, int]] = {}
    for tile in np.flatnonzero(np.diff(edges)):
        at = by_tile[edges[tile] : edges[tile + 1]]
        owners, sizes = owner[at], all_sizes[at]
        key = owners.tobytes() + sizes.tobytes()
        if key not in known:
            known[key] = first_fit(sizes, first[owners], last[owners], guard)
        offsets[at], ends[tile] = known[key]
    start = 0
    for var, n in zip(order, counts, strict=True):
        var.offsets = np.zeros(tiles, np.int64)
        var.offsets[var.tiles] = offsets[start : start + n]
        start += n
    return Placement(order, ends)
