"""`ipu-keras targets`: the chips that can be emulated."""

from __future__ import annotations

import json

from ipu_keras.target import TARGETS

__all__ = ["targets"]

PEAKS = (("f8", "f16"), ("f16", "f16"), ("f16", "f32"), ("f32", "f32"))
"""Dtypes of operands and partial sums whose peak rates are listed."""


def targets(as_json: bool = False) -> None:
    """Prints the targets.

    Args:
        as_json: as a JSON list of all their fields, instead of a table.
    """
    if as_json:
        print(json.dumps([target.to_dict() for target in TARGETS.values()]))
        return
    header = ["name", "tiles", "KiB per tile", "memory, MiB", "clock, GHz"]
    header += ["fp8", "fp16", "fp16, fp32 sums", "fp32, TFLOP/s"]
    print("{:10} {:>6} {:>13} {:>12} {:>11} {:>6} {:>7} {:>16} {:>14}".format(*header))
    for name, target in TARGETS.items():
        memory = target.tiles * target.bytes_per_tile / 2**20
        kib = target.bytes_per_tile / 2**10
        peaks = [2 * target.tiles * target.clock_hz * target.macs_per_cycle(*kind) / 1e12 for kind in PEAKS]
        print(
            f"{name:10} {target.tiles:6,} {kib:13,.0f} {memory:12,.0f} {target.clock_hz / 1e9:11.3f} "
            f"{f'{peaks[0]:,.1f}' if peaks[0] else '-':>6} {peaks[1]:7,.1f} {peaks[2]:16,.1f} {peaks[3]:14,.1f}"
        )
