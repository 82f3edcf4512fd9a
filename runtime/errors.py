"""Exceptions of the runtime, which must not need TensorFlow or the compiler."""

from __future__ import annotations

import re
from typing import Any

from ipu_runtime.rounding import trap_names


class IPUError(Exception):
    """Base of all exceptions that the project raises on purpose."""


class ExecutableFormatError(IPUError, ValueError):
    """An executable file is truncated, altered, of another version, or describes an illegal program."""


class StrictModeError(IPUError):
    """Strict mode saw an access outside a live allocation, a damaged guard, or a read of bytes never written."""


class ProfileOnlyError(IPUError, RuntimeError):
    """A program that has a profile and no device: compiled with ``execute=False``, or too large for the chip."""


def overflow_text(header: dict[str, Any]) -> str:
    """Why no engine takes a program that was compiled although it overflows a tile.

    Args:
        header: of the program.
    """
    return (
        f"{header['name']} does not fit {header['target']['name']}: it was compiled with allow_out_of_memory, for its "
        "profile alone, and cannot run. profile().memory says which tiles overflow; make the model or the batch "
        "smaller, or choose a target with more memory."
    )


class FloatingPointTrap(IPUError, FloatingPointError):
    """A result that the program traps: not a number, an infinity from a pole, or an overflow.

    Attributes:
        traps: names of `ipu_runtime.rounding.TRAPS`.
        layer: path of the layer whose operation it was; "" for none.
        phase: of the step, such as "forward".
        op: the operation's name.
        tile: where it happened first; tiles are numbered over all IPUs of a replica.
        replica: on which replica.
    """

    def __init__(self, message: str, traps: list[str], label: str, tile: int, replica: int) -> None:
        super().__init__(message)
        self.traps, self.tile, self.replica = traps, tile, replica
        self.layer, self.phase, self.op = _parts(label)

    @classmethod
    def of(
        cls, program: Any, step: int, group: int, op: int, tile: int, replica: int, raised: int
    ) -> FloatingPointTrap:
        """The exception for what a vertex has raised.

        Args:
            program: whose.
            step: in which it ran.
            group: the vertex's group.
            op: which operation of the group's body, if it has one.
            tile: the vertex's tile.
            replica: on which it ran.
            raised: bits of `vec_fp.raised`.
        """
        header = program.header
        members = header.get("members", {}).get(str(group))
        labels = program.labels_of(step)
        number = members[op] if members and op < len(members) else labels[group - int(program.steps[step, 1])]
        label = header["labels"][number]
        layer, phase, name = _parts(label)
        names = [n for n in trap_names(raised) if n in program.header["floating_point"]["traps"]]
        what = " and ".join(_TRAPPED[n] for n in names)
        where = f"layer {layer}, {phase} pass" if layer else phase or "no layer"
        ipu, number = divmod(tile, int(program.header["target"]["tiles"]))
        on = f" of IPU {ipu}" if program.ipus > 1 else ""
        on += f" of replica {replica}" if program.replicas > 1 else ""
        name = _OWN_SCOPE.sub("", name)
        message = (
            f"{program.header['name']}: {what} in {name} ({where}) on tile {number}{on}. The states are those from "
            f"before this execution. To let it go on, switch the trap off ({', '.join(names)}); to look at the values, "
            "run ipu_keras.compare on the same inputs."
        )
        return cls(message, names, label, tile, replica)


_OWN_SCOPE = re.compile(r"IPU[A-Z]*\.\d+\.(_\d+)?/")
"""Name scopes of the front end's own in the names of operations."""


def _parts(label: str) -> tuple[str, str, str]:
    """Layer, phase and operation of a step's label."""
    layer, phase, op = (*label.split("|", 2), "", "")[:3]
    return layer, phase, op


_TRAPPED = {"inv": "a result is not a number", "div0": "a division by zero", "oflo": "an overflow"}


class LoopLimitError(IPUError):
    """A program's loops went back more often than the caller allowed."""
