"""Exceptions of the runtime, which must not need TensorFlow or the compiler."""

from __future__ import annotations

from typing import Any


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


class LoopLimitError(IPUError):
    """A program's loops went back more often than the caller allowed."""
