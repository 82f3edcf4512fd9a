"""Exceptions of pipelines that are also of the Python class which the IPU API promises."""

from __future__ import annotations

import sys

from ipu_keras.errors import IPUError

__all__ = ["PipelineTypeError", "StageError", "iterations_error"]


class PipelineTypeError(IPUError, TypeError):
    """An argument of a pipeline has another type than it must have, or a name that no argument has."""


class StageError(IPUError, RuntimeError):
    """Pipeline stages that are used or assigned in a way that no pipeline can be made of."""


class _IterationsError(IPUError):
    """A number of mini-batches that the schedule of a pipeline cannot run."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)
        self._text = message

    def __str__(self) -> str:
        return self._text


def iterations_error() -> type[IPUError]:
    """The class of errors for a number of mini-batches that a schedule cannot run.

    It is a `tf.errors.FailedPreconditionError` where TensorFlow is there, and a RuntimeError where it is not.
    """
    names = {"__module__": __name__, "__doc__": _IterationsError.__doc__}
    if "tensorflow" not in sys.modules:
        return type("PipelineIterationsError", (_IterationsError, RuntimeError), names)
    if "tf" not in _made:
        import tensorflow as tf

        bases = (_IterationsError, tf.errors.FailedPreconditionError)
        _made["tf"] = type("PipelineIterationsError", bases, names)
    return _made["tf"]


_made: dict[str, type[IPUError]] = {}
