"""The package under which IPU users find tapes that capture gradients."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "backprop":
        return importlib.import_module("ipu_keras.eager.backprop")
    raise AttributeError(f"module 'ipu_keras.eager' has no attribute {name!r}")
