"""Cycles of a program's steps, from the program's own tables: the one that runs is the one that is timed.

Rules (hardware.md section 2): a compute set's time is the fullest tile's sum over its vertices; an exchange's is the
largest of bytes in and bytes out of any tile at 4 B a cycle, with three control slots for each received fragment; data
sent to many tiles is sent once; every superstep is preceded by a sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.program import BRANCH, COMPUTE, EXCHANGE, REPEAT, STREAM_IN, Program

Ints = NDArray[np.int64]


class StepCycles(NamedTuple):
    """One superstep.

    Attributes:
        kind: as in `ipu_runtime.program`.
        sync, compute, exchange: cycles of each phase; host streams count as exchange.
        active_tiles: tiles with work.
        balance: mean over the chip's tiles of their busy cycles, divided by the largest.
        bytes_moved: bytes received by tiles, or by the host.
        by_group: cycles of each group, in proportion to what it adds to the fullest tile.
    """

    kind: int
    sync: int
    compute: int
    exchange: int
    active_tiles: int
    balance: float
    bytes_moved: int
    by_group: list[float]

    @property
    def total(self) -> int:
        """All phases one after another."""
        return self.sync + self.compute + self.exchange


@dataclass(frozen=True)
class _Rates:
    """The target's numbers, by attribute for the codelets' models."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


def step_cycles(program: Program) -> list[StepCycles]:
    """Cycles of each step of one iteration, in order; control steps cost their sync."""
    rates = _Rates(program.header["target"])
    return [_one(program, rates, kind, first, last) for kind, first, last, _ in program.steps.tolist()]


def _one(program: Program, rates: _Rates, kind: int, first: int, last: int) -> StepCycles:
    if kind == BRANCH:
        g = program.group(first)
        cycles = int(registry.MODELS[g.codelet].cycles(g, rates)[0])
        return StepCycles(kind, 2 * rates.sync_cycles, 0, cycles, 1, 1.0, 0, [float(cycles + 2 * rates.sync_cycles)])
    if kind >= REPEAT:
        return StepCycles(kind, 0, 0, 0, 0, 1.0, 0, [])
    groups = [program.group(i) for i in range(first, last)]
    tiles = program.tile_count
    if kind == COMPUTE:
        shares = []
        busy = np.zeros(tiles)
        for g in groups:
            mine = np.bincount(g.tiles, np.broadcast_to(registry.MODELS[g.codelet].cycles(g, rates), g.rows), tiles)
            busy += mine
            shares.append(mine)
        return _finish(kind, rates, busy, shares, 0)
    if kind == EXCHANGE:
        return _exchange(rates, groups, tiles)
    return _stream(rates, groups, kind)


def _finish(kind: int, rates: _Rates, busy: NDArray[Any], shares: list[NDArray[Any]], moved: int) -> StepCycles:
    worst = int(busy.argmax())
    top = int(busy[worst])
    by_group = _proportions([float(s[worst]) for s in shares], top + rates.sync_cycles)
    balance = float(busy.mean() / busy[worst]) if top else 1.0
    return StepCycles(kind, rates.sync_cycles, top, 0, int(np.count_nonzero(busy)), balance, moved, by_group)


def _proportions(shares: list[float], total: float) -> list[float]:
    whole = sum(shares)
    return [total * s / whole if whole else total / len(shares) for s in shares]


def _exchange(rates: _Rates, groups: list[Any], tiles: int) -> StepCycles:
    """Send and receive run together; copies inside a tile and rearrangements are vertices before and after."""
    received, sent, pieces, before, after = (np.zeros(tiles) for _ in range(5))
    weights = []
    for g in groups:
        size = int(g.params[1])
        nbytes = copy_model.elements(g) * size
        how = copy_model.crossing_of(g)
        src, dst = np.broadcast_to(g.col(0), g.rows), np.broadcast_to(g.col(1), g.rows)
        far = src != dst
        received += np.bincount(dst, np.where(far, nbytes, 0), tiles)
        pieces += np.bincount(dst, how.fragments, tiles)
        sent += np.bincount(*copy_model.sends(g), tiles)
        # hardware.md 3.8: an on-tile copy of one run at 8 B a cycle.
        plain = np.where(far | (how.local > 0), 0, nbytes / rates.memcpy_bytes_per_cycle)
        after += np.bincount(dst, plain + copy_model.rearrange_cycles(how.after + how.local, size), tiles)
        before += np.bincount(src, copy_model.rearrange_cycles(how.before, size), tiles)
        weights.append(float(nbytes.sum() + 12 * how.fragments.sum()))
    wire = np.maximum(received, sent) / rates.exchange_bytes_per_cycle + rates.fragment_cycles * pieces
    top = int(np.ceil(wire.max(initial=0)))
    exchange = top + rates.exchange_fixed_cycles if top else 0
    vertices = [int(np.ceil(v.max(initial=0))) for v in (before, after)]
    compute = sum(vertices)
    syncs = rates.sync_cycles * sum(1 for phase in (exchange, *vertices) if phase)
    busy = wire + before + after
    total = syncs + exchange + compute
    return StepCycles(
        EXCHANGE,
        syncs,
        compute,
        exchange,
        int(np.count_nonzero(busy)),
        float(busy.mean() / busy.max()) if busy.max(initial=0) else 1.0,
        int(received.sum()),
        _proportions(weights, total),
    )


def _stream(rates: _Rates, groups: list[Any], kind: int) -> StepCycles:
    """Host streams: external sync, then the host link's rate (hardware.md 1.6, 7) [unvalidated]."""
    sizes = [float((copy_model.elements(g) * int(g.params[1])).sum()) for g in groups]
    cycles = int(np.ceil(sum(sizes) / rates.host_bytes_per_second * rates.clock_hz))
    total = cycles + rates.host_fixed_cycles
    active = len(
        np.unique(np.concatenate([np.broadcast_to(g.col(1 if kind == STREAM_IN else 0), g.rows) for g in groups]))
    )
    return StepCycles(
        kind, rates.host_fixed_cycles, 0, cycles, active, 1.0, int(sum(sizes)), _proportions(sizes, total)
    )
