"""Exceptions of the operations, layers and optimizers that IPU users import.

AutoGraph replaces an exception whose constructor it does not know by one of its own, so these keep Exception's.
"""

from __future__ import annotations

from ipu_keras.errors import IPUError, UnsupportedError

__all__ = ["ArgumentError", "ArgumentTypeError", "NotOnIPUError"]


class ArgumentError(IPUError, ValueError):
    """An argument that the operation cannot take."""

    __init__ = Exception.__init__  # type: ignore[assignment]


class ArgumentTypeError(IPUError, TypeError):
    """An argument of a type that the operation cannot take."""

    __init__ = Exception.__init__  # type: ignore[assignment]


class NotOnIPUError(UnsupportedError):
    """Something that Keras or TensorFlow offers and the IPU API does not."""

    __init__ = Exception.__init__  # type: ignore[assignment]
    items = ()  # type: ignore[assignment]
