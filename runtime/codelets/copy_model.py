"""Copies: an exchange between tiles, an arrangement on a tile, a stream to or from the host.

Cycles of exchanges are counted per superstep (`ipu_keras.profile.cycles`), since sends and receipts of all of a
step's copies run together; here are the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_runtime.codelets.copy_rules import crossings, tally
from ipu_runtime.codelets.model import Ints, Operand, product
from ipu_runtime.program import GroupView


def elements(g: GroupView) -> Ints:
    """Elements of each copy."""
    nd = int(g.params[0])
    return product([g.col(4 + 3 * d) for d in range(nd)], g.rows)


def runs(g: GroupView) -> Ints:
    """Contiguous pieces of each copy, on both sides: what the exchange sends as one fragment."""
    nd = int(g.params[0])
    if nd == 0:
        return np.ones(g.rows, np.int64)
    inner = (g.columns[3 * nd + 2] == 1) & (g.columns[3 * nd + 3] == 1)
    outer = product([g.col(4 + 3 * d) for d in range(nd - 1)], g.rows)
    return np.where(inner, outer, outer * g.col(1 + 3 * nd))


class Crossing(NamedTuple):
    """How each copy crosses the exchange.

    Attributes:
        fragments: runs that are received one by one; 0 for a copy inside a tile.
        before: bytes that the sender puts in order first, in a buffer of its own.
        after: bytes that the receiver puts in order when all have come, out of a buffer of its own.
        local: bytes that are put in order inside a tile.
    """

    fragments: Ints
    before: Ints
    after: Ints
    local: Ints


MAX_DIMS = 8
"""Of a copy: what `run_copy` in copy.pyx has room for."""

FRAGMENT_BYTES = 12
"""Exchange code of a received fragment: three instructions. Source: hardware.md 5.1."""


SEND_BYTES = 4
"""Exchange code of a send, of at most 64 words: one instruction. Source: hardware.md 5.1."""


def rearrange_cycles(nbytes: Any, itemsize: int) -> Any:
    """Cycles to put bytes in another order. Source: hardware.md 3.8, bytes x 5/4 / min(8, element size)."""
    return nbytes * 5 / 4 / min(8, itemsize)


def crossing(
    far: NDArray[np.bool_], counts: list[Ints], dst_strides: list[Ints], src_strides: list[Ints], itemsize: int,
    price: float,
) -> Crossing:  # fmt: skip
    """Decide how copies cross: as they lie, or as fewer runs that one side rearranges, or both.

    Args:
        far: which copies go from one tile to another.
        counts: elements along each dimension, the innermost last.
        dst_strides, src_strides: steps along each dimension, in elements.
        itemsize: bytes of an element.
        price: cycles that a received fragment may cost before a rearrangement is cheaper (`Target.fragment_price`).
    """
    return Crossing(*crossings(far, counts, dst_strides, src_strides, itemsize, price, rearrange_cycles(1, itemsize)))


def crossing_of(g: GroupView, price: float) -> Crossing:
    """The same for a group of a program."""
    nd = int(g.params[0])
    far = np.broadcast_to(g.col(0) != g.col(1), g.rows)
    sides = [[g.col(4 + side + 3 * d) for d in range(nd)] for side in range(3)]
    return crossing(far, sides[0], sides[1], sides[2], int(g.params[1]), price)


class Traffic(NamedTuple):
    """What copies do to each tile; arrays by tile.

    Attributes:
        received: bytes that arrive; what both tiles of a pair listen to counts by half for each. Tiles 2 i and 2 i + 1
            are a pair: their numbers are ours, the chip pairs tile and tile XOR 2 (hardware.md 1.4).
        arrived: all bytes that arrive.
        pieces: fragments that arrive.
        sent: bytes that leave; the same bytes to many tiles leave once (hardware.md 1.4).
        instructions: send instructions, each of at most 64 words (hardware.md 1.4).
        before: cycles to put in order what leaves.
        after: cycles to put in order what came, and of copies inside the tile.
    """

    received: NDArray[Any]
    arrived: NDArray[Any]
    pieces: NDArray[Any]
    sent: NDArray[Any]
    instructions: NDArray[Any]
    before: NDArray[Any]
    after: NDArray[Any]


def traffic(
    src: Ints, dst: Ints, origin: Ints, shape: Sequence[Ints], nbytes: Ints, how: Crossing, itemsize: int, tiles: int,
    memcpy: int,
) -> Traffic:  # fmt: skip
    """Add up copies by tile.

    Args:
        src, dst: tiles.
        origin: place of the source's first byte on its tile.
        shape: strides on the source's side and all counts but the outermost; with the origin they say which stream of
            bytes is meant.
        nbytes: bytes.
        how: how they cross.
        itemsize: bytes of an element.
        tiles: tiles of the chip.
        memcpy: bytes that a tile copies in a cycle.
    """
    rate = rearrange_cycles(1, itemsize)
    return Traffic(*tally(src, dst, origin, [*shape], nbytes, *how, rate, tiles, memcpy))


def exchange_code(part: Traffic) -> NDArray[Any]:
    """Bytes of exchange code on each tile."""
    return FRAGMENT_BYTES * part.pieces + SEND_BYTES * part.instructions


class Phases(NamedTuple):
    """Cycles of an exchange: its sync, the exchange itself, what is put in order before and after; each tile's own.

    Of the exchange, `fixed` cycles are the same for all tiles and not in `busy`.
    """

    sync: int
    exchange: int
    before: int
    after: int
    busy: NDArray[Any]
    fixed: int = 0

    @property
    def total(self) -> int:
        """All of them, one after another."""
        return self.sync + self.exchange + self.before + self.after


def phases(parts: Sequence[Traffic], rates: Any) -> Phases:
    """Cycles of one exchange of some groups of copies.

    Send and receive run together. Only the exchange itself needs all tiles to be ready: what a tile puts in order
    before and after it goes on without a sync (docs/calibration.md, row 6).
    """
    received, pieces, sent, before, after = (
        np.sum([getattr(part, name) for part in parts], 0) for name in ("received", "pieces", "sent", "before", "after")
    )
    wire = np.maximum(received, sent) / rates.exchange_bytes_per_cycle + rates.fragment_cycles * pieces
    top = int(np.ceil(wire.max(initial=0)))
    return Phases(
        rates.sync_cycles if top else 0,
        top + rates.exchange_fixed_cycles if top else 0,
        int(np.ceil(before.max(initial=0))),
        int(np.ceil(after.max(initial=0))),
        wire + before + after,
        rates.exchange_fixed_cycles if top else 0,
    )


def traffic_of(g: GroupView, tiles: int, rates: Any) -> Traffic:
    """The same for a group of a program."""
    size = int(g.params[1])
    nd = int(g.params[0])
    shape = [g.col(6 + 3 * d) for d in range(nd)] + [g.col(4 + 3 * d) for d in range(1, nd)]
    return traffic(
        np.broadcast_to(g.col(0), g.rows), np.broadcast_to(g.col(1), g.rows), np.broadcast_to(g.col(2), g.rows) * size,
        shape, elements(g) * size, crossing_of(g, rates.fragment_price), size, tiles, int(rates.memcpy_bytes_per_cycle),
    )  # fmt: skip


class Copy:
    """Rows of strided copies."""

    name = "copy"
    source = "poplibs memcpy rate; poplin/ConvModel.cpp for rearrangements"
    code_bytes = 0

    def span(self, g: GroupView, side: int) -> Operand:
        """Bytes between the first and the last element touched; side 0: source, 1: destination."""
        nd, size = int(g.params[0]), int(g.params[1])
        low = np.zeros(g.rows, np.int64) + g.col(2 + side)
        high = low.copy()
        for d in range(nd):
            reach = (g.col(4 + 3 * d) - 1) * g.col(6 + 3 * d - side)
            low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
        return Operand(low * size, (high - low + 1) * size, "w" if side else "r")

    def operands(self, g: GroupView) -> list[Operand]:
        """Spans on the source and on the destination tile."""
        return [self.span(g, 0), self.span(g, 1)]

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """On-tile copy at the memcpy rate. Source: hardware.md 3.8, 8 B a cycle a tile."""
        return -(-elements(g) * int(g.params[1]) // target.memcpy_bytes_per_cycle)

    def state_bytes(self, g: GroupView) -> Ints:
        """Copies have no vertex."""
        return np.zeros(g.rows, np.int64)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        return 15.0 * g.rows + 0.2 * float(elements(g).sum()) + 2.0 * float(runs(g).sum())
