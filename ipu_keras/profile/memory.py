"""Memory of a program, tile by tile and by category, from the program's own tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.program import CATEGORIES, COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT, Program

Ints = NDArray[np.int64]


CONTROL_BYTES = 16
"""Control code of a superstep on each tile: a few words, hardware.md 5.1 [unvalidated]."""

STACK_BYTES = 6 * 256 + 256
"""Stacks of six workers and the supervisor [unvalidated]."""


class Tensor(NamedTuple):
    """One of the largest variables on a tile: its bytes there, what it is, and its layer."""

    nbytes: int
    category: str
    layer: str
    name: str


@dataclass
class MemoryReport:
    """Does it fit?

    Attributes:
        limit: bytes of a tile.
        by_tile: bytes that each tile needs, placed variables (with the gaps of their placement) and fixed bytes.
        fixed: category -> bytes by tile of code, vertex state, exchange code, stacks.
        always_live_bytes: bytes over all tiles that live through the whole program.
        peak_bytes: bytes over all tiles live at the fullest step, always-live ones included.
        peak_step: that step.
    """

    limit: int
    by_tile: Ints
    fixed: dict[str, Ints]
    always_live_bytes: int
    peak_bytes: int
    peak_step: int

    @property
    def max_tile_bytes(self) -> int:
        """Bytes of the fullest tile."""
        return int(self.by_tile.max(initial=0))

    @property
    def fullest_tile(self) -> int:
        """Its number."""
        return int(self.by_tile.argmax())

    @property
    def total_bytes(self) -> int:
        """Bytes of all tiles."""
        return int(self.by_tile.sum())

    @property
    def fits(self) -> bool:
        """Whether every tile has room."""
        return self.max_tile_bytes <= self.limit


def fixed_bytes(program: Program) -> dict[str, Ints]:
    """Bytes of code, vertex state, exchange code and stacks on each tile, by category.

    Source: hardware.md 5.1. A vertex type's code once on each tile that uses it; exchange code 4 B an instruction,
    three a received fragment and one for each 64 words sent.
    """
    tiles = program.tile_count
    out = {c: np.zeros(tiles, np.int64) for c in CATEGORIES[5:]}
    uses: dict[int, Ints] = {}
    for kind, first, last, _ in program.steps.tolist():
        if kind == COMPUTE:
            for i in range(first, last):
                g = program.group(i)
                model = registry.MODELS[g.codelet]
                np.add.at(out["vertexInstanceState"], g.tiles, np.broadcast_to(model.state_bytes(g), g.rows))
                uses.setdefault(g.codelet, np.zeros(tiles, bool))[g.tiles] = True
        elif kind in (EXCHANGE, STREAM_IN, STREAM_OUT):
            name = "internalExchangeCode" if kind == EXCHANGE else "hostExchangeCode"
            for i in range(first, last):
                g = program.group(i)
                src, dst = np.broadcast_to(g.col(0), g.rows), np.broadcast_to(g.col(1), g.rows)
                nbytes = copy_model.elements(g) * int(g.params[1])
                if kind == EXCHANGE:
                    pieces, (origin, leaving) = copy_model.crossing_of(g).fragments, copy_model.sends(g)
                else:
                    pieces, (origin, leaving) = np.minimum(copy_model.runs(g), -(-nbytes // 4)), (src, nbytes)
                if kind != STREAM_OUT:
                    out[name] += (12 * np.bincount(dst, pieces, tiles)).astype(np.int64)
                if kind != STREAM_IN:
                    out[name] += (4 * np.bincount(origin, -(-leaving // 256), tiles)).astype(np.int64)
    for codelet, on in uses.items():
        out["vertexCode"] += on * registry.MODELS[codelet].code_bytes
    out["controlCode"] += CONTROL_BYTES * len(program.steps)
    out["stack"] += STACK_BYTES
    return out


def memory_report(program: Program) -> MemoryReport:
    """Add up every byte of a program."""
    fixed = fixed_bytes(program)
    tiles = program.tile_count
    cells = program.cells.astype(np.int64)
    ends = np.zeros(tiles, np.int64)
    np.maximum.at(ends, cells[:, 0], cells[:, 1] + cells[:, 2])
    extra = np.sum(list(fixed.values()), axis=0)
    sizes = np.bincount(
        np.repeat(np.arange(len(program.variables)), program.variables[:, 4]), cells[:, 2], len(program.variables)
    )
    steps = len(program.steps)
    live = _live(program.variables, sizes.astype(np.int64), steps)
    always = (program.variables[:, 1] == 0) & (program.variables[:, 2] >= steps - 1)
    total_fixed = int(extra.sum())
    peak_step = int(live.argmax()) if steps else 0
    return MemoryReport(
        int(program.header["target"]["bytes_per_tile"]),
        ends + extra,
        fixed,
        int(sizes[always].sum()) + total_fixed,
        int(live.max(initial=0)) + total_fixed,
        peak_step,
    )


def _live(variables: NDArray[Any], sizes: Ints, steps: int) -> Ints:
    """Bytes that live at each step."""
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, variables[:, 1], sizes)
    np.add.at(change, np.minimum(variables[:, 2] + 1, steps), -sizes)
    live: Ints = np.cumsum(change)[:steps]
    return live


def bytes_on_tile(program: Program, tile: int) -> tuple[int, int]:
    """Bytes of variables on a tile that live always, and the most of others that live at once."""
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    here = np.flatnonzero(program.cells[:, 0] == tile)
    sizes, variables = program.cells[here, 2].astype(np.int64), program.variables[owner[here]]
    steps = len(program.steps)
    always = (variables[:, 1] == 0) & (variables[:, 2] >= steps - 1)
    return int(sizes[always].sum()), int(_live(variables[~always], sizes[~always], steps).max(initial=0))


def largest_on_tile(program: Program, tile: int, most: int = 8) -> list[Tensor]:
    """The largest variables that live on a tile when it is fullest."""
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    here = np.flatnonzero(program.cells[:, 0] == tile)
    variables, sizes = program.variables[owner[here]], program.cells[here, 2].astype(np.int64)
    fullest = int(_live(variables, sizes, len(program.steps)).argmax()) if len(program.steps) else 0
    here = here[(variables[:, 1] <= fullest) & (fullest <= variables[:, 2])]
    order = here[np.argsort(-program.cells[here, 2], kind="stable")][:most]
    found = []
    for at in order.tolist():
        variable = program.variables[owner[at]]
        layer, _, name = _parts(program.header["labels"][int(variable[5])])
        found.append(Tensor(int(program.cells[at, 2]), CATEGORIES[int(variable[0])], layer, name))
    return found


def _parts(label: str) -> tuple[str, str, str]:
    layer, phase, name = [*label.split("|", 2), "", ""][:3]
    return layer, phase, name
