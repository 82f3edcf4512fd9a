"""Strict mode: every operand of a program is checked against what the program says it may touch.

Four nets: (1) once, when a program is loaded: each operand of each vertex and copy lies inside its tile and inside one
allocation that is live at that step; (2) while it runs: no byte is read that was not written since its allocation
began; (3) no two rows of a superstep write the same byte and no group reads what another writes, so their order cannot
matter; (4) bytes outside all allocations keep their pattern, so a kernel that writes past all allocations is found.
What a kernel touches is taken from its model's operands; only the last net, and the comparison of results with XLA, see
the kernel itself.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.codelets import registry
from ipu_runtime.codelets.collective_model import owners
from ipu_runtime.codelets.model import Ints
from ipu_runtime.errors import StrictModeError
from ipu_runtime.opcodes import GATHER
from ipu_runtime.program import BRANCH, EXCHANGE, KIND_NAMES, STREAM_IN, STREAM_OUT, TIMED, GroupView, Program
from ipu_runtime.strict_bytes import Cells, claim, damaged, first_zero, give_back, of_another, paint

PATTERN = 0xA5


def spans(g: GroupView, kind: int) -> list[tuple[Ints, Ints, Ints, str]]:
    """(tile, offset, bytes, mode) of each operand on tiles; the host's side of a stream is left out."""
    model = registry.MODELS[g.codelet]
    found = []
    for side, operand in enumerate(model.operands(g)):
        if g.codelet == registry.COPY:
            if (kind == STREAM_IN and side == 0) or (kind == STREAM_OUT and side == 1):
                continue
            tile = np.broadcast_to(g.col(side), g.rows)
        else:
            tile = g.tiles
        offset, nbytes = np.broadcast_to(operand.offset, g.rows), np.broadcast_to(operand.nbytes, g.rows)
        found.append((tile, offset, nbytes, operand.mode))
    return found


def check_bounds(program: Program) -> None:
    """Raise StrictModeError unless every operand lies inside its tile and inside one live allocation."""
    limit = int(program.header["used_bytes"])
    tiles = program.tile_count
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    order = np.lexsort((program.cells[:, 1], program.cells[:, 0]))
    order = order[program.cells[order, 2] > 0]
    lives = program.variables[owner[order], 1:3]
    cells = Cells(*program.cells[order].T, *lives.T, tiles)
    for index, (kind, first, last, label) in enumerate(program.steps.tolist()):
        if kind not in (*TIMED, BRANCH):
            continue
        for group in range(first, last):
            for tile, offset, nbytes, mode in spans(program.group(group), kind):
                wide = (nbytes > 0) & ((tile < 0) | (tile >= tiles) | (offset < 0) | (offset + nbytes > limit))
                if wide.any():
                    raise StrictModeError(_where(program, index, kind, label) + f"an operand ({mode}) leaves its tile")
                bad = cells.outside(tile, offset, nbytes, index)
                if bad >= 0:
                    raise StrictModeError(
                        _where(program, index, kind, label)
                        + f"tile {tile[bad]}, bytes {offset[bad]}..{offset[bad] + nbytes[bad]} ({mode}): not inside a"
                        " live allocation"
                    )


def _where(program: Program, index: int, kind: int, label: int) -> str:
    labels = program.header.get("labels", [])
    name = labels[label] if 0 <= label < len(labels) else ""
    return f"step {index} ({KIND_NAMES[kind]} {name}): "


KEPT = 1 << 24
"""Runs of bytes that are kept from one execution to the next, over all groups."""

Runs = tuple[Ints, Ints]
"""First byte, counted through all tiles' memory, and number of bytes of each run."""

NOTHING: Runs = (np.zeros(0, np.int64), np.zeros(0, np.int64))


class Watch:
    """Follows one engine's run.

    Args:
        program: the program.
        arena: all tiles' memory, as bytes.
        stride: bytes from one tile's memory to the next.
        replica: whose memory it is.
    """

    def __init__(self, program: Program, arena: np.ndarray, stride: int, replica: int = 0) -> None:
        check_bounds(program)
        self.replica = replica
        shared = {s["remote"]: s["shared"] for s in program.header["states"] if "shared" in s}
        streams = [range(a, b) for kind, a, b, _ in program.steps.tolist() if kind in (STREAM_IN, STREAM_OUT)]
        # Of a state that replicas share, one streams the rows of its own tiles alone.
        self.parts = {g: shared[s] for g in chain(*streams) if (s := int(program.group(g).params[2])) in shared}
        self.program, self.arena, self.stride = program, arena, stride
        arena[:] = PATTERN
        # Memory that is zeros takes none until it is written to.
        self.written_bytes = np.zeros(len(arena), np.uint8)
        self.allocated = np.zeros(len(arena), np.uint8)
        kinds = program.steps[:, 0]
        self.kind_of = {g: int(kinds[i]) for i, s in enumerate(program.steps) for g in range(int(s[1]), int(s[2]))}
        for state in [s for s in program.header["states"] if "write" in s]:
            self.kind_of.update({g: STREAM_IN for g in range(*state["write"])})
        for constant in program.header["constants"]:
            self.kind_of.update({g: STREAM_IN for g in range(*constant["groups"])})
        births: dict[int, list[int]] = {}
        for i, variable in enumerate(program.variables.tolist()):
            # What lives from the first step to the last is the host's to write, before any step.
            if variable[1] > 0 or variable[2] < len(program.steps) - 1:
                births.setdefault(variable[1], []).append(i)
        self.births = births
        paint(self.allocated, *self._runs(program.cells), 1)
        self.owner = np.zeros(len(arena), np.int32)  # group that writes a byte in the step at hand, 0: none
        self.seen: set[int] = set()
        self._reads: dict[int, Runs] = {}
        self._writes: dict[int, Runs] = {}
        self._kept = 0

    def _runs(self, cells: np.ndarray) -> Runs:
        cells = cells.astype(np.int64)
        return cells[:, 0] * self.stride + cells[:, 1], cells[:, 2]

    def _touched(self, group: int, mode: str) -> Runs:
        g, kind = self.program.group(group), self.kind_of.get(group, EXCHANGE)
        if g.codelet == registry.COPY:
            side = 0 if mode == "r" else 1
            if (kind == STREAM_IN and side == 0) or (kind == STREAM_OUT and side == 1):
                return NOTHING
            if group in self.parts:
                g = _rows(g, np.broadcast_to(g.col(side), g.rows) % self.parts[group] == self.replica)
            return _copy_runs(g, side, self.stride)
        if g.codelet == registry.COLLECTIVE and g.params[0] == GATHER and mode == "r":
            g = _rows(g, owners(g) == self.replica % int(g.params[2]))
        parts = [(tile * self.stride + offset, nbytes) for tile, offset, nbytes, m in spans(g, kind) if mode in m]
        if not parts:
            return NOTHING
        first, n = (np.concatenate(each) for each in zip(*parts, strict=True))
        return first, n

    def begin(self, step: int) -> None:
        """A step begins: variables that come to life hold nothing yet; its groups must not meet."""
        born = self.births.get(step)
        if born is not None:
            starts, counts = self.program.variables[born, 3:5].astype(np.int64).T
            paint(self.written_bytes, *self._runs(self.program.cells[_expand(starts, counts)]), 0)
        if step not in self.seen:
            self.seen.add(step)
            self._disjoint(step)

    def _disjoint(self, step: int) -> None:
        """Raise if two rows of a step write a byte, or one group reads what another writes: order would matter."""
        kind, first, last, label = self.program.steps[step].tolist()
        groups = range(first, last)
        writes = {g: self._bytes(g, "w") for g in groups}
        where = _where(self.program, step, kind, label)
        try:
            for g, runs in writes.items():
                if claim(self.owner, *runs, g + 1) >= 0:
                    raise StrictModeError(where + "two rows write the same byte")
            for g in groups:
                if of_another(self.owner, *self._bytes(g, "r"), g + 1) >= 0:
                    raise StrictModeError(where + "a group reads what another writes in the same step")
        finally:
            for runs in writes.values():
                give_back(self.owner, *runs)

    def _bytes(self, group: int, mode: str) -> Runs:
        """Bytes that a group reads or writes, worked out once."""
        cache = self._reads if mode == "r" else self._writes
        found = cache.get(group)
        if found is None:
            first, n = self._touched(group, mode)
            found = (first, n) if n.all() else (first[n > 0], n[n > 0])  # what is empty may be anywhere
            # A large program touches more in a step than could be kept.
            if self._kept + len(found[0]) <= KEPT:
                cache[group] = found
                self._kept += len(found[0])
        return found

    def reads(self, step: int, group: int) -> None:
        """Raise unless all that the group reads has been written."""
        bad = first_zero(self.written_bytes, *self._bytes(group, "r"))
        if bad >= 0:
            kind, _, _, label = self.program.steps[step].tolist()
            raise StrictModeError(
                _where(self.program, step, kind, label)
                + f"tile {bad // self.stride} reads byte {bad % self.stride}, which was never written"
            )

    def written(self, group: int) -> None:
        """What the group writes is written."""
        paint(self.written_bytes, *self._bytes(group, "w"), 1)

    def end(self, step: int) -> None:
        """A step ends."""

    def guards(self, when: str) -> None:
        """Raise if a byte outside all allocations has changed."""
        count, bad = damaged(self.arena, self.allocated, PATTERN)
        if count:
            raise StrictModeError(
                f"{when}: guard byte {bad % self.stride} of tile {bad // self.stride} was overwritten "
                f"(with {count - 1} others)"
            )


def _expand(first: Ints, n: Ints) -> Ints:
    """All integers of the runs [first, first + n)."""
    first, n = np.broadcast_arrays(first, n)
    starts = np.repeat(first, n)
    return starts + np.arange(len(starts)) - np.repeat(np.cumsum(n) - n, n)


def _rows(g: GroupView, keep: NDArray[np.bool_]) -> GroupView:
    """Some rows of a group."""
    columns = [np.broadcast_to(column, g.rows)[keep] for column in g.columns]
    return GroupView(g.codelet, int(keep.sum()), g.params, columns)


def _copy_runs(g: Any, side: int, stride: int) -> Runs:
    """The bytes that copies read (side 0) or write (side 1)."""
    nd, size = int(g.params[0]), int(g.params[1])
    at = np.broadcast_to(np.broadcast_to(g.col(side), g.rows) * stride + g.col(2 + side) * size, g.rows)
    n = np.full(g.rows, size, np.int64)
    if nd and bool((g.col(3 * nd + 3 - side) == 1).all()):
        nd -= 1
        n = n * g.col(4 + 3 * nd)
    rows = np.arange(g.rows)  # of each run so far
    for d in range(nd):
        counts = np.broadcast_to(g.col(4 + 3 * d), g.rows)[rows]
        steps = np.broadcast_to(g.col(6 + 3 * d - side), g.rows)[rows] * size
        at = np.repeat(at, counts) + _expand(np.zeros(len(counts), np.int64), counts) * np.repeat(steps, counts)
        rows = np.repeat(rows, counts)
    return at, n[rows]
