"""Exceptions of the command line that are no failure of the project: wrong usage, and errors in a person's own file."""

from __future__ import annotations

from ipu_keras.errors import IPUError

__all__ = ["UsageError", "UserError"]


class UsageError(IPUError):
    """The command was given something that cannot be; exit code 2."""


class UserError(IPUError):
    """A person's file raised; the message has the end of its traceback."""
