"""How the blocks of a sparse matrix are divided over the tiles, by the cycle model.

Blocks are cut, in their order, into buckets; the dense operands' rows into parts. A tile has one bucket and one part:
blocks stay where they are for the product, its transpose and the gradient of the blocks. Of the dense operands a tile
gets the slots that its blocks name (all of them where the pattern is known at run time only).

Buckets are cut evenly by blocks or, so that no column's sum is on several tiles, between block columns. As poplibs'
StaticMatMulPartitioner does, each candidate is priced by its fullest tile: exchange, vertex, sums, in all the passes
that the program has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.compiler.layout import Ints, even
from ipu_keras.compiler.plan.reduction import reduce_cost
from ipu_keras.compiler.plan.splits import split_counts
from ipu_keras.target import Target
from ipu_runtime.codelets.reduce_model import reduce_add_cycles
from ipu_runtime.codelets.sparse_model import MODES, sparse_cycles

BUCKETS, PARTS = 24, 16
"""Numbers of buckets and of parts that are tried at most."""

MOST_COPIES = 1_000_000
"""Copies of an exchange that are planned at most."""


class Problem(NamedTuple):
    """A sparse product.

    Attributes:
        dtype, partials: of the operands and of the sums.
        block: edge of a block.
        n: rows of the dense operands.
        shape: block rows and block columns of the matrix.
        blocks: how many there are.
        passes: the modes that the program has of it.
    """

    dtype: str
    partials: str
    block: int
    n: int
    shape: tuple[int, int]
    blocks: int
    passes: tuple[str, ...]


@dataclass(frozen=True)
class SparsePlan:
    """A division, and what the planner expects of it, over all passes.

    Attributes:
        wanted: what `Buckets` is asked for.
        buckets: runs of blocks.
        whole: whether buckets end between block columns.
        parts: of the dense operands' rows.
        exchange, vertex, reduce: cycles.
        tile_bytes: of the fullest tile.
        fits: whether these are within availableMemoryProportion.
    """

    wanted: int
    buckets: int
    whole: bool
    parts: int
    exchange: int
    vertex: int
    reduce: int
    tile_bytes: int
    fits: bool

    @property
    def cycles(self) -> int:
        """All of it."""
        return self.exchange + self.vertex + self.reduce

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for the executable's header."""
        return {
            "parts": {"blocks": self.buckets, "outer": self.parts}, "method": "sparse", "exchange": self.exchange,
            "vertex": self.vertex, "reduce": self.reduce, "tile_bytes": self.tile_bytes, "fits": self.fits,
        }  # fmt: skip


class Side(NamedTuple):
    """The slots of one dense operand on the tiles of each bucket.

    Attributes:
        bucket, block: of each slot, in order: whose it is, and which block row or column lies in it.
        first: of each bucket, its first slot; one more at the end.
        local: for each block of the matrix its slot's number in its bucket.
    """

    bucket: Ints
    block: Ints
    first: Ints
    local: Ints

    @property
    def counts(self) -> Ints:
        """Slots of each bucket."""
        return np.diff(self.first)


class Buckets:
    """A static pattern cut into buckets.

    Args:
        pattern: [count, 2], block row and block column of each block.
        shape: block rows and block columns.
        wanted: buckets.
        whole: whether they end between block columns; the blocks must then be in the order of these.
    """

    def __init__(self, pattern: Ints, shape: tuple[int, int], wanted: int, whole: bool) -> None:
        count = len(pattern)
        self.pattern, self.shape = pattern, shape
        self.columns: Ints | None = None
        if whole:
            before = np.searchsorted(pattern[:, 1], np.arange(shape[1] + 1))
            goal = np.arange(1, wanted) * count // wanted
            cuts = np.unique(np.clip(np.searchsorted(before, goal), 1, shape[1] - 1)) if shape[1] > 1 else goal[:0]
            self.columns = np.concatenate([[0], cuts, [shape[1]]]).astype(np.int64)
            self.starts, self.stops = before[self.columns[:-1]], before[self.columns[1:]]
        else:
            self.starts, self.stops = even(count, wanted)
        self.number = len(self.starts)
        self.of_block = np.repeat(np.arange(self.number), self.stops - self.starts)

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """Of X, which the block rows name, and of Y, which the block columns name."""
        return self._side(0), self._side(1)

    def _side(self, which: int) -> Side:
        names, size = self.pattern[:, which].astype(np.int64), self.shape[which]
        if which and self.columns is not None:
            # All columns of the bucket: one without blocks has a slot of zeros.
            block = np.arange(size)
            bucket = np.searchsorted(self.columns, block, "right") - 1
            return Side(bucket, block, self.columns, names - self.columns[self.of_block])
        slots, place = np.unique(self.of_block * size + names, return_inverse=True)
        bucket, block = np.divmod(slots, size)
        first = np.searchsorted(bucket, np.arange(self.number + 1))
        return Side(bucket, block, first, place.reshape(-1) - first[self.of_block])


def owners(blocks: int, parts: int, target: Target) -> tuple[Ints, Ints]:
    """Runs of block rows or columns whose slots lie on one tile between products, for so many parts of the rows."""
    return even(blocks, max(1, target.tiles // parts))


def runs(side: Side, owner: Ints) -> Ints:
    """The slots at which runs begin that are contiguous on their bucket's and on their owner's tile.

    Args:
        side: the slots.
        owner: of each block row or column.
    """
    begins = np.ones(len(side.block), bool)
    begins[1:] = (np.diff(side.block) != 1) | (np.diff(side.bucket) != 0) | (np.diff(owner[side.block]) != 0)
    return np.flatnonzero(begins)


def owner_of(starts: Ints, blocks: int) -> Ints:
    """The owner of each block row or column."""
    found: Ints = np.searchsorted(starts, np.arange(blocks), "right") - 1
    return found


def _pass(mode: str, p: Problem, cut: Buckets, parts: int, target: Target) -> tuple[float, float, float, int]:
    """(exchange, vertex, reduce) cycles and bytes of the fullest tile of one pass of a static pattern."""
    size, partial = (2 if p.dtype == "f16" else 4), (2 if p.partials == "f16" else 4)
    n, area = -(-p.n // parts), p.block * p.block
    slot = n * p.block
    blocks = cut.stops - cut.starts
    reads = [i for i in (0, 1) if MODES[1 - i] != mode]  # forward does not read Y, nor transposed X
    sync = target.sync_cycles + target.exchange_fixed_cycles
    exchange, memory = float(sync), blocks * (area * size + 4)
    for which in reads:
        side = cut.sides[which]
        owner = owner_of(owners(cut.shape[which], parts, target)[0], cut.shape[which])
        begins = np.bincount(side.bucket[runs(side, owner)], minlength=cut.number)
        came = side.counts * slot * size
        exchange += float((came / target.exchange_bytes_per_cycle + target.fragment_cycles * begins).max())
        memory = memory + came
    if parts > 1 and mode != "sampled":
        exchange += float(blocks.max()) * area * size / target.exchange_bytes_per_cycle * (1 - 1 / parts)
    counts = cut.sides[0].counts, cut.sides[1].counts
    vertex = float(sparse_cycles(mode, True, p.dtype, p.partials, p.block, blocks, n, counts, target).max())
    if mode == "sampled":
        least = np.array([int(blocks.max()) * area])
        reduce = float(reduce_cost(np.array([parts]), least, partial, target).cycles[0])
        return exchange, vertex, reduce, int((memory + blocks * area * partial).max())
    which = MODES.index(mode) ^ 1
    side = cut.sides[which]
    memory = memory + side.counts * slot * partial
    if which and cut.columns is not None:
        return exchange, vertex, 0.0, int(memory.max())
    starts, _ = owners(cut.shape[which], parts, target)
    depth = np.bincount(side.block, minlength=cut.shape[which])
    came = np.add.reduceat(depth, starts)
    each = np.add.reduceat(reduce_add_cycles(depth, np.array(slot), partial, target.workers), starts)
    reduce = float((came * (slot * partial / target.exchange_bytes_per_cycle + target.fragment_cycles) + each).max())
    return exchange, vertex, reduce + sync, int(max(memory.max(), came.max() * slot * partial))


def _thin(counts: Ints, most: int) -> list[int]:
    at = np.unique(np.linspace(0, len(counts) - 1, most).astype(int))
    return [int(c) for c in counts[at]]


def static_plans(p: Problem, pattern: Ints, target: Target, proportion: float, most: int = 4) -> list[SparsePlan]:
    """The cheapest divisions of a static pattern, best first.

    Args:
        p: the product.
        pattern: [count, 2].
        target: the chip.
        proportion: availableMemoryProportion; if nothing fits it, the divisions that need the least memory.
        most: how many.
    """
    sorted_ = bool((np.diff(pattern[:, 1]) >= 0).all())
    found: list[SparsePlan] = []
    for whole in (True, False) if sorted_ else (False,):
        limit = min(target.tiles, p.shape[1] if whole else p.blocks)
        tried = set()
        for wanted in _thin(split_counts(limit, limit, 1, BUCKETS), BUCKETS):
            cut = Buckets(pattern, p.shape, wanted, whole)
            if cut.number in tried:
                continue
            tried.add(cut.number)
            for parts in _thin(split_counts(p.n, max(1, target.tiles // cut.number), 1, PARTS), PARTS):
                if parts > 1 and max(len(s.block) for s in cut.sides) * parts > MOST_COPIES:
                    continue
                costs = [_pass(mode, p, cut, parts, target) for mode in p.passes]
                exchange, vertex, reduce, memory = zip(*costs, strict=True)
                fits = max(memory) <= proportion * target.bytes_per_tile
                sums = round(sum(exchange)), round(sum(vertex)), round(sum(reduce))
                found.append(SparsePlan(wanted, cut.number, whole, parts, *sums, max(memory), fits))
    return _best(found, most)


def dynamic_plans(p: Problem, target: Target, proportion: float, most: int = 4) -> list[SparsePlan]:
    """The same for a pattern that is known at run time only: every bucket may name every slot."""
    size, partial = (2 if p.dtype == "f16" else 4), (2 if p.partials == "f16" else 4)
    area, sync = p.block * p.block, target.sync_cycles + target.exchange_fixed_cycles
    rate = target.exchange_bytes_per_cycle
    found = []
    limit = min(target.tiles, p.blocks)
    for buckets in _thin(split_counts(limit, limit, 1, BUCKETS), BUCKETS):
        for parts in _thin(split_counts(p.n, max(1, target.tiles // buckets), 1, PARTS), PARTS):
            n, mine = -(-p.n // parts), -(-p.blocks // buckets)
            sides = [count * n * p.block for count in p.shape]
            exchange = vertex = reduce = 0.0
            memory = 0
            for mode in p.passes:
                moved = {"forward": sides[0], "transposed": sides[1], "sampled": sum(sides)}[mode] * size
                out = {"forward": sides[1], "transposed": sides[0], "sampled": mine * area}[mode]
                moved += mine * (8 + (0 if mode == "sampled" else area * size))
                exchange += moved / rate + sync
                slots = np.array(p.shape[0]), np.array(p.shape[1])
                vertex += float(sparse_cycles(mode, False, p.dtype, p.partials, p.block, mine, n, slots, target).max())
                depth = np.array([parts if mode == "sampled" else buckets])
                reduce += float(reduce_cost(depth, np.array([out]), partial, target).cycles[0])
                memory = max(memory, moved + 2 * out * partial)
            fits = memory <= proportion * target.bytes_per_tile
            found.append(
                SparsePlan(buckets, buckets, False, parts, round(exchange), round(vertex), round(reduce), memory, fits)
            )
    return _best(found, most)


def _best(found: list[SparsePlan], most: int) -> list[SparsePlan]:
    fitting = sorted((p for p in found if p.fits), key=lambda p: p.cycles)
    return (fitting or sorted(found, key=lambda p: p.tile_bytes))[:most]
