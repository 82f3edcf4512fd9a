"""Raises the out-of-memory error, with what a person needs to act on it."""

from __future__ import annotations

from ipu_keras.profile.memory import bytes_on_tile, largest_on_tile, memory_report
from ipu_runtime.program import Program


def check_memory(program: Program) -> None:
    """Raise IPUOutOfMemoryError unless every tile has room for its part of the program."""
    report = memory_report(program)
    if report.fits:
        return
    from ipu_keras import errors

    tile, have, need = report.fullest_tile, report.limit, report.max_tile_bytes
    over = int((report.by_tile > report.limit).sum())
    lines = [
        f"{program.header['name']} does not fit {program.header['target']['name']}: tile {tile} needs {need:,} bytes "
        f"and has {have:,} ({need - have:,} too many; {over} of {len(report.by_tile)} tiles overflow).",
        f"Largest on tile {tile} when it is fullest:",
    ]
    for tensor in largest_on_tile(program, tile):
        layer = f" of layer {tensor.layer}" if tensor.layer else ""
        lines.append(f"  {tensor.nbytes:>10,}  {tensor.category:<14} {tensor.name}{layer}")
    fixed = {name: int(values[tile]) for name, values in report.fixed.items() if values[tile]}
    lines.append("  " + ", ".join(f"{name} {n:,}" for name, n in fixed.items()))
    lines.append(_advice(program, tile, sum(fixed.values())))
    raise errors.IPUOutOfMemoryError("\n".join(lines), tile=tile, have=have, need=need, report=report)


def _advice(program: Program, tile: int, code: int) -> str:
    """What the fullest tile is full of, and what would help."""
    always, temporary = bytes_on_tile(program, tile)
    whole = max(1, always + temporary + code)
    shares = f"always live {always / whole:.0%}, temporary {temporary / whole:.0%}, code {code / whole:.0%}"
    if code >= max(always, temporary):
        help_ = (
            "Most of it is code, which grows with the pieces that exchanges move: fewer or wider layers, a smaller "
            "batch, or a target with more memory would help."
        )
    elif always >= temporary:
        help_ = (
            "Most of it lives always (weights and optimizer state): an optimizer with less state, fewer or smaller "
            "layers, frozen ones, or a target with more memory would help."
        )
    else:
        help_ = (
            "Most of it is temporary: a smaller batch, a smaller available_memory_proportion, or a target with more "
            "memory would help."
        )
    return f"Of tile {tile}: {shares}. {help_}"
