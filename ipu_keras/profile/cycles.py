"""Cycles of a program's steps, from the program's own tables: the one that runs is the one that is timed.

Rules (hardware.md section 2): a compute set's time is the fullest tile's sum over its vertices; an exchange's is the
largest of bytes in and bytes out of any tile at 4 B a cycle, with three control slots for each received fragment; data
sent to many tiles is sent once; an exchange between tiles is preceded by a sync, nothing else is (docs/calibration.md,
row 6).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ipu_keras.profile.groups import Floats, Groups
from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.codelets.copy_model import phases
from ipu_runtime.program import BRANCH, COMPUTE, EXCHANGE, REPEAT, STREAM_IN, GroupView, Program


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
        return StepCycles(kind, rates.sync_cycles, 0, cycles, 1, 1.0, 0, [total], 0.0, (float(cycles),), (0,))
    if kind >= REPEAT:
        return StepCycles(kind, 0, 0, 0, 0, 1.0, 0, [])
    if kind == COMPUTE:
        return _compute(groups, range(first, last))
    if kind == EXCHANGE:
        return _exchange(groups, range(first, last))
    return _stream(rates, [program.group(i) for i in range(first, last)], kind)


def _compute(groups: Groups, members: range) -> StepCycles:
    """Vertices of a tile run one after another; the fullest tile sets the time."""
    found = [groups.busy(i) for i in members]
    busy = np.zeros(groups.program.tile_count)
    for each in found:
        busy += each.cycles
    worst = int(busy.argmax())
    open_ = sum(float(each.unsourced[worst]) for each in found if each.unsourced is not None)
    longest = tuple(float(each.cycles.max(initial=0)) for each in found)
    return _finish(busy, [float(each.cycles[worst]) for each in found], open_, longest)


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
    parts = [groups.traffic(i) for i in members]
    found = phases(parts, groups.rates)
    weights = [float(p.arrived.sum() + 8 * p.after.sum() + 12 * p.pieces.sum()) for p in parts]
    moved = tuple(int(p.arrived.sum()) for p in parts)
    by_group = _proportions(weights, found.total)
    active = int(np.count_nonzero(found.busy))
    balance = float(found.busy.mean() / found.busy.max()) if active else 1.0
    compute, alone = found.before + found.after, tuple(by_group)
    return StepCycles(
        EXCHANGE, found.sync, compute, found.exchange, active, balance, sum(moved), by_group, 0.0, alone, moved
    )


def _stream(rates: Any, groups: list[GroupView], kind: int) -> StepCycles:
    """Host streams: external sync, then the host link's rate (hardware.md 1.6, 7) [unvalidated]."""
    sizes = [float((copy_model.elements(g) * int(g.params[1])).sum()) for g in groups]
    cycles = int(np.ceil(sum(sizes) / rates.host_bytes_per_second * rates.clock_hz))
    total = cycles + rates.host_fixed_cycles
    active = len(
        np.unique(np.concatenate([np.broadcast_to(g.col(1 if kind == STREAM_IN else 0), g.rows) for g in groups]))
    )
    by_group, moved = _proportions(sizes, total), tuple(int(s) for s in sizes)
    return StepCycles(
        kind, rates.host_fixed_cycles, 0, cycles, active, 1.0, int(sum(sizes)), by_group, 0.0, tuple(by_group), moved
    )
