"""Exceptions of the runtime, which must not need TensorFlow or the compiler."""

from __future__ import annotations


class IPUError(Exception):
    """Base of all exceptions that the project raises on purpose."""


class ExecutableFormatError(IPUError, ValueError):
    """An executable file is truncated, altered, of another version, or describes an illegal program."""


class StrictModeError(IPUError):
    """Strict mode saw an access outside a live allocation, a damaged guard, or a read of bytes never written."""


class LoopLimitError(IPUError):
    """A program's loops went back more often than the caller allowed."""
