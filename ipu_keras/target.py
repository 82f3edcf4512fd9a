"""The chips: what the compiler plans for, the memory check holds against and the cycle model times."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

from ipu_keras.errors import ConfigError, UnknownTargetError

_MAY_BE_NONE = ("fp8_in_fp16_out_conv_units",)
"""Fields that may be 0."""


@dataclass(frozen=True)
class Target:
    """An IPU.

    Attributes:
        name: of the target in reports.
        tiles: tiles of the chip.
        bytes_per_tile: SRAM of a tile.
        executable_bytes: part of a tile's SRAM that instructions can be fetched from (hardware.md 1.3; GC2: no source,
            all of it).
        workers: worker threads of a tile.
        clock_hz: tile clock.
        fp16_in_fp16_out_conv_units, fp16_in_fp32_out_conv_units, fp32_in_fp32_out_conv_units: convolution units of a
            tile's AMP by dtypes of inputs and partial sums (hardware.md 1.1).
        fp8_in_fp16_out_conv_units: the same for 8-bit floats, "quarters"; 0: the chip has none.
        weight_load_bytes_per_cycle: loads of AMP weights (16 with 128-bit loads from interleaved memory).
        exchange_bytes_per_cycle: what a tile sends, and at the same time receives, in a cycle.
        memcpy_bytes_per_cycle: on-tile copy of all workers.
        sync_cycles: internal sync of all tiles before an exchange (fitted: docs/calibration.md, row 6).
        exchange_fixed_cycles: pipeline fill of an exchange phase [unvalidated, hardware.md 1.4].
        fragment_cycles: control issue slots for each received fragment (hardware.md 1.4).
        fragment_price: cycles that a received fragment may cost before its data is put in order by a vertex instead:
            its control slots, and a price for its code, which is always there [unvalidated]. The compiler's choice.
        host_bytes_per_second: streams between host and chip (docs/calibration.md, row 13: 5.5 GB/s a machine of four).
        host_fixed_cycles: external sync before a host stream or an exchange between chips (hardware.md 1.5).
        link_bytes_per_second: IPU-Links of a chip to its neighbours, one direction [unvalidated, hardware.md 7].
        streaming_bytes_per_second: streaming memory to a chip [unvalidated, hardware.md 1.6].

    Source: hardware.md sections 1 and 7.

    Example:
        >>> Target(name="small", tiles=64).tiles
        64
    """

    name: str = "custom"
    tiles: int = 1472
    bytes_per_tile: int = 638_976
    executable_bytes: int = 212_992
    workers: int = 6
    clock_hz: float = 1.325e9
    fp16_in_fp16_out_conv_units: int = 16
    fp16_in_fp32_out_conv_units: int = 8
    fp32_in_fp32_out_conv_units: int = 16
    fp8_in_fp16_out_conv_units: int = 0
    weight_load_bytes_per_cycle: int = 8
    exchange_bytes_per_cycle: int = 4
    memcpy_bytes_per_cycle: int = 8
    sync_cycles: int = 117
    exchange_fixed_cycles: int = 30
    fragment_cycles: int = 3
    fragment_price: float = 12.0
    host_bytes_per_second: float = 1.4e9
    host_fixed_cycles: int = 600
    link_bytes_per_second: float = 32e9
    streaming_bytes_per_second: float = 10e9

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            none = field.name in _MAY_BE_NONE and value == 0
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 or none):
                raise ConfigError(f"Target.{field.name} must be a positive number, not {value!r}")
            if field.type == "int" and int(value) != value:
                raise ConfigError(f"Target.{field.name} must be a whole number, not {value!r}")

    def macs_per_cycle(self, dtype: str, partials: str = "f32") -> int:
        """Multiply-accumulates of a tile's AMP in a cycle; 1 for dtypes that it does not take.

        Args:
            dtype: of the operands, such as ``"f16"``; ``"f8"`` for quarters.
            partials: dtype of the partial sums.

        Source: hardware.md 1.1: 8 a unit for fp8, 4 for fp16, 1 for fp32 (a block of 8 x 16 in 8 cycles).
        """
        if dtype == "f8":
            return 8 * self.fp8_in_fp16_out_conv_units
        if dtype == "f16":
            half = partials == "f16"
            return 4 * (self.fp16_in_fp16_out_conv_units if half else self.fp16_in_fp32_out_conv_units)
        return self.fp32_in_fp32_out_conv_units if dtype == "f32" else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for the executable's header."""
        return dataclasses.asdict(self)


TARGETS: dict[str, Target] = {
    "gc200": Target("gc200"),
    "bow": Target("bow", clock_hz=1.85e9),
    "c600": Target("c600", clock_hz=1.5e9, fp8_in_fp16_out_conv_units=16),
    # GC2 has 8 units for each kind of input (hardware.md 1.1), and a host link of its own (7: 15 GB/s a chip).
    "gc2": Target(
        "gc2",
        tiles=1216,
        bytes_per_tile=262_144,
        executable_bytes=262_144,
        clock_hz=1.6e9,
        fp16_in_fp16_out_conv_units=8,
        fp32_in_fp32_out_conv_units=8,
        host_bytes_per_second=15e9,
        host_fixed_cycles=500,
        link_bytes_per_second=58.4e9,
    ),
}

VERSIONS = {"ipu1": "gc2", "ipu2": "gc200", "ipu21": "c600"}
"""Names of chips as `IPUConfig.device_connection.version` and `ipu_model.version` give them (api.md 2)."""


def resolve(target: str | Target) -> Target:
    """A target by name, or the target itself.

    Raises:
        UnknownTargetError: no target has this name; the message offers the nearest.
    """
    if isinstance(target, Target):
        return target
    name = str(target).lower()
    found = TARGETS.get(VERSIONS.get(name, name))
    if found is None:
        near = difflib.get_close_matches(name, [*TARGETS, *VERSIONS], n=1, cutoff=0.3)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownTargetError(f"no target is called {target!r}; there are {', '.join(TARGETS)}.{hint}")
    return found
