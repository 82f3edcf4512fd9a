"""Where every byte goes: lifetimes over the supersteps, a place on each tile, and the check against the chip.

Variables that live always (weights, states, constants) come first, then the others from the largest down, each at the
lowest place that is free during its life, or during all of them: a function's variables live in each of its calls.
Tiles whose variables have equal sizes and lives share one placement.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ipu_keras.compiler._place import first_fit
from ipu_keras.compiler.layout import Ints
from ipu_keras.compiler.lower.parts import RawStep, Var
from ipu_runtime.program import BRANCH, FOR, REPEAT


@dataclass
class Placement:
    """Result of placing: variables have their `offsets` by tile; `ends` is what each tile needs for them."""

    vars: list[Var]
    ends: Ints


def loops_of(sequence: list[list[RawStep]]) -> tuple[list[tuple[int, int, int | None]], list[list[int]]]:
    """Loops and conditionals of a program in order.

    Returns:
        (first step, last step, how often it runs or None) of each loop, the loop over an execution's iterations first;
        [branch, label between the sides, end] of each conditional.
    """
    repeat = next(i for i, parts in enumerate(sequence) if parts[0].kind == REPEAT)
    loops: list[tuple[int, int, int | None]] = [(repeat, len(sequence) - 1, None)]
    choices = []
    for i, parts in enumerate(sequence):
        if parts[0].loop is not None:
            end, trips = parts[0].loop
            loops.append((i, end.step, trips))
        if parts[0].choice is not None:
            branch = next(
                k for k in range(i) if sequence[k][0].kind == BRANCH and sequence[k][0].groups[0].params[0].step == i
            )
            choices.append([branch, i, parts[0].choice.step])
    return loops, choices


def lifetimes(sequence: list[list[RawStep]], loops: list[tuple[int, int]], vars_: list[Var]) -> list[Var]:
    """Set each variable's first and last live step, and its lives; returns those that are used.

    Args:
        sequence: all steps.
        loops: first and last step of each loop: what is made before a loop and used in it lives to its end.
        vars_: all variables.
    """
    for var in vars_:
        var.first = var.last = -1
    calls: dict[Var, dict[int, tuple[int, int, int]]] = {}
    for number, step in enumerate(sequence):
        for part in step:
            for var in [*part.reads, *part.writes]:
                if var.first < 0:
                    var.first = number
                var.last = number
                if var.lives is not None:
                    of_call = calls.setdefault(var, {})
                    first, _, label = of_call.get(part.call, (number, number, part.label))
                    of_call[part.call] = first, number, label
    for var, of_call in calls.items():
        var.lives = sorted(of_call.values())
    used = []
    slots = [(i, step[0].loop) for i, step in enumerate(sequence) if step[0].kind == FOR]
    turning = next(((i, loop[0].step) for i, loop in slots if loop is not None), (0, 0))
    inner_first = sorted(loops, key=lambda loop: loop[1] - loop[0])
    for var in vars_:
        if var.pinned:
            var.first, var.last = 0, len(sequence) - 1
        elif var.carried and var.first >= 0:
            low, high = turning
            var.first, var.last = min(low, var.first), max(high, var.last)
        elif var.first >= 0:
            for low, high in inner_first:
                if var.first < low <= var.last <= high:
                    var.last = high
        if var.pinned or var.first >= 0:
            used.append(var)
    return used


def place(used: list[Var], tiles: int, guard: int, ipus: int = 1) -> Placement:
    """Give each variable an offset on each of its tiles.

    Args:
        used: variables with their lifetimes.
        tiles: tiles of all chips.
        guard: bytes between allocations (strict mode).
        ipus: chips.
    """
    order = sorted(used, key=lambda v: (not v.pinned, -int(v.sizes.max(initial=0)), v.first))
    counts = [len(v.tiles) for v in order]
    owner = np.repeat(np.arange(len(order), dtype=np.int32), counts)
    per_chip = tiles // ipus
    all_tiles = np.concatenate([v.tiles + v.chip * per_chip for v in order]) if order else np.zeros(0, np.int64)
    all_sizes = np.concatenate([v.sizes for v in order]) if order else np.zeros(0, np.int64)
    by_tile = np.argsort(all_tiles, kind="stable")
    edges = np.searchsorted(all_tiles[by_tile], np.arange(tiles + 1))
    lives = [v.lives or [(v.first, v.last, v.label)] for v in order]
    lives_of = np.array([len(each) for each in lives], np.int64)
    ends_of = np.cumsum(lives_of)
    first = np.array([life[0] for each in lives for life in each], np.int32)
    last = np.array([life[1] for each in lives for life in each], np.int32)
    offsets = np.zeros(len(owner), np.int64)
    ends = np.zeros(tiles, np.int64)
    # Tiles with variables of equal sizes and lives are alike: one of each kind is placed, on all cores. A large
    # program's tiles are hardly ever alike, so what they hold is not kept to compare them: a digest is.
    kinds: dict[bytes, list[Ints]] = {}
    for tile in np.flatnonzero(np.diff(edges)):
        at = by_tile[edges[tile] : edges[tile + 1]]
        held = hashlib.blake2b(owner[at].tobytes(), digest_size=16)
        held.update(all_sizes[at].tobytes())
        kinds.setdefault(held.digest(), []).append(at)

    def one(alike: list[Ints]) -> tuple[Ints, int]:
        owners, sizes = owner[alike[0]], all_sizes[alike[0]]
        many = lives_of[owners]
        ends = np.cumsum(many)
        at = np.repeat(ends_of[owners] - ends, many) + np.arange(many.sum())
        found: tuple[Ints, int] = first_fit(sizes, ends, first[at], last[at], guard)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for alike, (found, end) in zip(kinds.values(), pool.map(one, kinds.values()), strict=True):
            for at in alike:
                offsets[at] = found
                ends[all_tiles[at[0]]] = end
    start = 0
    for var, n in zip(order, counts, strict=True):
        var.offsets = np.zeros(per_chip, np.int64)
        var.offsets[var.tiles] = offsets[start : start + n]
        start += n
    return Placement(order, ends)
