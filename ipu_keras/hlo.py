"""The low-level door: anything that can hand over a serialized HLO module runs on the emulated chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipu_keras.compiler.compile import compile_module
from ipu_keras.compiler.executable import Executable, load
from ipu_keras.target import TARGETS, Target

__all__ = ["Executable", "TARGETS", "Target", "compile", "load"]


def compile(
    module: bytes,
    target: str | Target = "gc200",
    options: Mapping[str, Any] | None = None,
    *,
    state: Mapping[int, int | None] | None = None,
    layers: Any = None,
    name: str = "",
    execute: bool = True,
) -> Executable:
    """Compile an HLO module.

    Args:
        module: a serialized `HloModuleProto`, before XLA's own optimisation.
        target: a chip's name (`ipu-keras targets` lists them) or a `Target`.
        options: compile options, see `ipu_keras.compiler.options`.
        state: entry-parameter index -> flat output index that is its new value (None: read only).
        layers: names of Keras layers for reports, see `ipu_keras.frontend.layers.LayerNames`.
        name: of the program in reports.
        execute: False for a program that is only profiled or saved: `run` and `engine` refuse, and no memory for the
            tiles is taken. What is saved can be loaded and run.

    Returns:
        An Executable: `run(*arrays)`, `profile()`, `save(path)`.

    Raises:
        UnsupportedError: lists all operations and dtypes that are not there yet, with their layers.
        UnknownTargetError: no such chip.
        ConfigError: no such option, or a value it cannot take.
        IPUOutOfMemoryError: a tile overflows.

    Example:
        >>> import tensorflow as tf
        >>> f = tf.function(lambda x: x + 1.0, jit_compile=True)
        >>> ir = f.experimental_get_compiler_ir(tf.TensorSpec([4], tf.float32))
        >>> exe = compile(ir(stage="hlo_serialized"))
        >>> exe.run([1.0, 2.0, 3.0, 4.0])  # doctest: +SKIP
    """
    return compile_module(
        module, target=target, options=options, state=state, layers=layers, name=name, execute=execute
    )
