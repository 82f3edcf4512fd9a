"""Copies: an exchange between tiles, an arrangement on a tile, a stream to or from the host.

Cycles of exchanges are counted per superstep (`ipu_keras.profile.cycles`), since sends and receipts of all of a
step's copies run together; here are the sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


def sends(g: GroupView) -> tuple[Ints, Ints]:
    """Source tiles and bytes of what leaves: the same bytes to many tiles leave once (hardware.md 1.4)."""
    size = int(g.params[1])
    nbytes = elements(g) * size
    src = np.broadcast_to(g.col(0), g.rows)
    far = src != g.col(1)
    origin = src[far] * (1 << 32) + np.broadcast_to(g.col(2), g.rows)[far] * size
    first, which = np.unique(origin, return_inverse=True)
    most = np.zeros(len(first), np.int64)
    np.maximum.at(most, which, nbytes[far])
    return first >> 32, most


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


FRAGMENT_PRICE = 6
"""What a received fragment may cost before a rearrangement is cheaper: its 3 control cycles, and as much again for its
12 bytes of code, which are there always [unvalidated]."""


def rearrange_cycles(nbytes: Any, itemsize: int) -> Any:
    """Cycles to put bytes in another order. Source: hardware.md 3.8, bytes x 5/4 / min(8, element size)."""
    return nbytes * 5 / 4 / min(8, itemsize)


def _side_runs(counts: list[Ints], strides: list[Ints], rows: int) -> Ints:
    """Contiguous pieces of each copy on one of its sides, whatever the order of its dimensions."""
    if not counts:
        return np.ones(rows, np.int64)
    n = np.stack([np.broadcast_to(c, rows) for c in counts])
    step = np.stack([np.broadcast_to(np.abs(s), rows) for s in strides])
    order = np.argsort(np.where(n == 1, 0, step), 0, kind="stable")
    n, step = np.take_along_axis(n, order, 0), np.take_along_axis(step, order, 0)
    run, whole = np.ones(rows, np.int64), np.ones(rows, bool)
    for count, stride in zip(n, step, strict=True):
        whole &= (stride == run) | (count == 1)
        run = np.where(whole, run * count, run)
    return np.asarray(product(list(n), rows) // np.maximum(run, 1))


def crossing(
    far: NDArray[np.bool_], counts: list[Ints], dst_strides: list[Ints], src_strides: list[Ints], itemsize: int
) -> Crossing:
    """Decide how copies cross: as they lie, or as fewer runs that one side rearranges, or both.

    Args:
        far: which copies go from one tile to another.
        counts: elements along each dimension, the innermost last.
        dst_strides, src_strides: steps along each dimension, in elements.
        itemsize: bytes of an element.
    """
    rows = len(far)
    nbytes = product(counts, rows) * itemsize
    outer = product(counts[:-1], rows)
    if counts:
        inner = (dst_strides[-1] == 1) & (src_strides[-1] == 1)
        direct = np.where(inner, outer, outer * counts[-1])
    else:
        direct = outer
    out, into = _side_runs(counts, src_strides, rows), _side_runs(counts, dst_strides, rows)
    # Words are the unit of the wire: a fragment is a run of at least one word.
    words = -(-nbytes // 4)
    direct, fewer = np.minimum(direct, words), np.minimum(np.minimum(out, into), words)
    # Three ways: as they lie; as the side with fewer runs has them, put in order on the other; as one run, put in
    # order on both.
    order = rearrange_cycles(nbytes, itemsize)
    prices = np.stack([FRAGMENT_PRICE * direct, FRAGMENT_PRICE * fewer + order, FRAGMENT_PRICE + 2 * order])
    way = np.where(far, prices.argmin(0), -1)
    zero = np.zeros(rows, np.int64)
    pieces = np.where(way == 0, direct, np.where(way == 1, fewer, np.minimum(words, 1)))
    return Crossing(
        np.where(far, pieces, zero),
        np.where((way == 2) | ((way == 1) & (into < out)), nbytes, zero),
        np.where((way == 2) | ((way == 1) & (into >= out)), nbytes, zero),
        np.where(~far & (direct > 1), nbytes, zero),
    )


def crossing_of(g: GroupView) -> Crossing:
    """The same for a group of a program."""
    nd = int(g.params[0])
    far = np.broadcast_to(g.col(0) != g.col(1), g.rows)
    sides = [[g.col(4 + side + 3 * d) for d in range(nd)] for side in range(3)]
    return crossing(far, sides[0], sides[1], sides[2], int(g.params[1]))


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
