"""A program's memory and cycles for people and as JSON: what `ipu-keras fit` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.fits import overflow_text
from ipu_keras.profile.memory import MemoryReport, largest_on_tile
from ipu_runtime.program import CATEGORIES, Program

__all__ = ["step_report", "text"]

GAPS = "gaps"
"""Bytes between placed variables, and below what is live when a tile is fullest."""


def step_report(executable: Any, dearest: int, samples: int | None = None) -> dict[str, Any]:
    """What a step needs and costs, as plain values.

    Args:
        executable: a compiled step; it need not fit.
        dearest: how many layers are listed.
        samples: of a step; None if not known.
    """
    profile = executable.profile()
    program, memory, target = executable.program, profile.memory, executable.program.header["target"]
    tile = memory.fullest_tile
    return {
        "name": executable.name,
        "target": target["name"],
        "fits": bool(memory.fits),
        "max_tile_bytes": int(memory.max_tile_bytes),
        "tile_limit_bytes": int(memory.limit),
        "fullest_tile": tile,
        "tiles_over": int((memory.by_tile > memory.limit).sum()),
        "tiles": len(memory.by_tile),
        "total_bytes": int(memory.total_bytes),
        "always_live_bytes": int(memory.always_live_bytes),
        "peak_bytes": int(memory.peak_bytes),
        "fullest_tile_categories": _categories(program, memory, tile),
        "largest_on_fullest_tile": [
            {"bytes": t.nbytes, "category": t.category, "layer": t.layer, "name": t.name}
            for t in largest_on_tile(program, tile)
        ],
        "cycles_per_step": int(profile.cycles),
        "startup_cycles": int(profile.startup_cycles),
        "open_loops": int(profile.open_loops),
        "seconds_per_step": float(profile.seconds),
        "batch_size": samples,
        "samples_per_second": samples / profile.seconds if samples and profile.cycles else None,
        "phases": {name: int(cycles) for name, cycles in profile.phases.items()},
        "layers": [
            {"layer": cost.layer, "cycles": round(cost.cycles), "phases": {p: round(c) for p, c in cost.phases.items()}}
            for cost in [cost for cost in profile.layers if cost.layer][:dearest]
        ],
        "problem": None if memory.fits else overflow_text(program, memory),
        "compile_seconds": float(executable.compile_seconds),
    }


def _categories(program: Program, memory: MemoryReport, tile: int) -> dict[str, int]:
    """Bytes on a tile at its fullest step, by category; with the gaps they are all that the tile needs."""
    variables, cells = program.variables, program.cells
    here = np.flatnonzero(cells[:, 0] == tile)
    mine = variables[np.repeat(np.arange(len(variables)), variables[:, 4])[here]]
    sizes, steps = cells[here, 2].astype(np.int64), len(program.steps)
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, mine[:, 1], sizes)
    np.add.at(change, np.minimum(mine[:, 2] + 1, steps), -sizes)
    fullest = int(np.cumsum(change)[:steps].argmax()) if steps else 0
    live = (mine[:, 1] <= fullest) & (fullest <= mine[:, 2])
    placed = np.bincount(mine[live, 0], sizes[live], len(CATEGORIES))
    found = {name: int(placed[i]) for i, name in enumerate(CATEGORIES) if placed[i]}
    found |= {name: int(values[tile]) for name, values in memory.fixed.items() if values[tile]}
    gaps = int(memory.by_tile[tile]) - sum(found.values())
    return {**found, GAPS: gaps} if gaps else found


def text(report: dict[str, Any]) -> list[str]:
    """The report's lines for people.

    Args:
        report: of `step_report`, with the `kind` of step.
    """
    r = report
    verdict = "fits" if r["fits"] else "DOES NOT FIT"
    over = "" if r["fits"] else f", {r['tiles_over']:,} of {r['tiles']:,} tiles overflow"
    lines = [
        f"{r['name']} {verdict} {r['target']}",
        "",
        f"Memory   fullest tile {r['fullest_tile']}: {r['max_tile_bytes']:,} of {r['tile_limit_bytes']:,} bytes "
        f"({r['max_tile_bytes'] / r['tile_limit_bytes']:.0%}){over}",
        f"         all tiles {_mib(r['total_bytes'])}; always live {_mib(r['always_live_bytes'])}, at the peak "
        f"{_mib(r['peak_bytes'])}",
        "         on the fullest tile, when it is fullest:",
        *(f"         {n:>12,}  {name}" for name, n in sorted(r["fullest_tile_categories"].items(), key=_largest)),
    ]
    if not r["fits"]:
        lines += ["", *r["problem"].splitlines()]
    rate = f", {r['samples_per_second']:,.0f} samples/s (batch {r['batch_size']})" if r["samples_per_second"] else ""
    loops = f"; {r['open_loops']} loop(s) of unknown length counted once" if r["open_loops"] else ""
    lines += [
        "",
        f"Estimate {r['cycles_per_step']:,} cycles a {r['kind']} step, {1e3 * r['seconds_per_step']:,.3f} ms"
        f"{rate}{loops}",
        "         " + ", ".join(f"{name} {cycles:,}" for name, cycles in r["phases"].items()),
    ]
    lines += [
        f"{'Layers' if i == 0 else '':8} {row['cycles']:>12,}  {row['cycles'] / max(1, r['cycles_per_step']):>4.0%}  "
        f"{row['layer']}: " + ", ".join(f"{phase} {cycles:,}" for phase, cycles in row["phases"].items())
        for i, row in enumerate(r["layers"])
    ]
    return [*lines, "", f"Compiled in {r['compile_seconds']:.1f} s; nothing was run."]


def _largest(item: tuple[str, int]) -> int:
    return -item[1]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
