"""How a program rounds fp16 results and what it traps: the names of it, in a program's header, and the kernels' bits.

header["floating_point"] = {"overflow": one of OVERFLOW, "traps": some of TRAPS}; left out where it is the default.
A group's last column in `Program.groups` is one of NEAREST, STOCHASTIC and COMMON.
"""

from __future__ import annotations

from collections.abc import Iterable

NEAREST, STOCHASTIC, COMMON = range(3)
"""To nearest even; at random, each replica by random bits of its own; at random, by the same bits on all replicas."""

OVERFLOW = {"inf": 0, "clip": 2, "nan": 4}
"""What a finite result beyond the largest fp16 number becomes: infinity (IEEE 754, XLA), that number (the chip), not a
number (the chip with `nanoo`)."""

TRAPS = {"inv": 8, "div0": 16, "oflo": 32}
"""Exceptions that stop an execution: a result that is not a number, an infinity from a pole, an overflow."""


def mode_bits(stochastic: bool, overflow: str, traps: Iterable[str]) -> int:
    """The bits of `vec_fp.mode` (kernels/vec.h).

    Args:
        stochastic: whether results are rounded at random.
        overflow: of OVERFLOW.
        traps: of TRAPS.
    """
    return int(bool(stochastic)) | OVERFLOW[overflow] | sum(TRAPS[t] for t in traps)


def trap_names(raised: int) -> list[str]:
    """The traps whose bits are set.

    Args:
        raised: `vec_fp.raised`.
    """
    return [name for name, bit in TRAPS.items() if raised & bit]
