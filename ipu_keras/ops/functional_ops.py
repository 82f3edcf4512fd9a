"""Functions that stand for themselves in the program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ipu_keras.compiler.lower.outline import CALLED
from ipu_keras.ops._refusals import ArgumentTypeError

__all__ = ["outlined_function"]


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Decorator, with or without arguments, of a function whose code is to be used for all its calls.

    Results and gradients are those of the plain function. Its products and convolutions, and those of its gradient, are
    in the program once for all calls with operands of the same shapes that lie alike: less code and less memory for
    some more cycles (docs/fit.md). All else is laid out for each call.

    Args:
        func: the function: of positional tensors; it may use what is around it.
        unique_sharding: accepted; there is one chip.
        keep_input_layouts: accepted; layouts are the compiler's choice.
        name: name of the function.

    Returns:
        the decorated function.

    Raises:
        ArgumentTypeError: `func` cannot be called, or the decorated function is called with keyword arguments.

    Example:
        >>> @outlined_function
        ... def block(x):
        ...     return tf.nn.relu(x) + 1.0
    """
    if func is None:
        return functools.partial(
            outlined_function, unique_sharding=unique_sharding, keep_input_layouts=keep_input_layouts, name=name
        )
    if not callable(func):
        raise ArgumentTypeError(f"outlined_function: {func!r} is not a function.")
    label = str(name or getattr(func, "__name__", "outlined"))

    @functools.wraps(func)
    def outlined(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise ArgumentTypeError(
                f"outlined_function: {label} was called with the keyword arguments {sorted(kwargs)}; give its tensors "
                "by position and let the function capture everything else."
            )
        with tf.name_scope(CALLED):
            return func(*args)

    outlined.__name__ = label
    return outlined
