"""Says in words how each product of a program was planned: the split, what it costs, and what the next best would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS = {
    "groups": "groups", "batch": "batch", "outer": "rows", "inner": "columns", "oc": "output channels",
    "ic": "input channels", "taps": "taps", "blocks": "non-zero blocks",
}  # fmt: skip


def explain_plans(header: Mapping[str, Any], layer: str | None = None) -> str:
    """One paragraph for each plan, with the products that use it.

    Args:
        header: of a program.
        layer: only products of layers whose path holds this.

    Example:
        >>> print(exe.explain_plans("dense"))  # doctest: +SKIP
        dot of dense (forward): amp, rows / 8, output channels / 2, on 16 tiles
          412 cycles: exchange 147 + vertex 265 + adding up 0; 3,072 bytes of a tile
          next best, 9 % dearer: rows / 4, output channels / 4 (exchange -31, vertex +68)
    """
    users: dict[int, list[str]] = {}
    for label, number in header.get("products", []):
        path, phase, _ = [*header["labels"][label].split("|", 2), "", ""][:3]
        if layer is None or layer in path:
            users.setdefault(number, []).append(f"{path or 'no layer'} ({phase})")
    lines = []
    for number, names in sorted(users.items()):
        entry = header["plans"][number]
        best, *others = entry["plans"]
        shown = list(dict.fromkeys(names))
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        lines.append(f"{entry['op']} of {', '.join(shown[:3])}{more}: {_split(best)}{_serially(entry)}")
        lines.append(
            f"  {_cycles(best):,} cycles: exchange {best['exchange']:,} + vertex {best['vertex']:,} + adding up "
            f"{best['reduce']:,}; {best['tile_bytes']:,} bytes of a tile"
            + ("" if best["fits"] else " (more than availableMemoryProportion: the least there is)")
        )
        lines += [f"  {_compared(other, best)}" for other in others[:1]]
    return "\n".join(lines)


def _serially(entry: Mapping[str, Any]) -> str:
    return f", in {entry['serial']} serial pieces of these cycles each" if "serial" in entry else ""


def _cycles(plan: Mapping[str, Any]) -> int:
    return int(plan["exchange"] + plan["vertex"] + plan["reduce"])


def _split(plan: Mapping[str, Any]) -> str:
    cuts = [f"{_PARTS[name]} / {count}" for name, count in plan["parts"].items() if count > 1]
    tiles = 1
    for count in plan["parts"].values():
        tiles *= count
    return f"{plan['method']}, {', '.join(cuts) or 'not cut'}, on {tiles:,} tile{'s' if tiles > 1 else ''}"


def _compared(other: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """What another plan would cost, term by term."""
    names = {"exchange": "exchange", "vertex": "vertex", "reduce": "adding up"}
    terms = [f"{names[k]} {other[k] - best[k]:+,}" for k in names if other[k] != best[k]]
    dearer = _cycles(other) / max(1, _cycles(best)) - 1
    why = "dearer" if dearer >= 0.0005 else "in cycles, but with more exchange code or memory"
    return f"next best, {abs(dearer):.1%} {why}: {_split(other)} ({', '.join(terms) or 'the same cycles'})"
