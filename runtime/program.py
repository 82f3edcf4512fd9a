"""A program for the tiles, as plain arrays: what is executed, what is timed and what is checked for memory.

    steps   [n, 4]   kind, first group, one past the last group, label
    groups  [n, 7]   codelet, rows, first parameter, parameters, first column, columns, rounding of fp16 results
    params  [n]      int64 parameters of all groups
    columns [n, 2]   first value in `data`, number of values (1: the same for all rows, or the rows)
    data    [n]      int32
    blob    [n]      bytes of constants
    variables [n, 6] category, first live step, last live step, first cell, cells, label
    cells   [n, 3]   tile, offset, bytes: where a variable lies on each tile that has it

A step is one superstep or a control step. A group is all vertices of one codelet in a superstep, one row each, or a
set of copies. A step may have the groups of an earlier one: both are calls of a function, which is there once; its
variables have a row and cells for each call. `header` holds what is not an array: target, feeds, outputs, states,
labels. `found` is no part of the program: what was worked out about it and is worth keeping, by name, such as its
memory report.

A program may be for several chips (`header["ipus"]`): tile t of chip c has the number c x tiles + t. Each of its
replicas (`header["replicas"]`) runs it on chips of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

(
    COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT, REPEAT, END, LABEL, BRANCH, JUMP, FOR, NEXT, WINDOW, COLLECTIVE
) = range(13)  # fmt: skip
"""Kinds of step: vertices; copies between and on tiles; host to tiles; tiles to host; the two ends of the loop over an
execution's iterations; a place to go to; go to a label where a tile's flag is 0; go to a label; the two ends of the
loop over an iteration's micro-batches or slots; go to a label where no micro-batch is due; all replicas' values
combined."""

KIND_NAMES = (
    "compute", "exchange", "stream in", "stream out", "repeat", "end", "label", "branch", "jump", "for", "next",
    "window", "collective",
)  # fmt: skip

TIMED = (COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT, COLLECTIVE)
"""Kinds of step that do something on tiles; all others only say which step is next."""

CATEGORIES = (
    "variable",
    "constant",
    "activation",
    "rearrangement",
    "hostMessage",
    "vertexCode",
    "vertexInstanceState",
    "controlCode",
    "internalExchangeCode",
    "hostExchangeCode",
    "stack",
)
"""What occupies a tile's memory; names as in the profile format of the Poplar tools (hardware.md 5.1)."""


@dataclass
class GroupView:
    """One group of a program: its parameters and columns, for models and checks."""

    codelet: int
    rows: int
    params: NDArray[np.int64]
    columns: list[NDArray[np.int32]]

    def col(self, index: int) -> NDArray[np.int64]:
        """Column `index` as int64, one value or one for each row."""
        return self.columns[index].astype(np.int64)

    @property
    def tiles(self) -> NDArray[np.int64]:
        """The tile of each row (of a copy: the receiving tile)."""
        return np.broadcast_to(self.col(0), self.rows)


@dataclass
class Program:
    """See the module's text for the arrays."""

    header: dict[str, Any]
    steps: NDArray[np.int32]
    groups: NDArray[np.int64]
    params: NDArray[np.int64]
    columns: NDArray[np.int64]
    data: NDArray[np.int32]
    blob: NDArray[np.uint8]
    variables: NDArray[np.int32]
    cells: NDArray[np.int32]
    found: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _views: dict[int, GroupView] = field(default_factory=dict, init=False, repr=False)

    ARRAYS: ClassVar[dict[str, tuple[type, int]]] = {
        "steps": (np.int32, 4),
        "groups": (np.int64, 7),
        "params": (np.int64, 0),
        "columns": (np.int64, 2),
        "data": (np.int32, 0),
        "blob": (np.uint8, 0),
        "variables": (np.int32, 6),
        "cells": (np.int32, 3),
    }

    def group(self, index: int) -> GroupView:
        """One group, unpacked."""
        view = self._views.get(index)
        if view is None:
            codelet, rows, p0, pn, c0, cn, _ = (int(v) for v in self.groups[index])
            columns = [self.data[a : a + n] for a, n in self.columns[c0 : c0 + cn].tolist()]
            view = self._views[index] = GroupView(codelet, rows, self.params[p0 : p0 + pn], columns)
        return view

    @property
    def again(self) -> NDArray[np.bool_]:
        """Which steps have the groups of an earlier step."""
        before = np.maximum.accumulate(np.append(0, self.steps[:, 2]))[:-1]
        found: NDArray[np.bool_] = (self.steps[:, 1] < before) & (self.steps[:, 1] < self.steps[:, 2])
        return found

    def labels_of(self, step: int) -> list[int]:
        """The label of each of a step's groups: one that has those of an earlier step gives them its own."""
        _, first, last, label = self.steps[step].tolist()
        if step in self._called:
            return [label] * (last - first)
        labels: list[int] = self.header["group_labels"][first:last]
        return labels

    @cached_property
    def _called(self) -> frozenset[int]:
        return frozenset(np.flatnonzero(self.again).tolist())

    @property
    def ipus(self) -> int:
        """Chips of one replica."""
        return int(self.header.get("ipus", 1))

    @property
    def replicas(self) -> int:
        """How many times the program runs at once, each on chips of its own."""
        return int(self.header.get("replicas", 1))

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one iteration, that is of one weight update."""
        return int(self.header.get("micro_batches", 1))

    @property
    def tile_count(self) -> int:
        """Tiles of all chips of one replica."""
        return int(self.header["target"]["tiles"]) * self.ipus
