"""Loops of a device program: `repeat` and `while_loop`, with an infeed queue if wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ipu_keras.frontend import tfapi
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = ["repeat", "while_loop"]


@tfapi.without_autograph
def repeat(
    n: Any,
    body: Callable[..., Any],
    inputs: Sequence[Any] | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body n times.

    Args:
        n: how often. A Python number lets the program use queues; an int32 tensor may be known when it runs only.
        body: takes the state, then the tensors of an infeed element (a dictionary's by name); returns the new state,
            then operations.
        inputs: the state to begin with: a tensor, or a list or tuple of them.
        infeed_queue: whose next element each turn takes.
        use_while_v1: accepted; there is one kind of loop.

    Returns:
        the state at the end, a list; None if there is none.

    Raises:
        TypeError: `body` takes other arguments, or gives a state of another number or dtype.
        ValueError: it gives operations before tensors, or `n` is no number of turns.

    Example:
        >>> repeat(3, lambda x: x + 1, [tf.constant(0)])
    """
    known = tf.get_static_value(n) if tf.is_tensor(n) else n
    if known is not None:
        if isinstance(known, bool) or not hasattr(known, "__index__") or int(known) < 0:
            raise ArgumentError(f"loops.repeat: n is {n!r}; it must be a number of turns, 0 or more.")
        return while_loop(lambda *_: True, body, inputs, infeed_queue, int(known), use_while_v1)
    if n.shape.rank != 0 or not n.dtype.is_integer:
        raise ArgumentError(f"loops.repeat: n is a {n.dtype.name} tensor of shape {n.shape}; it must be an integer.")
    return while_loop(lambda *_: True, body, inputs, infeed_queue, tf.cast(n, tf.int32), use_while_v1)


@tfapi.without_autograph
def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Sequence[Any] | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: Any = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body while a condition holds.

    Args:
        condition: of the state; gives a scalar bool.
        body: as for `repeat`.
        inputs: the state to begin with: a tensor, or a list or tuple of them.
        infeed_queue: whose next element each turn takes. How many the program takes must then be known beforehand.
        maximum_iterations: after which it ends.
        use_while_v1: accepted.

    Returns:
        the state at the end, a list; None if there is none.

    Raises:
        TypeError: `condition` or `body` takes other arguments, or `body` gives a state of another number or dtype.
        ValueError: `body` gives operations before tensors.

    Example:
        >>> while_loop(lambda x: x < 100, lambda x: x * 2, [tf.constant(3)])
    """
    del use_while_v1
    if infeed_queue is not None and not isinstance(infeed_queue, IPUInfeedQueue):
        raise ArgumentTypeError(f"infeed_queue is a {type(infeed_queue).__name__}; it must be an IPUInfeedQueue.")
    for what, function in (("condition", condition), ("body", body)):
        if not callable(function):
            raise ArgumentTypeError(f"the {what} of a loop is {function!r}; it must be a function.")
    start = list(inputs or []) if inputs is None or isinstance(inputs, (list, tuple)) else [inputs]
    state = [tf.convert_to_tensor(value) for value in start]
    check_arguments(condition, state, {}, "the condition of a loop", "value(s) of the state")
    work, goes_on = tfapi.with_autograph(body), tfapi.with_autograph(condition)

    def turn(number: Any, *values: Any) -> Any:
        more, named = infeed_queue._arguments() if infeed_queue is not None else ((), {})
        what = f"value(s), {len(state)} of the state and {len(more) + len(named)} of the infeed queue,"
        check_arguments(body, [*values, *more], named, "the body of a loop", what)
        return (number + 1, *_checked(_as_list(work(*values, *more, **named)), values))

    def again(number: Any, *values: Any) -> Any:
        del number
        return tf.convert_to_tensor(goes_on(*values))

    found = tf.while_loop(again, turn, [tf.constant(0), *state], maximum_iterations=maximum_iterations)[1:]
    return list(found) or None


def check_arguments(function: Callable[..., Any], values: Sequence[Any], named: Any, who: str, what: str) -> None:
    """Refuses arguments that a function does not take; before it is called, so that its own errors stay what they are.

    Args:
        function: any callable; one whose signature nobody knows passes.
        values: positional arguments.
        named: keyword arguments.
        who: the function, for the message.
        what: the arguments, for the message.

    Raises:
        TypeError: they do not fit.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentTypeError(
            f"{who} gets {len(values) + len(named)} {what} and {name!r} does not take them: {error}. Its arguments "
            f"are {signature}."
        ) from None


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _checked(given: list[Any], state: Sequence[Any]) -> list[Any]:
    """The new state among what a body gives; the operations behind it run with it."""
    tensors: list[Any] = []
    operations: list[tf.Operation] = []
    for value in given:
        if isinstance(value, tf.Operation):
            operations.append(value)
        elif operations and value is not None:
            raise ArgumentError("the body of a loop returns its state first, then operations.")
        elif value is not None:
            tensors.append(tf.convert_to_tensor(value))
    if len(tensors) != len(state):
        raise ArgumentTypeError(
            f"the body of a loop gives {len(tensors)} value(s), and its state has {len(state)}: return all of "
            f"the state."
        )
    for i, (new, old) in enumerate(zip(tensors, state, strict=True)):
        if new.dtype != old.dtype:
            raise ArgumentTypeError(f"value {i} of a loop's state is {old.dtype.name} and becomes {new.dtype.name}.")
    with tf.control_dependencies(operations):
        return [tf.identity(value) for value in tensors]
