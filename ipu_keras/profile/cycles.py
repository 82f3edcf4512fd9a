"""Cycles of a program's steps, from the program's own tables: the one that runs is the one that is timed.

Rules (hardware.md section 2): a compute set's time is the fullest tile's sum over its vertices; an exchange's is the
largest of bytes in and bytes out of any tile at 4 B a cycle, with three control slots for each received fragment; data
sent to many tiles is sent once; an exchange between tiles is preceded by a sync, nothing else is (docs/calibration.md,
row 6).

A program for several chips is timed chip by chip: a step costs a chip what its own tiles do. Chips meet where data goes
over IPU-Links, and replicas in collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.profile.groups import Floats, Groups
from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.codelets.collective_model import owners
from ipu_runtime.codelets.copy_model import phases
from ipu_runtime.opcodes import DTYPES, GATHER
from ipu_runtime.program import BRANCH, COLLECTIVE, COMPUTE, EXCHANGE, NEXT, REPEAT, STREAM_IN, GroupView, Program


class StepCycles(NamedTuple):
    """One superstep.

    Attributes:
        kind: as in `ipu_runtime.program`.
        sync, compute, exchange: cycles of each phase; host streams count as exchange.
        active_tiles: tiles with work.
        balance: mean over the chip's tiles of their busy cycles, divided by the largest.
        bytes_moved: bytes received by tiles, or by the host.
        by_group: cycles of each group, in proportion to what it adds to the fullest tile.
        unsourced: of the compute cycles, those that come from a formula without a source.
        longest: what each group would take alone: cycles of its own fullest tile, without the sync.
        moved: of the bytes moved, those of each group.
        by_chip: cycles of each chip; empty in a program for one.
        links: chip, chip and cycles of what goes between two chips, without the sync.
    """

    kind: int
    sync: int
    compute: int
    exchange: int
    active_tiles: int
    balance: float
    bytes_moved: int
    by_group: list[float]
    unsourced: float = 0.0
    longest: tuple[float, ...] = ()
    moved: tuple[int, ...] = ()
    by_chip: tuple[int, ...] = ()
    links: tuple[tuple[int, int, int], ...] = ()

    @property
    def total(self) -> int:
        """All phases one after another."""
        return self.sync + self.compute + self.exchange


def step_cycles(program: Program, groups: Groups | None = None) -> list[StepCycles]:
    """Cycles of each step of one iteration, in order; control steps cost their sync.

    Args:
        program: what to time.
        groups: of the same program, if somebody has looked at them already.
    """
    groups = groups or Groups(program)
    return [_one(groups, kind, first, last) for kind, first, last, _ in program.steps.tolist()]


def _one(groups: Groups, kind: int, first: int, last: int) -> StepCycles:
    program, rates = groups.program, groups.rates
    if kind == BRANCH:
        g = program.group(first)
        cycles = int(registry.MODELS[g.codelet].cycles(g, rates)[0])
        total = float(cycles + rates.sync_cycles)
        chips = _at(program, int(g.tiles[0]), int(total))
        return StepCycles(
            kind, rates.sync_cycles, 0, cycles, 1, 1.0, 0, [total], 0.0, (float(cycles),), (0,), by_chip=chips
        )
    if kind == COLLECTIVE:
        return _collective(groups, range(first, last))
    if kind == NEXT:
        # Every tile of every chip counts for itself. Which stages are due follows from the same counter: not counted.
        cycles = int(registry.MODELS[registry.CONTROL].cycles(program.group(first), rates)[0])
        chips = (cycles,) * program.ipus if program.ipus > 1 else ()
        active = program.tile_count
        return StepCycles(
            kind, 0, cycles, 0, active, 1.0, 0, [float(cycles)], 0.0, (float(cycles),), (0,), by_chip=chips
        )
    if kind >= REPEAT:
        return StepCycles(kind, 0, 0, 0, 0, 1.0, 0, [])
    if kind == COMPUTE:
        return _compute(groups, range(first, last))
    if kind == EXCHANGE:
        return _exchange(groups, range(first, last))
    return _stream(program, rates, [program.group(i) for i in range(first, last)], kind)


def _per_chip(program: Program, by_tile: Floats) -> tuple[int, ...]:
    """The largest figure of each chip's tiles; nothing for a program for one chip."""
    if program.ipus == 1:
        return ()
    return tuple(int(np.ceil(x)) for x in by_tile.reshape(program.ipus, -1).max(1))


def _at(program: Program, tile: int, cycles: int) -> tuple[int, ...]:
    """Cycles of the one chip that a tile is of."""
    per_chip = program.tile_count // program.ipus
    return tuple(cycles * (tile // per_chip == chip) for chip in range(program.ipus)) if program.ipus > 1 else ()


def _compute(groups: Groups, members: range) -> StepCycles:
    """Vertices of a tile run one after another; the fullest tile sets the time."""
    found = [groups.busy(i) for i in members]
    busy = np.zeros(groups.program.tile_count)
    for each in found:
        busy += each.cycles
    worst = int(busy.argmax())
    open_ = sum(float(each.unsourced[worst]) for each in found if each.unsourced is not None)
    longest = tuple(float(each.cycles.max(initial=0)) for each in found)
    chips = _per_chip(groups.program, busy)
    return _finish(busy, [float(each.cycles[worst]) for each in found], open_, longest)._replace(by_chip=chips)


def _finish(busy: Floats, on_worst: list[float], open_: float, longest: tuple[float, ...]) -> StepCycles:
    top = int(busy.max(initial=0))
    by_group = _proportions(on_worst, top)
    balance = float(busy.mean() / busy.max()) if top else 1.0
    active, moved = int(np.count_nonzero(busy)), (0,) * len(on_worst)
    return StepCycles(COMPUTE, 0, top, 0, active, balance, 0, by_group, open_, longest, moved)


def _proportions(shares: list[float], total: float) -> list[float]:
    whole = sum(shares)
    return [total * s / whole if whole else total / len(shares) for s in shares]


def _exchange(groups: Groups, members: range) -> StepCycles:
    """Copies of all groups together; those inside a tile and rearrangements are vertices before and after."""
    if groups.program.ipus > 1 and any(_links_of(groups.program, i) for i in members):
        return _link(groups, members)
    parts = [groups.traffic(i) for i in members]
    found = phases(parts, groups.rates)
    weights = [float(p.arrived.sum() + 8 * p.after.sum() + 12 * p.pieces.sum()) for p in parts]
    moved = tuple(int(p.arrived.sum()) for p in parts)
    by_group = _proportions(weights, found.total)
    active = int(np.count_nonzero(found.busy))
    balance = float(found.busy.mean() / found.busy.max()) if active else 1.0
    compute, alone = found.before + found.after, tuple(by_group)
    # The chips' exchanges have nothing to do with each other: each takes its own sync and its own fullest tile's time.
    chips = tuple(n + (found.sync + found.fixed) * (n > 0) for n in _per_chip(groups.program, found.busy))
    return StepCycles(
        EXCHANGE, found.sync, compute, found.exchange, active, balance, sum(moved), by_group, 0.0, alone, moved, chips
    )


def _links_of(program: Program, index: int) -> dict[tuple[int, int], int]:
    """Bytes of a group of copies by (sending chip, receiving chip), where these differ."""
    g, per_chip = program.group(index), program.tile_count // program.ipus
    src, dst = (np.broadcast_to(g.col(side), g.rows) // per_chip for side in (0, 1))
    far = src != dst
    if not far.any():
        return {}
    nbytes = copy_model.elements(g) * int(g.params[1])
    between = np.bincount(src[far] * program.ipus + dst[far], nbytes[far], program.ipus**2)
    return {divmod(int(i), program.ipus): int(between[i]) for i in np.flatnonzero(between)}


def _link(groups: Groups, members: range) -> StepCycles:
    """IPU-Links: an external sync of the chips that take part, then the links' rate, both ways at once.

    Source: hardware.md 1.5, 1.6, 7 [unvalidated]. What tiles do inside a chip meanwhile is not longer.
    """
    program, rates = groups.program, groups.rates
    found = [_links_of(program, i) for i in members]
    cycles_of = lambda n: int(np.ceil(n / rates.link_bytes_per_second * rates.clock_hz))  # noqa: E731
    between: dict[tuple[int, int], int] = {}
    for one in found:
        for pair, nbytes in one.items():
            between[pair] = between.get(pair, 0) + nbytes
    links = tuple((a, b, cycles_of(n)) for (a, b), n in between.items())
    cycles = link_cycles(links)
    moved = tuple(sum(one.values()) for one in found)
    total = cycles + rates.host_fixed_cycles
    by_group = _proportions([float(n) for n in moved], total)
    taking = {chip for a, b, _ in links for chip in (a, b)}
    chips = tuple(total * (chip in taking) for chip in range(program.ipus))
    tiles = np.unique(np.concatenate([program.group(i).tiles for i in members]))
    return StepCycles(
        EXCHANGE, rates.host_fixed_cycles, 0, cycles, len(tiles), 1.0, sum(moved), by_group, 0.0, tuple(by_group),
        moved, chips, links,
    )  # fmt: skip


def link_cycles(links: Iterable[tuple[int, int, int]]) -> int:
    """Cycles of transfers between chips that run together: each chip sends and receives at the links' rate.

    Args:
        links: sending chip, receiving chip, cycles of the transfer alone.
    """
    busy: dict[tuple[str, int], int] = {}
    for a, b, cycles in links:
        for end in (("out", a), ("in", b)):
            busy[end] = busy.get(end, 0) + cycles
    return max(busy.values(), default=0)


def _collective(groups: Groups, members: range) -> StepCycles:
    """An all-reduce of R replicas by a ring: every chip sends 2 (R - 1) / R of its bytes to its neighbour and adds.

    An all-gather is its second half: in R - 1 rounds every chip passes a part on, the largest of which is waited for.

    Source: the ring algorithm; hardware.md 1.5, 7 for sync and links [unvalidated].
    """
    program, rates = groups.program, groups.rates
    per_chip = program.tile_count // program.ipus
    wire, adds = np.zeros(program.ipus), np.zeros(program.tile_count)
    sizes = []
    for i in members:
        g = program.group(i)
        size = int(g.params[2])
        nbytes = np.broadcast_to(g.col(1), g.rows) * DTYPES[int(g.params[1])].itemsize
        if g.params[0] == GATHER:
            parts = g.tiles // per_chip * size + owners(g)
            wire += np.bincount(parts, nbytes, program.ipus * size).reshape(-1, size).max(1) * (size - 1)
        else:
            wire += np.bincount(g.tiles // per_chip, nbytes, program.ipus) * 2 * (size - 1) / size
        each_row = registry.MODELS[g.codelet].cycles(g, rates) * (size - 1) / size
        adds += np.bincount(g.tiles, each_row, program.tile_count)
        sizes.append(float(nbytes.sum()))
    over = np.ceil(wire / rates.link_bytes_per_second * rates.clock_hz).astype(np.int64)
    sums = np.ceil(adds.reshape(program.ipus, -1).max(1)).astype(np.int64)
    each = over + sums + rates.host_fixed_cycles * (wire > 0)
    worst = int(each.argmax())
    by_group, moved = _proportions(sizes, float(each[worst])), tuple(int(s) for s in sizes)
    chips = tuple(int(x) for x in each) if program.ipus > 1 else ()
    return StepCycles(
        COLLECTIVE, rates.host_fixed_cycles, int(sums[worst]), int(over[worst]), int(np.count_nonzero(adds)), 1.0,
        int(sum(sizes)), by_group, float(sums[worst]), tuple(by_group), moved, chips,
    )  # fmt: skip


def _streamed(g: GroupView, kind: int, parts: int) -> float:
    """Bytes that a replica streams; of a state that replicas share, the largest part."""
    nbytes = np.broadcast_to(copy_model.elements(g) * int(g.params[1]), g.rows)
    tiles = np.broadcast_to(g.col(1 if kind == STREAM_IN else 0), g.rows)
    return float(np.bincount(tiles % parts, nbytes, parts).max())


def _stream(program: Program, rates: Any, groups: list[GroupView], kind: int) -> StepCycles:
    """Streams of the host or of streaming memory: external sync, then the rate (hardware.md 1.6, 7) [unvalidated]."""
    remote = {s["remote"]: s.get("shared", 1) for s in program.header.get("states", []) if "remote" in s}
    remote.update((s["slot"], 1) for s in program.header.get("stashes", []))
    sizes = [_streamed(g, kind, remote.get(int(g.params[2]), 1)) for g in groups]
    speeds = [
        rates.streaming_bytes_per_second if int(g.params[2]) in remote else rates.host_bytes_per_second for g in groups
    ]
    seconds = sum(size / speed for size, speed in zip(sizes, speeds, strict=True))
    cycles = int(np.ceil(seconds * rates.clock_hz))
    total = cycles + rates.host_fixed_cycles
    tiles = np.unique(np.concatenate([np.broadcast_to(g.col(1 if kind == STREAM_IN else 0), g.rows) for g in groups]))
    active = len(tiles)
    on = set((tiles // (program.tile_count // program.ipus)).tolist())
    chips = tuple(total * (chip in on) for chip in range(program.ipus)) if program.ipus > 1 else ()
    by_group, moved = _proportions(sizes, total), tuple(int(s) for s in sizes)
    return StepCycles(
        kind, rates.host_fixed_cycles, 0, cycles, active, 1.0, int(sum(sizes)), by_group, 0.0, tuple(by_group), moved,
        chips,
    )  # fmt: skip
