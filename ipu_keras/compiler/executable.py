"""A compiled program with what users do to it: run, save, profile."""

from __future__ import annotations

from typing import Any

from ipu_runtime.program import Program


class Executable:
    """Result of a compilation.

    Args:
        program: the plain arrays.
        compile_seconds: how long the compiler took.
        options: the options it was compiled with.
    """

    def __init__(self, program: Program, compile_seconds: float = 0.0, options: dict[str, Any] | None = None) -> None:
        self.program, self.compile_seconds, self.options = program, compile_seconds, options or {}

    def engine(self, threads: int | None = None, strict: bool | None = None) -> Any:
        """A new device with this program loaded; see `ipu_runtime.engine.Engine`."""
        from ipu_runtime.engine import Engine

        return Engine(self.program, threads, strict)
