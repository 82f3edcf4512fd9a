"""The chips: what the compiler plans for, the memory check holds against and the cycle model times."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

from ipu_keras.errors import ConfigError, UnknownTargetError


@dataclass(frozen=True)
class Target:
    """An IPU.

    Attributes:
        name: of the target in reports.
        tiles: tiles of the chip.
        bytes_per_tile: SRAM of a tile.
        workers: worker threads of a tile.
        clock_hz: tile clock.
        exchange_bytes_per_cycle: what a tile sends, and at the same time receives, in a cycle.
        memcpy_bytes_per_cycle: on-tile copy of all workers.
        weight_load_bytes_per_cycle: loads of AMP weights (16 with 128-bit loads).
        sync_cycles: internal sync of all tiles [unvalidated, hardware.md 1.5].
        exchange_fixed_cycles: pipeline fill of an exchange phase [unvalidated, hardware.md 1.4].
        fragment_cycles: control issue slots for each received fragment (hardware.md 1.4).
        host_bytes_per_second: streams between host and chip [unvalidated, hardware.md 7].
        host_fixed_cycles: external sync before a host stream (hardware.md 1.5).

    Source: hardware.md sections 1 and 7.

    Example:
        >>> Target(name="small", tiles=64).tiles
        64
    """

    name: str = "custom"
    tiles: int = 1472
    bytes_per_tile: int = 638_976
    workers: int = 6
    clock_hz: float = 1.325e9
    exchange_bytes_per_cycle: int = 4
    memcpy_bytes_per_cycle: int = 8
    weight_load_bytes_per_cycle: int = 8
    sync_cycles: int = 100
    exchange_fixed_cycles: int = 30
    fragment_cycles: int = 3
    host_bytes_per_second: float = 2.5e9
    host_fixed_cycles: int = 600

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"Target.{field.name} must be a positive number, not {value!r}")
            if field.type == "int" and int(value) != value:
                raise ConfigError(f"Target.{field.name} must be a whole number, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for the executable's header."""
        return dataclasses.asdict(self)


# Host bandwidth: 10 GB/s a machine of four chips, 15 GB/s a chip on GC2 (hardware.md 7).
TARGETS: dict[str, Target] = {
    "gc200": Target("gc200"),
    "bow": Target("bow", clock_hz=1.85e9),
    "c600": Target("c600", clock_hz=1.5e9),
    "gc2": Target(
        "gc2", tiles=1216, bytes_per_tile=262_144, clock_hz=1.6e9, host_bytes_per_second=15e9, host_fixed_cycles=500
    ),
}


def resolve(target: str | Target) -> Target:
    """A target by name, or the target itself.

    Raises:
        UnknownTargetError: no target has this name; the message offers the nearest.
    """
    if isinstance(target, Target):
        return target
    found = TARGETS.get(str(target).lower())
    if found is None:
        near = difflib.get_close_matches(str(target).lower(), TARGETS, n=1, cutoff=0.3)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownTargetError(f"no target is called {target!r}; there are {', '.join(TARGETS)}.{hint}")
    return found
