"""What lives when: bytes by step, over the chip and on a tile; what a tile holds when it is fullest, by category."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_keras.profile.memory import (
    Ints,
    MemoryReport,
    Tensor,
    always_live,
    largest_at,
    live_bytes,
    owners,
    variable_bytes,
)
from ipu_runtime.program import CATEGORIES, Program

GAPS = "gaps"
"""Bytes below the end of a tile's last variable that none takes when the tile is fullest: what placement loses."""

ROOM = 1 << 19
"""Numbers of a table of tiles by steps that are held at once: 4 MB."""


class Liveness(NamedTuple):
    """Bytes that live at each step, fixed bytes and always-live variables among them.

    Attributes:
        tile: the chip's fullest tile, or the one that was asked for.
        total: by step, over all tiles.
        on_tile: by step, on that tile.
        largest: the largest variables at the step when most lives, each over all its tiles.
    """

    tile: int
    total: Ints
    on_tile: Ints
    largest: list[Tensor]


class Category(NamedTuple):
    """One category's bytes on each tile when that tile is fullest: what lives always, and what does not."""

    name: str
    always: Ints
    others: Ints

    @property
    def by_tile(self) -> Ints:
        """Both, by tile."""
        return self.always + self.others


def liveness(program: Program, memory: MemoryReport, tile: int | None = None, most: int = 20) -> Liveness:
    """What lives at each step.

    Args:
        program: the program.
        memory: its report.
        tile: which tile; None for the fullest.
        most: how many of the largest variables are listed.
    """
    steps = len(program.steps)
    tile = memory.fullest_tile if tile is None else tile
    here = np.flatnonzero(program.cells[:, 0] == tile)
    fixed = [int(by_tile.sum()) for by_tile in memory.fixed.values()]
    fixed_here = [int(by_tile[tile]) for by_tile in memory.fixed.values()]
    return Liveness(
        tile,
        live_bytes(program.variables, variable_bytes(program), steps) + sum(fixed),
        live_bytes(program.variables[owners(program, here)], program.cells[here, 2], steps) + sum(fixed_here),
        largest_at(program, memory.peak_step, most),
    )


def categories(program: Program, memory: MemoryReport) -> list[Category]:
    """What each tile holds at its own fullest step. Together, with the gaps, the bytes that the tile needs.

    Args:
        program: the program.
        memory: its report.
    """
    tiles, steps = program.tile_count, max(1, len(program.steps))
    names = CATEGORIES[:5]
    always, others = (np.zeros((len(names), tiles), np.int64) for _ in range(2))
    always_too = always_live(program)
    category, first, last = (np.ascontiguousarray(program.variables[:, i]) for i in range(3))
    of_cell = np.repeat(np.arange(len(category), dtype=np.int32), program.variables[:, 4])
    tile_of = np.ascontiguousarray(program.cells[:, 0])
    # As many tiles at a time as the table of steps has room for.
    span = max(1, ROOM // (steps + 1))
    for low in range(0, tiles, span):
        here = np.flatnonzero((tile_of >= low) & (tile_of < low + span))
        owner, sizes, tile = of_cell[here], program.cells[here, 2], tile_of[here] - low
        alive = _alive_when_fullest(first[owner], last[owner], tile, sizes, (span, steps))
        owner, sizes, tile = owner[alive], sizes[alive], tile[alive]
        cell, forever = category[owner] * span + tile, always_too[owner]
        for table, chosen in ((always, forever), (others, ~forever)):
            found = np.bincount(cell[chosen], sizes[chosen], len(names) * span).astype(np.int64)
            table[:, low : low + span] = found.reshape(len(names), span)[:, : tiles - low]
    zero = np.zeros(tiles, np.int64)
    out = [Category(name, a, o) for name, a, o in zip(names, always, others, strict=True)]
    out += [Category(name, by_tile, zero) for name, by_tile in memory.fixed.items()]
    return [*out, Category(GAPS, zero, memory.by_tile - sum(c.by_tile for c in out))]


def _alive_when_fullest(
    first: NDArray[Any], last: NDArray[Any], tile: NDArray[Any], sizes: NDArray[Any], shape: tuple[int, int]
) -> NDArray[np.bool_]:
    """Which parts of variables live at the step at which most lives on their tile; `shape` is (tiles, steps)."""
    tiles, steps = shape
    row = tile * (steps + 1)
    change = np.bincount(row + first, sizes, tiles * (steps + 1))
    change -= np.bincount(row + np.minimum(last + 1, steps), sizes, tiles * (steps + 1))
    fullest = change.reshape(tiles, steps + 1).cumsum(1)[:, :steps].argmax(1)[tile]
    alive: NDArray[np.bool_] = (first <= fullest) & (fullest <= last)
    return alive
