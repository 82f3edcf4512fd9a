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
    step_bytes = limit + 1
    cells = program.cells.astype(np.int64)
    owner = np.repeat(np.arange(len(program.variables)), program.variables[:, 4])
    order = np.argsort(cells[:, 0] * step_bytes + cells[:, 1], kind="stable")
    cells, owner = cells[order], owner[order]
    begin, end = program.variables[owner, 1], program.variables[owner, 2]
    keys = cells[:, 0] * step_bytes + cells[:, 1]
    for index, (kind, first, last, label) in enumerate(program.steps.tolist()):
        if kind not in (*TIMED, BRANCH):
            continue
        live = (begin <= index) & (index <= end) & (cells[:, 2] > 0)
        live_keys, live_cells = keys[live], cells[live]
        for group in range(first, last):
            for tile, offset, nbytes, mode in spans(program.group(group), kind):
                used = nbytes > 0
                if not used.any():
                    continue
                t, o, n = tile[used], offset[used], nbytes[used]
                if ((t < 0) | (t >= tiles) | (o < 0) | (o + n > limit)).any():
                    raise StrictModeError(_where(program, index, kind, label) + f"an operand ({mode}) leaves its tile")
                at = np.searchsorted(live_keys, t * step_bytes + o, "right") - 1
                ok = at >= 0
                ok &= live_cells[np.maximum(at, 0), 0] == t
                ok &= o + n <= live_cells[np.maximum(at, 0), 1] + live_cells[np.maximum(at, 0), 2]
                if not ok.all():
                    bad = int(np.flatnonzero(~ok)[0])
                    raise StrictModeError(
                        _where(program, index, kind, label)
                        + f"tile {t[bad]}, bytes {o[bad]}..{o[bad] + n[bad]} ({mode}): not inside a live allocation"
                    )


def _where(program: Program, index: int, kind: int, label: int) -> str:
    labels = program.header.get("labels", [])
    name = labels[label] if 0 <= label < len(labels) else ""
    return f"step {index} ({KIND_NAMES[kind]} {name}): "


KEPT = 1 << 25
"""Numbers of bytes that are kept from one execution to the next, over all groups."""

CHUNK = 1 << 24
"""Bytes of memory that are looked at together."""


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
        self.written_bytes = np.zeros(len(arena), bool)
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
        self.guard = np.ones(len(arena), bool)
        for i in range(len(program.variables)):
            self.guard[self._bytes_of_cells([i])] = False
        self.owner = np.zeros(len(arena), np.int32)  # group that writes a byte in the step at hand, 0: none
        self.seen: set[int] = set()
        self._reads: dict[int, Ints] = {}
        self._writes: dict[int, Ints] = {}
        self._kept = 0

    def _bytes_of_cells(self, variables: list[int]) -> Ints:
        parts = [self.program.cells[self.program.variables[v, 3] :][: self.program.variables[v, 4]] for v in variables]
        cells = np.concatenate(parts).astype(np.int64) if parts else np.zeros((0, 3), np.int64)
        return _expand(cells[:, 0] * self.stride + cells[:, 1], cells[:, 2])

    def _touched(self, group: int, mode: str) -> Ints:
        g, kind = self.program.group(group), self.kind_of.get(group, EXCHANGE)
        if g.codelet == registry.COPY:
            side = 0 if mode == "r" else 1
            if (kind == STREAM_IN and side == 0) or (kind == STREAM_OUT and side == 1):
                return np.zeros(0, np.int64)
            if group in self.parts:
                g = _rows(g, np.broadcast_to(g.col(side), g.rows) % self.parts[group] == self.replica)
            return _copy_bytes(g, side, self.stride)
        if g.codelet == registry.COLLECTIVE and g.params[0] == GATHER and mode == "r":
            g = _rows(g, owners(g) == self.replica % int(g.params[2]))
        parts = [
            _expand(tile * self.stride + offset, nbytes) for tile, offset, nbytes, m in spans(g, kind) if mode in m
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def begin(self, step: int) -> None:
        """A step begins: variables that come to life hold nothing yet; its groups must not meet."""
        born = self.births.get(step)
        if born is not None:
            self.written_bytes[self._bytes_of_cells(born)] = False

        if step not in self.seen:
            self.seen.add(step)
            self._disjoint(step)

    def _disjoint(self, step: int) -> None:
        """Raise if two rows of a step write a byte, or one group reads what another writes: order would matter."""
        kind, first, last, label = self.program.steps[step].tolist()
        groups = range(first, last)
        writes = {g: self._bytes(g, "w") for g in groups}
        try:
            for g, at in writes.items():
                taken = bool(self.owner[at].any())
                numbers = np.arange(1, len(at) + 1, dtype=np.int32)
                self.owner[at] = numbers  # of two writers of a byte the later one's number stays
                if taken or bool((self.owner[at] != numbers).any()):
                    raise StrictModeError(_where(self.program, step, kind, label) + "two rows write the same byte")
                self.owner[at] = g + 1
            for g in groups:
                other = self.owner[self._bytes(g, "r")]
                if ((other != 0) & (other != g + 1)).any():
                    raise StrictModeError(
                        _where(self.program, step, kind, label) + "a group reads what another writes in the same step"
                    )
        finally:
            for at in writes.values():
                self.owner[at] = 0

    def _bytes(self, group: int, mode: str) -> Ints:
        """Bytes that a group reads or writes, counted once."""
        cache = self._reads if mode == "r" else self._writes
        found = cache.get(group)
        if found is None:
            found = self._touched(group, mode)
            # A large program touches more bytes in a step than their numbers could be kept for.
            if self._kept + len(found) <= KEPT:
                cache[group] = found
                self._kept += len(found)
        return found

    def reads(self, step: int, group: int) -> None:
        """Raise unless all that the group reads has been written."""
        at = self._bytes(group, "r")
        ok = self.written_bytes[at]
        if not ok.all():
            bad = int(at[np.flatnonzero(~ok)[0]])
            kind, _, _, label = self.program.steps[step].tolist()
            raise StrictModeError(
                _where(self.program, step, kind, label)
                + f"tile {bad // self.stride} reads byte {bad % self.stride}, which was never written"
            )

    def written(self, group: int) -> None:
        """What the group writes is written."""
        self.written_bytes[self._bytes(group, "w")] = True

    def end(self, step: int) -> None:
        """A step ends."""

    def guards(self, when: str) -> None:
        """Raise if a byte outside all allocations has changed."""
        for first in range(0, len(self.arena), CHUNK):
            part = slice(first, first + CHUNK)
            damaged = np.flatnonzero((self.arena[part] != PATTERN) & self.guard[part])
            if len(damaged):
                bad = first + int(damaged[0])
                raise StrictModeError(
                    f"{when}: guard byte {bad % self.stride} of tile {bad // self.stride} was overwritten "
                    f"(with {len(damaged) - 1} others near it)"
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


def _copy_bytes(g: Any, side: int, stride: int) -> Ints:
    """Every byte that copies read (side 0) or write (side 1)."""
    nd, size = int(g.params[0]), int(g.params[1])
    at = np.broadcast_to(np.broadcast_to(g.col(side), g.rows) * stride + g.col(2 + side) * size, g.rows)
    sizes = np.ones(g.rows, np.int64)  # elements of each row so far
    for d in range(nd):
        counts = np.repeat(np.broadcast_to(g.col(4 + 3 * d), g.rows), sizes)
        steps = np.repeat(np.broadcast_to(g.col(6 + 3 * d - side), g.rows), sizes) * size
        k = _expand(np.zeros(len(counts), np.int64), counts)
        at = np.repeat(at, counts) + k * np.repeat(steps, counts)
        sizes = sizes * g.col(4 + 3 * d)
    return (at[:, None] + np.arange(size)).reshape(-1)
