"""Exceptions of the configuration that are also of the Python class which the IPU API promises."""

from __future__ import annotations

from ipu_keras.errors import IPUError, UnsupportedError

__all__ = [
    "CategoryError",
    "ConfigTypeError",
    "SelectionError",
    "SeveralIPUsError",
    "SystemStateError",
    "UnknownOptionError",
]


class UnknownOptionError(IPUError, ValueError):
    """There is no option of this name; the message offers the nearest one."""


class ConfigTypeError(IPUError, TypeError):
    """An option was set to a value of another type, or something that is no IPUConfig was to be configured."""


class CategoryError(IPUError):
    """A value was assigned to a category of options instead of to an option."""


class SelectionError(IPUError):
    """IPUs are selected in a way that cannot be: twice, or by number on the IPU model."""


class SystemStateError(IPUError, RuntimeError):
    """The system is not configured, or is configured otherwise and may not be reset."""


class SeveralIPUsError(UnsupportedError):
    """More than one IPU is asked for, and one is emulated."""
