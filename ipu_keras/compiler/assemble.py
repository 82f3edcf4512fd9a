"""Turns placed supersteps into a Program: offsets filled in, tables laid end to end, code and state bytes counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler._columns import packed, packed_offsets
from ipu_keras.compiler.lower.parts import Mark, Offset, RawGroup, RawStep, Var
from ipu_keras.errors import PlanError, UnsupportedError
from ipu_runtime.codelets import registry
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.program import CATEGORIES, KIND_NAMES, Program
from ipu_runtime.validate.codelets import check_shape


class Assembler:
    """Collects groups and steps into the program's arrays.

    Args:
        tiles: tiles of a chip: those of chip c have the numbers from c x tiles on.
    """

    def __init__(self, tiles: int) -> None:
        self.tiles = tiles
        self.steps: list[tuple[int, int, int, int]] = []
        self.groups: list[tuple[int, ...]] = []
        self.members: dict[str, list[int]] = {}
        self.params: list[int] = []
        self.columns: list[tuple[int, int]] = []
        self.data: list[np.ndarray] = []
        self.length = 0
        self.shared: dict[bytes, tuple[int, int]] = {}
        self.functions: dict[int, tuple[int, int]] = {}
        self.group_labels: list[int] = []

    def group(self, raw: RawGroup) -> tuple[int, int]:
        """Add a group; returns its number and the next: twice the same where an array has no elements to move."""
        if not raw.rows:
            return len(self.groups), len(self.groups)
        first_param, first_column = len(self.params), len(self.columns)
        self.params += [p.step if isinstance(p, Mark) else p for p in raw.params]
        for column in self._numbered(raw):
            self.columns.append(self._column(column))
        counts = (first_param, len(raw.params), first_column, len(raw.columns))
        if raw.members is not None:
            self.members[str(len(self.groups))] = raw.members
        self.groups.append((raw.codelet, raw.rows, *counts, raw.rounding))
        return len(self.groups) - 1, len(self.groups)

    def _numbered(self, raw: RawGroup) -> list[Any]:
        """The group's columns, its tiles numbered over all chips: each operand says on which chip it is."""
        columns = list(raw.columns)
        for at, column in enumerate(columns):
            if isinstance(column, Offset) and column.var.chip:
                # A copy has its source in columns 0 and 2 and its destination in 1 and 3; a vertex has one tile.
                side = at - 2 if raw.codelet == registry.COPY else 0
                columns[side] = np.asarray(raw.columns[side]) + column.var.chip * self.tiles
        return columns

    def _column(self, column: Any) -> tuple[int, int]:
        if isinstance(column, Offset):
            assert column.var.offsets is not None
            delta = np.atleast_1d(np.asarray(column.delta, np.int64))
            values = packed_offsets(column.var.offsets, column.tiles, delta, column.unit)
        else:
            values = packed(np.asarray(column, np.int64))
        if values is None:
            raise PlanError("an offset or stride that 31 bits cannot hold: an array of more than 2^31 elements")
        key = values.tobytes()
        if key not in self.shared:
            self.shared[key] = (self.length, len(values))
            self.data.append(np.frombuffer(key, np.int32))
            self.length += len(values)
        return self.shared[key]

    def step(self, parts: list[RawStep]) -> None:
        """Add a superstep with its groups; one of a function has those of the first call."""
        one = parts[0]
        found = self.functions.get(id(one.groups)) if one.shared else None
        if found is None:
            first = len(self.groups)
            for part in parts:
                for raw in part.groups:
                    begin, end = self.group(raw)
                    self.group_labels += [part.label] * (end - begin)
            found = first, len(self.groups)
        if one.shared:
            self.functions[id(one.groups)] = found
        self.steps.append((one.kind, *found, one.label))

    def program(self, header: dict[str, Any], blob: np.ndarray, placed: list[Var]) -> Program:
        """The finished program; `header["used_bytes"]` is set."""
        variables: list[tuple[int, ...]] = []
        # Millions in a large program.
        cells = np.empty((sum(len(var.tiles) * len(var.lives or [0]) for var in placed), 3), np.int32)
        at = used = 0
        for var in placed:
            assert var.offsets is not None
            n, offsets = len(var.tiles), var.offsets[var.tiles]
            used = max(used, int((offsets + var.sizes).max(initial=0)))
            own = cells[at : at + n]
            own[:, 0], own[:, 1], own[:, 2] = var.tiles + var.chip * self.tiles, offsets, var.sizes
            for first, last, label in var.lives or [(var.first, var.last, var.label)]:
                variables.append((CATEGORIES.index(var.category), first, last, at, n, label))
                cells[at : at + n] = own
                at += n
        header["used_bytes"] = used
        program = Program(
            header,
            np.array(self.steps, np.int32).reshape(-1, 4),
            np.array(self.groups, np.int64).reshape(-1, 7),
            np.array(self.params, np.int64),
            np.array(self.columns, np.int64).reshape(-1, 2),
            np.concatenate(self.data) if self.data else np.zeros(0, np.int32),
            blob,
            np.array(variables, np.int32).reshape(-1, 6),
            cells,
        )
        self._check(program)
        return program

    def _check(self, program: Program) -> None:
        """Kernels keep a vertex's dimensions in arrays of fixed length: what has more is refused here, by name."""
        items = []
        for kind, first, last, label in program.steps.tolist():
            for index in range(first, last):
                try:
                    check_shape(program, index)
                except ExecutableFormatError as error:
                    what = registry.MODELS[program.group(index).codelet].name
                    items.append(f"{what} ({error}) in step {program.header['labels'][label]!r}, {KIND_NAMES[kind]}")
        if items:
            raise UnsupportedError(
                "operations that no vertex takes, most likely of more than 8 dimensions that cannot be joined: "
                + "; ".join(items),
                items,
            )
