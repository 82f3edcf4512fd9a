"""A compiled program with what users do to it: run, save, profile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_keras.compiler import synthetic
from ipu_keras.errors import DataError, ProfileOnlyError
from ipu_runtime.errors import overflow_text
from ipu_runtime.program import Program

if TYPE_CHECKING:
    from ipu_keras.profile import Profile


class Executable:
    """Result of a compilation, or of loading a saved one.

    Args:
        program: the plain arrays.
        compile_seconds: how long the compiler took.
        options: the options it was compiled with.
        execute: False for a program that is only profiled or saved.

    Attributes:
        execute: as given.

    Example:
        >>> exe = hlo.compile(module_bytes, target="gc200")  # doctest: +SKIP
        >>> (result,) = exe.run(np.ones(4, np.float32))      # doctest: +SKIP
    """

    def __init__(
        self,
        program: Program,
        compile_seconds: float = 0.0,
        options: dict[str, Any] | None = None,
        execute: bool = True,
    ) -> None:
        self.program, self.compile_seconds, self.options = program, compile_seconds, options or {}
        self.execute = execute
        self._engine: Any = None

    @property
    def name(self) -> str:
        """The module's name."""
        return str(self.program.header["name"])

    def engine(self, threads: int | None = None, strict: bool | None = None) -> Any:
        """A new device with this program loaded; see `ipu_runtime.engine.Engine`.

        Args:
            threads: host threads of the emulation, None for all.
            strict: whether every operand is checked; None for the default.

        Raises:
            ProfileOnlyError: the program was compiled with ``execute=False``, or it does not fit the chip.
        """
        if not self.execute:
            raise ProfileOnlyError(
                f"{self.name} was compiled with execute=False: it has a profile and does not run. For a model "
                "ipu_keras.executable(model, kind) gives this program, for a function strategy.executable(fn); its "
                ".profile() has the cycles and the memory. To run it, compile with execute=True."
            )
        if self.program.header.get("overflows"):
            raise ProfileOnlyError(overflow_text(self.program.header))
        from ipu_runtime.engine import Engine

        return Engine(self.program, threads, strict)

    def run(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """Run once on a device of this executable's own.

        Args:
            arrays: one for each entry parameter, of its shape and dtype. Parameters that were compiled as states are
                given too; they are written first.

        Returns:
            All flat outputs of the module that are no state's new value, then the states' new values in order.

        Raises:
            DataError: wrong number of arrays, or one of another shape or dtype than the module's.
            ProfileOnlyError: as for `engine`.
        """
        if self._engine is None:
            self._engine = self.engine()
        header = self.program.header
        states = [s for s in header["states"] if not s.get("internal")]
        unsent = header.get("synthetic", {}).get("feeds", [])
        specs = {s["param"]: s for s in [*header["feeds"], *unsent, *states]}
        if len(arrays) != len(specs):
            raise DataError(f"{self.name} takes {len(specs)} arrays, {len(arrays)} were given")
        checked = {}
        for (param, spec), array in zip(sorted(specs.items()), arrays, strict=True):
            array = np.asarray(array)
            if list(array.shape) != spec["shape"]:
                raise DataError(f"array {param} has shape {list(array.shape)}, {self.name} takes {spec['shape']}")
            checked[param] = array
        try:
            for state in states:
                self._engine.write_state(state["param"], checked[state["param"]])
            outs = self._engine.run({f["param"]: checked[f["param"]][None] for f in header["feeds"]})
        except (TypeError, OverflowError) as error:
            raise DataError(f"{self.name}: {error}") from error
        outs |= synthetic.results(header)
        updated = [self._engine.read_state(s["param"]) for s in states if s["updated"]]
        return (*(outs[k][0] for k in sorted(outs)), *updated)

    def profile(self) -> Profile:
        """Cycles and memory, known without a run."""
        from ipu_keras.profile import profile

        return profile(self.program)

    def explain_plans(self, layer: str | None = None) -> str:
        """How its matrix products and convolutions are split over the tiles, and why.

        Args:
            layer: only those of layers whose path holds this.
        """
        from ipu_keras.compiler.plan.explain import explain_plans

        return explain_plans(self.program.header, layer)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable to a file; see `ipu_runtime.format`."""
        from ipu_runtime import format as file_format

        file_format.save(self.program, path)


def load(path: str | os.PathLike[str]) -> Executable:
    """Read an executable that `Executable.save` wrote.

    Raises:
        ExecutableFormatError: the file is truncated, altered, of another version, or no executable.
    """
    from ipu_runtime import format as file_format

    return Executable(file_format.load(path))
