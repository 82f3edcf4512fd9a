"""The compiler: HLO in, a program for the tiles out; never imports Keras."""

from __future__ import annotations

from ipu_keras.compiler.compile import compile_module
from ipu_keras.compiler.executable import Executable

__all__ = ["Executable", "compile_module"]
