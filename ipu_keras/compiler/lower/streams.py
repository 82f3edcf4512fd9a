"""Copies between a whole row-major array on the host and the tiles of a layout."""

from __future__ import annotations

from typing import Any

from ipu_keras.compiler.layout import whole
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var
from ipu_keras.compiler.move import Rows, plan_move
from ipu_runtime.codelets import registry


def from_host(rows: Rows, var: Var, itemsize: int, slot: int) -> RawGroup:
    """Copies from a host slot to a variable.

    Args:
        rows: see `host_rows`.
        var: where to.
        itemsize: bytes of an element.
        slot: number of the host array.
    """
    columns: list[Any] = [rows.src_tile * 0, rows.dst_tile, rows.src_off]
    columns.append(Offset(var, rows.dst_tile, rows.dst_off * itemsize, itemsize))
    for n, d, s in zip(rows.counts, rows.dst_strides, rows.src_strides, strict=True):
        columns += [n, d, s]
    return RawGroup(registry.COPY, len(rows), [len(rows.counts), itemsize, slot], columns)


def to_host(here: Located, itemsize: int, slot: int) -> RawGroup:
    """Copies from a value to a host slot.

    Args:
        here: the value.
        itemsize: bytes of an element.
        slot: number of the host array.
    """
    rows = plan_move(whole(here.layout.view), here.layout)
    columns: list[Any] = [rows.src_tile, rows.dst_tile * 0]
    columns += [Offset(here.var, rows.src_tile, rows.src_off * itemsize, itemsize), rows.dst_off]
    for n, d, s in zip(rows.counts, rows.dst_strides, rows.src_strides, strict=True):
        columns += [n, d, s]
    return RawGroup(registry.COPY, len(rows), [len(rows.counts), itemsize, slot], columns)
