"""Every exception that ipu_keras raises on purpose; all derive from :class:`IPUError`.

The module imports neither TensorFlow nor the compiler, so that the command line can use it at once.
`IPUOutOfMemoryError` is made a `tf.errors.ResourceExhaustedError` when TensorFlow is there (see `out_of_memory`).
"""

from __future__ import annotations

import sys
from typing import Any

from ipu_runtime.errors import ExecutableFormatError, FloatingPointTrap, IPUError, ProfileOnlyError, StrictModeError

__all__ = [
    "IPUError",
    "ExecutableFormatError",
    "StrictModeError",
    "FloatingPointTrap",
    "ProfileOnlyError",
    "UnsupportedError",
    "UnknownTargetError",
    "ConfigError",
    "DataError",
    "GraphError",
    "PlanError",
    "IPUOutOfMemoryError",  # noqa: F822  the module's __getattr__ makes it
]


class UnsupportedError(IPUError, NotImplementedError):
    """The module holds operations or dtypes that the emulator cannot run yet.

    Attributes:
        items: one string for each unsupported thing, with the layer and the HLO instruction it comes from.
    """

    def __init__(self, message: str, items: list[str] | None = None) -> None:
        super().__init__(message)
        self.items = items or []


class UnknownTargetError(IPUError, ValueError):
    """A target or configuration name that does not exist; the message offers the nearest one."""


class ConfigError(IPUError, ValueError):
    """An option with a value it cannot take."""


class DataError(IPUError, ValueError):
    """Data that a static program cannot take: a partial batch, an unknown shape, a string tensor."""


class GraphError(IPUError):
    """A graph whose nodes do not fit each other: a malformed module, or a bug of the compiler."""


class PlanError(IPUError, MemoryError):
    """A plan whose tables would be too large for the host; the message names the layer and the operation."""


class _OutOfMemory(IPUError):
    """A tile's memory is too small for the program.

    Attributes:
        tile: the fullest tile.
        have: bytes that the tile has.
        need: bytes that the program needs on it.
        report: the memory report of the whole program.
    """

    def __init__(self, message: str, tile: int = 0, have: int = 0, need: int = 0, report: Any = None) -> None:
        super().__init__(None, None, message)
        self.tile, self.have, self.need, self.report = tile, have, need, report
        self._text = message

    def __str__(self) -> str:
        return self._text


_classes: dict[str, type] = {}


def _out_of_memory_class() -> type:
    """`IPUOutOfMemoryError`, made once; a `tf.errors.ResourceExhaustedError` as soon as TensorFlow is imported."""
    key = "tf" if "tensorflow" in sys.modules else "plain"
    if "tf" in _classes:
        return _classes["tf"]
    if key not in _classes:
        if key == "tf":
            import tensorflow as tf

            bases: tuple[type, ...] = (_OutOfMemory, tf.errors.ResourceExhaustedError)
            if "plain" in _classes:
                bases = (_classes["plain"], tf.errors.ResourceExhaustedError)
        else:
            bases = (_OutOfMemory, MemoryError)
        _classes[key] = type("IPUOutOfMemoryError", bases, {"__module__": __name__, "__doc__": _OutOfMemory.__doc__})
    return _classes[key]


def __getattr__(name: str) -> Any:
    if name == "IPUOutOfMemoryError":
        return _out_of_memory_class()
    raise AttributeError(name)
