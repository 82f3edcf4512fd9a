"""The table of a model's layer calls and their stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipu_keras.keras.pipeline import adapter
from ipu_keras.keras.pipeline.calls import layer_of

__all__ = ["print_summary"]


def print_summary(
    model: Any, assignments: list[Any], line_length: int | None, print_fn: Callable[[str], Any] | None
) -> None:
    """Prints the table, and one for each nested model below its row.

    Args:
        model: the root model.
        assignments: its assignments.
        line_length: characters of a line, None for the default of the kind of model.
        print_fn: is given each line, None for `print`.
    """
    sequential = adapter.kind_of(model) == "sequential"
    width = line_length or (60 if sequential else 89)
    show = print_fn or print
    _table("Model", model, assignments, width, show)


def _table(head: str, model: Any, assignments: list[Any], width: int, show: Callable[[str], Any]) -> None:
    if adapter.kind_of(model) == "sequential":
        ends = [int(width * share) for share in (0.5, 1.0)]
        columns = ["Layer (type)", "Pipeline Stage"]
    else:
        ends = [int(width * share) for share in (0.4, 0.8, 1.0)]
        columns = ["Layer (type) (node index)", "Input Layers", "Pipeline Stage"]
    show(f'{head}: "{model.name}"')
    show("_" * width)
    show(_row(columns, ends))
    show("=" * width)
    for place, made in enumerate(assignments):
        for line in _cells(made, len(columns)):
            show(_row(line, ends))
        if made.is_nested_model:
            show("_" * width)
            _table("Nested Model", made.nested_model, made._assignments, width, show)
        if place < len(assignments) - 1:
            show("_" * width)
    show("=" * width)


def _cells(made: Any, columns: int) -> list[list[str]]:
    layer = layer_of(made)
    stage = "" if made.is_nested_model else str(made.pipeline_stage)
    name = f"{layer.name} ({type(layer).__name__})"
    if columns == 2:
        return [[name, stage]]
    inputs = [inbound.name for inbound in made.inbound_layers] or [""]
    first = [f"{name} ({made.node_index})", inputs[0], stage]
    return [first, *(["", other, ""] for other in inputs[1:])]


def _row(cells: list[str], ends: list[int]) -> str:
    """Cells are cut where the next column begins, with a blank between."""
    line = ""
    for cell, end in zip(cells, ends):
        if line:
            line = line[:-1] + " "
        line = (line + cell)[:end].ljust(end)
    return line
