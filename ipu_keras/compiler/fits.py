"""Raises the out-of-memory error, with what a person needs to act on it."""

from __future__ import annotations

from ipu_keras.profile.memory import largest_on_tile, memory_report
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
        f"Largest on tile {tile}:",
    ]
    for tensor in largest_on_tile(program, tile):
        layer = f" of layer {tensor.layer}" if tensor.layer else ""
        lines.append(f"  {tensor.nbytes:>10,}  {tensor.category:<14} {tensor.name}{layer}")
    fixed = {name: int(values[tile]) for name, values in report.fixed.items() if values[tile]}
    lines.append("  " + ", ".join(f"{name} {n:,}" for name, n in fixed.items()))
    always = report.always_live_bytes / max(1, report.peak_bytes)
    if always > 0.6:
        lines.append(
            f"{always:.0%} of the peak lives always (weights and optimizer state): an optimizer with less state, fewer "
            "or smaller layers, or a target with more memory would help."
        )
    else:
        lines.append(
            "Most of the peak is temporary: a smaller batch, a smaller available_memory_proportion, or a target with "
            "more memory would help."
        )
    raise errors.IPUOutOfMemoryError("\n".join(lines), tile=tile, have=have, need=need, report=report)
