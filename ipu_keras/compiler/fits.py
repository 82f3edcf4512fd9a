"""Raises the out-of-memory error, with what a person needs to act on it."""

from __future__ import annotations

from ipu_keras.profile.memory import EXECUTABLE, MemoryReport, bytes_on_tile, largest_on_tile, memory_report
from ipu_runtime.program import Program

__all__ = ["advice", "check_memory", "overflow_text", "place"]


def check_memory(program: Program, allow_out_of_memory: bool = False, report: MemoryReport | None = None) -> None:
    """Every tile has to have room for its part of the program.

    Args:
        program: what was compiled.
        allow_out_of_memory: mark a program that overflows (``header["overflows"]``), so that no engine takes it.
        report: its memory, if it is known already.

    Raises:
        IPUOutOfMemoryError: a tile's memory is too small, and that is not allowed.
    """
    report = memory_report(program) if report is None else report
    if report.fits:
        return
    if allow_out_of_memory:
        program.header["overflows"] = True
        return
    from ipu_keras import errors

    if report.max_tile_bytes > report.limit:
        tile, have, need = report.fullest_tile, report.limit, report.max_tile_bytes
    else:
        code = report.executable
        tile, have, need = int(code.argmax()), report.executable_limit, int(code.max())
    raise errors.IPUOutOfMemoryError(overflow_text(program, report), tile=tile, have=have, need=need, report=report)


def place(program: Program, tile: int) -> str:
    """A tile in words: with its chip, where there are several.

    Args:
        program: any.
        tile: its number in the program.
    """
    per_chip = program.tile_count // program.ipus
    return f"tile {tile}" if program.ipus == 1 else f"tile {tile % per_chip} of IPU {tile // per_chip}"


def overflow_text(program: Program, report: MemoryReport) -> str:
    """What overflows, by how much, with what the fullest tile is full of, and what would help.

    Args:
        program: one that does not fit.
        report: its memory.
    """
    if report.max_tile_bytes <= report.limit:
        return too_much_code(program, report)
    tile, have, need = report.fullest_tile, report.limit, report.max_tile_bytes
    over, where = int((report.by_tile > report.limit).sum()), place(program, tile)
    lines = [
        f"{program.header['name']} does not fit {program.header['target']['name']}: {where} needs {need:,} bytes "
        f"and has {have:,} ({need - have:,} too many; {over} of {len(report.by_tile)} tiles overflow).",
        f"Largest on {where} when it is fullest:",
    ]
    for tensor in largest_on_tile(program, tile):
        layer = f" of layer {tensor.layer}" if tensor.layer else ""
        lines.append(f"  {tensor.nbytes:>10,}  {tensor.category:<14} {tensor.name}{layer}")
    fixed = {name: int(values[tile]) for name, values in report.fixed.items() if values[tile]}
    lines.append("  " + ", ".join(f"{name} {n:,}" for name, n in fixed.items()))
    lines.append(advice(program, report))
    return "\n".join(lines)


def too_much_code(program: Program, report: MemoryReport) -> str:
    """The tiles have room, but not where instructions can be fetched from (hardware.md 1.3).

    Args:
        program: one whose instructions do not fit.
        report: its memory.
    """
    code, have = report.executable, report.executable_limit
    tile, over = int(code.argmax()), int((code > have).sum())
    need = int(code[tile])
    parts = ", ".join(f"{name} {int(report.fixed[name][tile]):,}" for name in EXECUTABLE if report.fixed[name][tile])
    where = place(program, tile)
    return (
        f"The instructions of {program.header['name']} do not fit {program.header['target']['name']}: {where} "
        f"needs {need:,} executable bytes and has {have:,} ({need - have:,} too many; {over} of {len(code)} tiles "
        f"overflow).\n  {parts}\n"
        "Code grows with the program's steps and with the pieces that exchanges move: fewer or wider layers, a smaller "
        "batch, or a model divided over several programs would help."
    )


def advice(program: Program, report: MemoryReport) -> str:
    """What the fullest tile is full of, and what would help.

    Args:
        program: any.
        report: its memory.
    """
    tile = report.fullest_tile
    code = sum(int(values[tile]) for values in report.fixed.values())
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
    return f"Of {place(program, tile)}: {shares}. {help_}"
