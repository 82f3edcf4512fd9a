"""Exceptions of the Keras side that are also of the Python class which the IPU API promises."""

from __future__ import annotations

from ipu_keras.errors import IPUError, UnsupportedError

__all__ = ["Float64Error", "InsideFunctionError", "ModeError", "NotCompiledError"]


class ModeError(IPUError, RuntimeError):
    """A way of running a model that a compiled device program cannot offer, such as ``run_eagerly=True``."""


class InsideFunctionError(UnsupportedError):
    """``strategy.run`` was called while another tf.function was traced."""

    # AutoGraph passes on only exceptions whose constructor it knows; others it replaces by a StagingError.
    __init__ = Exception.__init__  # type: ignore[assignment]
    items = ("strategy.run inside a tf.function",)  # type: ignore[assignment]


class NotCompiledError(IPUError, ValueError):
    """``strategy.run`` was handed a plain Python function, which could only be run eagerly on the host."""


class Float64Error(IPUError, TypeError):
    """A float64 tensor was to go to or come from the device, which has no such type."""


NO_EAGER = (
    "run_eagerly=True cannot be had on an IPU, which runs compiled programs only. To debug, call the model "
    "(model(x) runs on the host), or make it outside the strategy's scope."
)
"""Why a model in the scope cannot run eagerly."""
