"""The programs behind a model or a function, for who wants to profile or save them."""

from __future__ import annotations

from typing import Any

from ipu_keras.compiler.executable import Executable
from ipu_keras.errors import DataError

__all__ = ["executable"]

KINDS = ("train", "test", "predict", "generate")


def executable(model: Any, kind: str = "train") -> Executable:
    """The latest program that a model made in the scope has run, or that was compiled for it.

    Args:
        model: the model.
        kind: ``"train"``, ``"test"``, ``"predict"``, or ``"generate"`` for a keras-hub model.

    Raises:
        DataError: it has run none of that kind yet, or was not made in the scope.

    Example:
        >>> with IPUStrategy().scope():                       # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(3)])
        ...     model.compile("sgd", "mse")
        >>> model.fit(x, y)                                   # doctest: +SKIP
        >>> executable(model).profile().cycles                # doctest: +SKIP
        5120
    """
    if kind not in KINDS:
        raise DataError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    function = getattr(model, f"{kind}_function", None)
    latest = getattr(getattr(function, "session", function), "latest", None)
    if latest is None:
        name = getattr(model, "name", model)
        raise DataError(
            f"model {name!r} has run no {kind} program on the device: is it made in IPUStrategy().scope(), and has "
            f"it been used?"
        )
    found: Executable = latest.executable
    return found
