"""What each group of a program costs on each tile, worked out once for all who ask: cycles, traffic, bytes.

A model of many equal layers has many groups that differ in nothing that costs: the assembler stores equal columns once,
so groups with the same parameters and the same columns are known by the columns' numbers. Copies that differ only in
where their bytes lie on the tiles cost the same, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.program import GroupView, Program

Floats = NDArray[Any]


@dataclass(frozen=True)
class Rates:
    """The target's numbers, by attribute for the codelets' models."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


class Busy(NamedTuple):
    """Cycles of a group's vertices by tile; those that no source gives, or None where all have one."""

    cycles: Floats
    unsourced: Floats | None


class Groups:
    """The groups of a program, each looked at once. For a large program this holds some tens of megabytes.

    Args:
        program: whose groups.

    Example:
        >>> groups = Groups(exe.program)                                       # doctest: +SKIP
        >>> step_cycles(exe.program, groups), fixed_bytes(exe.program, groups)  # doctest: +SKIP
    """

    def __init__(self, program: Program) -> None:
        self.program, self.rates = program, Rates(program.header["target"])
        self._traffic: dict[Hashable, copy_model.Traffic] = {}
        self._busy: dict[Hashable, Busy] = {}

    def _key(self, index: int) -> tuple[tuple[int, int, bytes], tuple[Hashable, ...]]:
        """Codelet, rows and parameters; and where the columns lie."""
        codelet, rows, p0, pn, c0, cn, _ = self.program.groups[index].tolist()
        params = self.program.params[p0 : p0 + pn].tobytes()
        return (codelet, rows, params), tuple(map(tuple, self.program.columns[c0 : c0 + cn].tolist()))

    def traffic(self, index: int) -> copy_model.Traffic:
        """What a group of copies does to the tiles."""
        (_, rows, _), columns = self._key(index)
        g = self.program.group(index)
        # Where the bytes go on the receiver does not matter, nor does the third parameter, a host slot.
        same = (rows, int(g.params[0]), int(g.params[1]), columns[:2], columns[4:])
        found = self._traffic.get((same, columns[2]))
        if found is None:
            alike = (same, _sources(g, self.program.tile_count))
            found = self._traffic.get(alike)
            if found is None:
                found = self._traffic[alike] = copy_model.traffic_of(g, self.program.tile_count, self.rates)
            self._traffic[(same, columns[2])] = found
        return found

    def busy(self, index: int) -> Busy:
        """Cycles of a group of vertices."""
        key = self._key(index)
        found = self._busy.get(key)
        if found is None:
            g = self.program.group(index)
            tiles = self.program.tile_count
            cycles = np.broadcast_to(registry.MODELS[g.codelet].cycles(g, self.rates), g.rows)
            open_ = registry.unsourced(g, self.rates, cycles)
            found = self._busy[key] = Busy(
                np.bincount(g.tiles, cycles, tiles), None if open_ is None else np.bincount(g.tiles, open_, tiles)
            )
        return found


def _sources(g: GroupView, tiles: int) -> bytes:
    """Which copies of a group start at the same place of a tile: that decides what leaves once, the place does not.

    Equal layers differ in the places of their variables only, so the places are taken from the first one on each tile.
    """
    if len(g.columns[2]) == 1:
        return b""
    src, start = np.broadcast_to(g.columns[0], g.rows), g.columns[2]
    first = np.zeros(tiles, np.int32)
    first[src[::-1]] = start[::-1]
    return hashlib.blake2b((start - first[src]).tobytes(), digest_size=16).digest()
