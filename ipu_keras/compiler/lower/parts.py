"""What lowering writes, before anything has an address: tile variables, groups of vertices or copies, steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout, whole
from ipu_keras.compiler.move import Rows, plan_move
from ipu_keras.graph.ir import DTYPES
from ipu_runtime.codelets import registry

ALIGN = 8
"""Allocations start and end on 64-bit words: the widest load of the tile's vector path (hardware.md 1.2)."""


class Var:
    """A tile variable: for each tile that has a part of it, the part's bytes.

    Attributes:
        chip: whose tiles.
        pinned: it lives always.
        carried: it lives from one turn of the loop over slots to the next.
        lives: of a function's variable, which lives anew in each call: first step, last step and label of each, once
            all steps are in order. None: it lives once, from `first` to `last`.
    """

    __slots__ = (
        "carried",
        "category",
        "chip",
        "first",
        "index",
        "label",
        "last",
        "lives",
        "offsets",
        "pinned",
        "sizes",
        "tiles",
    )

    def __init__(
        self, tiles: Ints, sizes: Ints, category: str, label: int, pinned: bool = False, chip: int = 0
    ) -> None:
        self.tiles, self.sizes, self.category, self.label, self.pinned = tiles, sizes, category, label, pinned
        self.chip, self.carried = chip, False
        self.index = -1
        self.offsets: Ints | None = None  # by tile number, after allocation
        self.first, self.last = -1, -1
        self.lives: list[tuple[int, int, int]] | None = None


class Offset(NamedTuple):
    """A column of offsets into a variable, known after allocation: (address on `tiles` + delta bytes) / unit."""

    var: Var
    tiles: Ints
    delta: Ints | int = 0
    unit: int = 1


@dataclass
class RawGroup:
    """A group before allocation: columns are arrays or Offsets; `members` are labels of a map's operations."""

    codelet: int
    rows: int
    params: list[Any]
    columns: list[Any]
    rounding: int = 0
    members: list[int] | None = None


class Mark:
    """A place in the program, known by its number once all steps are in order."""

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = -1


@dataclass(eq=False)
class RawStep:
    """A superstep's part before merging, or a control step.

    Attributes:
        mark: of a label, or of a step that the program needs the number of.
        loop: of a loop's first step: the mark of its end, and how often it runs (None: not known).
        choice: of the label between a conditional's two sides: the mark of the end.
        call: the number of the call of a function that it belongs to.
        shared: a function's own step: other steps may have its groups, and it is joined with none.
    """

    kind: int
    groups: list[RawGroup]
    reads: list[Var]
    writes: list[Var]
    label: int
    mark: Mark | None = None
    loop: tuple[Mark, int | None] | None = None
    choice: Mark | None = None
    call: int = 0
    shared: bool = False


class Located(NamedTuple):
    """Where a value lies."""

    var: Var
    layout: Layout


def copy_group(rows: Rows, src: Var, dst: Var, itemsize: int) -> RawGroup:
    """The rows of an exchange as a group."""
    columns: list[Any] = [
        rows.src_tile,
        rows.dst_tile,
        Offset(src, rows.src_tile, rows.src_off * itemsize, itemsize),
        Offset(dst, rows.dst_tile, rows.dst_off * itemsize, itemsize),
    ]
    for n, d, s in zip(rows.counts, rows.dst_strides, rows.src_strides, strict=True):
        columns += [n, d, s]
    return RawGroup(registry.COPY, len(rows), [len(rows.counts), itemsize, 0], columns)


def host_rows(layout: Layout) -> Rows:
    """Copies between a whole row-major array on the host (the source) and the tiles of `layout`."""
    return plan_move(layout, whole(layout.view))


def payload(value: Any, dtype: str) -> int:
    """The bits of a scalar as a signed 64-bit parameter."""
    raw = np.asarray(value, DTYPES[dtype]).tobytes().ljust(8, b"\0")
    return int(np.frombuffer(raw, np.int64)[0])
