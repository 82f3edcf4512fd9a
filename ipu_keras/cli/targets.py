"""`ipu-keras targets`: the chips that can be emulated."""

from __future__ import annotations

import json

from ipu_keras.target import TARGETS

__all__ = ["targets"]


def targets(as_json: bool = False) -> None:
    """Prints the targets.

    Args:
        as_json: as a JSON list of all their fields, instead of a table.
    """
    if as_json:
        print(json.dumps([target.to_dict() for target in TARGETS.values()]))
        return
    print(f"{'name':10} {'tiles':>6} {'KiB per tile':>13} {'memory, MiB':>12} {'clock, GHz':>11}")
    for name, target in TARGETS.items():
        memory = target.tiles * target.bytes_per_tile / 2**20
        kib = target.bytes_per_tile / 2**10
        print(f"{name:10} {target.tiles:6,} {kib:13,.0f} {memory:12,.0f} {target.clock_hz / 1e9:11.3f}")
