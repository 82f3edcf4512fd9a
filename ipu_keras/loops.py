"""Loops of a device program: `repeat` and `while_loop`, with an infeed queue if wanted."""

from __future__ import annotations

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
        n: how often; a Python number, so that the program is known to end.
        body: takes the state, then the tensors of an infeed element (a dictionary's by name); returns the new state,
            then operations.
        inputs: the state to begin with.
        infeed_queue: whose next element each turn takes.
        use_while_v1: accepted; there is one kind of loop.

    Returns:
        the state at the end: a list, or None if there is none.

    Raises:
        TypeError: `body` takes other arguments, or gives a state of another number or dtype.
        ValueError: it gives operations before tensors.

    Example:
        >>> repeat(3, lambda x: x + 1, [tf.constant(0)])
    """
    return while_loop(lambda *_: True, body, inputs, infeed_queue, int(n), use_while_v1)


@tfapi.without_autograph
def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Sequence[Any] | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body while a condition holds.

    Args:
        condition: of the state; gives a scalar bool.
        body: as for `repeat`.
        inputs: the state to begin with.
        infeed_queue: whose next element each turn takes. How many the program takes must then be known beforehand.
        maximum_iterations: after which it ends.
        use_while_v1: accepted.

    Returns:
        the state at the end: a list, or None if there is none.

    Raises:
        TypeError, ValueError: as for `repeat`.
    """
    del use_while_v1
    if infeed_queue is not None and not isinstance(infeed_queue, IPUInfeedQueue):
        raise ArgumentTypeError(f"infeed_queue is a {type(infeed_queue).__name__}; it must be an IPUInfeedQueue.")
    start = [inputs] if isinstance(inputs, (tf.Tensor, tf.Variable)) else list(inputs or [])
    state = [tf.convert_to_tensor(value) for value in start]

    body, condition = tfapi.with_autograph(body), tfapi.with_autograph(condition)

    def turn(_: Any, *values: Any) -> Any:
        return (_ + 1, *_checked(_called(body, values, infeed_queue), values))

    def goes_on(_: Any, *values: Any) -> Any:
        return tf.convert_to_tensor(condition(*values))

    found = tf.while_loop(goes_on, turn, [tf.constant(0), *state], maximum_iterations=maximum_iterations)[1:]
    return list(found) if found else None


def _called(body: Callable[..., Any], state: Sequence[Any], queue: IPUInfeedQueue | None) -> list[Any]:
    """What a body gives, as a list."""
    element = queue._dequeue() if queue is not None else ()
    named = element if isinstance(element, dict) else {}
    more = () if named else (element if isinstance(element, tuple) else (element,))
    try:
        given = body(*state, *more, **named)
    except TypeError as error:
        if "argument" in str(error) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise ArgumentTypeError(
                f"the body of a loop gets {len(state)} value(s) of the state and {len(more) + len(named)} of "
                f"the infeed "
                f"queue, which do not fit its arguments: {error}"
            ) from error
        raise
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
        elif operations:
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
