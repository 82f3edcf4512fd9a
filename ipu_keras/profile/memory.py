"""Memory of a program, tile by tile and by category, from the program's own tables; what lives when: `liveness`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_keras.profile.groups import Groups
from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.program import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    EXCHANGE,
    STREAM_IN,
    STREAM_OUT,
    TIMED,
    GroupView,
    Program,
)

Ints = NDArray[np.int64]


CONTROL_BYTES = 16
"""Control code of a superstep on each tile: a few words, hardware.md 5.1 [unvalidated]."""

EXECUTABLE = ("vertexCode", "controlCode", "internalExchangeCode", "hostExchangeCode")
"""Categories that must lie where instructions can be fetched. Source: hardware.md 5.1."""

EXECUTABLE_BYTES = 212_992
"""The executable part of a tile of a Mk2 chip, 208 KiB, where the target does not say. Source: hardware.md 1.3."""

STACK_BYTES = 6 * 256 + 256
"""Stacks of six workers and the supervisor [unvalidated]."""


class Tensor(NamedTuple):
    """One of the largest variables, on a tile or on all its tiles: its bytes, what it is, whether it lives always."""

    nbytes: int
    category: str
    layer: str
    name: str
    always_live: bool


@dataclass
class MemoryReport:
    """Does it fit?

    Attributes:
        limit: bytes of a tile.
        executable_limit: bytes of a tile that instructions can be fetched from.
        by_tile: bytes that each tile needs, placed variables (with the gaps of their placement) and fixed bytes.
        fixed: category -> bytes by tile of code, vertex state, exchange code, stacks.
        always_live_bytes: bytes over all tiles that live through the whole program.
        peak_bytes: bytes over all tiles live at the fullest step, always-live ones included.
        peak_step: that step.
    """

    limit: int
    executable_limit: int
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
    def executable(self) -> Ints:
        """Bytes of instructions on each tile: code of vertices, exchanges and control."""
        return np.asarray(sum(self.fixed[name] for name in EXECUTABLE), np.int64)

    @property
    def fits(self) -> bool:
        """Whether every tile has room, and room for its instructions where they can be executed."""
        return self.max_tile_bytes <= self.limit and int(self.executable.max(initial=0)) <= self.executable_limit


def fixed_bytes(program: Program, groups: Groups | None = None) -> dict[str, Ints]:
    """Bytes of code, vertex state, exchange code and stacks on each tile, by category.

    Args:
        program: whose bytes.
        groups: of the same program, if somebody has looked at them already.

    Source: hardware.md 5.1. A vertex type's code once on each tile that uses it; exchange code 4 B an instruction,
    three a received fragment and one for each 64 words sent.
    """
    groups, tiles = groups or Groups(program), program.tile_count
    out = {c: np.zeros(tiles, np.int64) for c in CATEGORIES[5:]}
    uses: dict[int, Ints] = {}
    for kind, first, last, _ in program.steps[~program.again].tolist():
        for i in range(first, last):
            if kind in (COMPUTE, COLLECTIVE):
                g = program.group(i)
                state = np.broadcast_to(registry.MODELS[g.codelet].state_bytes(g), g.rows)
                out["vertexInstanceState"] += np.bincount(g.tiles, state, tiles).astype(np.int64)
                uses.setdefault(g.codelet, np.zeros(tiles, bool))[g.tiles] = True
            elif kind == EXCHANGE:
                out["internalExchangeCode"] += copy_model.exchange_code(groups.traffic(i)).astype(np.int64)
            elif kind in (STREAM_IN, STREAM_OUT):
                out["hostExchangeCode"] += _stream_code(program.group(i), kind, tiles, groups.rates.fragment_price)
    for codelet, on in uses.items():
        out["vertexCode"] += on * registry.MODELS[codelet].code_bytes
    out["controlCode"] += CONTROL_BYTES * steps_of_chips(program).repeat(tiles // program.ipus)
    out["stack"] += STACK_BYTES
    return out


def steps_of_chips(program: Program) -> Ints:
    """How many steps each chip has in its control code: those that its tiles take part in, and the loops."""
    again = program.again
    # A function's steps are its own, a call is one more.
    inside = again & np.append(False, again[:-1] & (program.steps[1:, 1] == program.steps[:-1, 2]))
    steps = program.steps[~inside]
    if program.ipus == 1:
        return np.array([len(steps)], np.int64)
    per_chip = program.tile_count // program.ipus
    found = np.zeros(program.ipus, np.int64)
    for kind, first, last, _ in steps.tolist():
        chips: set[int] = set()
        if kind in TIMED:
            for i in range(first, last):
                g = program.group(i)
                sides = {STREAM_IN: (1,), STREAM_OUT: (0,), EXCHANGE: (0, 1)}.get(kind, (0,))
                chips.update(*((np.unique(g.col(side)) // per_chip).tolist() for side in sides))
            found[list(chips)] += 1
        else:
            found += 1
    return found


def _stream_code(g: GroupView, kind: int, tiles: int, price: float) -> Ints:
    """Host streams: instructions on the tile's side, as for an exchange. The host puts in order what needs it."""
    if kind == STREAM_IN:
        counts, dst, src = ([g.col(4 + side + 3 * d) for d in range(int(g.params[0]))] for side in range(3))
        pieces = copy_model.crossing(np.ones(g.rows, bool), counts, dst, src, int(g.params[1]), price).fragments
        return (copy_model.FRAGMENT_BYTES * np.bincount(np.broadcast_to(g.col(1), g.rows), pieces, tiles)).astype(
            np.int64
        )
    nbytes = copy_model.elements(g) * int(g.params[1])
    return (copy_model.SEND_BYTES * np.bincount(np.broadcast_to(g.col(0), g.rows), -(-nbytes // 256), tiles)).astype(
        np.int64
    )


def memory_report(program: Program, groups: Groups | None = None) -> MemoryReport:
    """Add up every byte of a program; done once for each program.

    Args:
        program: whose bytes.
        groups: of the same program, if somebody has looked at them already.
    """
    if "memory" not in program.found:
        program.found["memory"] = _report(program, fixed_bytes(program, groups))
    report: MemoryReport = program.found["memory"]
    return report


def _report(program: Program, fixed: dict[str, Ints]) -> MemoryReport:
    target, cells = program.header["target"], program.cells
    ends = np.zeros(program.tile_count, np.int32)
    np.maximum.at(ends, cells[:, 0].astype(np.intp), cells[:, 1] + cells[:, 2])  # equal types: six times as fast
    extra = np.sum(list(fixed.values()), axis=0)
    sizes = variable_bytes(program)
    live = live_bytes(program.variables, sizes, len(program.steps))
    total_fixed = int(extra.sum())
    return MemoryReport(
        int(target["bytes_per_tile"]),
        int(target.get("executable_bytes", EXECUTABLE_BYTES)),
        ends + extra,
        fixed,
        int(sizes[always_live(program)].sum()) + total_fixed,
        int(live.max(initial=0)) + total_fixed,
        int(live.argmax()) if len(live) else 0,
    )


def variable_bytes(program: Program) -> Ints:
    """Bytes of each variable over all tiles."""
    out = np.zeros(len(program.variables), np.int64)
    some = np.flatnonzero(program.variables[:, 4])
    if len(some):
        out[some] = np.add.reduceat(program.cells[:, 2], program.variables[some, 3], dtype=np.int64)
    return out


def always_live(program: Program) -> NDArray[np.bool_]:
    """Which variables live through the whole program."""
    return (program.variables[:, 1] == 0) & (program.variables[:, 2] >= len(program.steps) - 1)


def always_live_by_tile(program: Program) -> Ints:
    """Bytes on each tile of what lives through the whole program."""
    always = np.repeat(always_live(program), program.variables[:, 4])
    found = np.bincount(program.cells[always, 0], program.cells[always, 2], program.tile_count)
    return found.astype(np.int64)


def owners(program: Program, at: NDArray[Any]) -> Ints:
    """The variable of each of these cells; cells lie in the order of their variables."""
    return np.searchsorted(program.variables[:, 3], at, side="right") - 1


def live_bytes(variables: NDArray[Any], sizes: NDArray[Any], steps: int) -> Ints:
    """Bytes that live at each step.

    Args:
        variables: rows of a program's table of variables.
        sizes: bytes of each.
        steps: steps of the program.
    """
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, variables[:, 1], sizes)
    np.add.at(change, np.minimum(variables[:, 2] + 1, steps), -sizes.astype(np.int64))
    live: Ints = np.cumsum(change)[:steps]
    return live


def bytes_on_tile(program: Program, tile: int) -> tuple[int, int]:
    """Bytes of variables on a tile that live always, and the most of others that live at once."""
    here = np.flatnonzero(program.cells[:, 0] == tile)
    owner, sizes = owners(program, here), program.cells[here, 2].astype(np.int64)
    always = always_live(program)[owner]
    others = live_bytes(program.variables[owner[~always]], sizes[~always], len(program.steps))
    return int(sizes[always].sum()), int(others.max(initial=0))


def largest_on_tile(program: Program, tile: int, most: int = 8) -> list[Tensor]:
    """The largest variables that live on a tile when it is fullest."""
    here = np.flatnonzero(program.cells[:, 0] == tile)
    variables, sizes = program.variables[owners(program, here)], program.cells[here, 2].astype(np.int64)
    live = live_bytes(variables, sizes, len(program.steps))
    return _largest(program, variables, sizes, int(live.argmax()) if len(live) else 0, most)


def largest_at(program: Program, step: int, most: int = 8) -> list[Tensor]:
    """The largest variables that live at a step, each over all its tiles."""
    return _largest(program, program.variables, variable_bytes(program), step, most)


def _largest(program: Program, variables: NDArray[Any], sizes: Ints, step: int, most: int) -> list[Tensor]:
    alive = np.flatnonzero((variables[:, 1] <= step) & (step <= variables[:, 2]))
    found = []
    for at in alive[np.argsort(-sizes[alive], kind="stable")][:most].tolist():
        layer, _, name = parts_of(program.header["labels"][int(variables[at, 5])])
        always = bool(variables[at, 1] == 0 and variables[at, 2] >= len(program.steps) - 1)
        found.append(Tensor(int(sizes[at]), CATEGORIES[int(variables[at, 0])], layer, name, always))
    return found


def parts_of(label: str) -> tuple[str, str, str]:
    """Layer, phase and operation of a label."""
    layer, phase, name = [*label.split("|", 2), "", ""][:3]
    return layer, phase, name
