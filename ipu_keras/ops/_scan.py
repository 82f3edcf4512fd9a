"""A recurrence over time whose gradient is a recurrence back, which recomputes each step.

TensorFlow's own gradient of a loop keeps every intermediate value of every step in lists; this keeps the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["scan"]

Step = Callable[[list[Any], list[Any], list[Any]], list[Any]]


def scan(step: Step, init: Sequence[Any], xs: Sequence[Any], weights: Sequence[Any] = ()) -> list[Any]:
    """All states of ``state = step(state, x, weights)``.

    Args:
        step: gives the new states for the states, one time's entries of `xs`, and the weights; differentiable, and
            using no other tensor that needs a gradient.
        init: states before the first step; the new ones have their shapes and dtypes.
        xs: tensors of shape [times, ...], the number of times being known and not 0.
        weights: tensors.

    Returns:
        for each state a tensor of shape [times, ...].
    """
    times = int(xs[0].shape[0])
    first, second = len(init), len(init) + len(xs)

    @tf.custom_gradient
    def run(*flat: Any) -> Any:
        start, inputs, shared = list(flat[:first]), list(flat[first:second]), list(flat[second:])
        states = _forward(step, start, inputs, shared, times)

        def gradient(*upstream: Any) -> Any:
            return _backward(step, start, inputs, shared, states, list(upstream))

        return states, gradient

    result = run(*(tf.convert_to_tensor(t) for t in (*init, *xs, *weights)))
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _at(tensors: list[Any], time: Any) -> list[Any]:
    return [tf.gather(t, time) for t in tensors]


def _table(like: Any, times: int) -> Any:
    return tf.TensorArray(like.dtype, size=times, element_shape=like.shape, clear_after_read=False)


def _forward(step: Step, init: list[Any], xs: list[Any], weights: list[Any], times: int) -> list[Any]:
    def body(time: Any, states: list[Any], tables: list[Any]) -> Any:
        new = step(states, _at(xs, time), weights)
        return time + 1, new, [table.write(time, state) for table, state in zip(tables, new)]

    start = (tf.constant(0), init, [_table(state, times) for state in init])
    done = tf.while_loop(lambda time, *_: time < times, body, start, maximum_iterations=times)
    return [table.stack() for table in done[2]]


def _backward(
    step: Step, init: list[Any], xs: list[Any], weights: list[Any], states: list[Any], upstream: list[Any]
) -> list[Any]:
    times = int(xs[0].shape[0])
    before = [tf.concat([start[None], state[:-1]], 0) for start, state in zip(init, states)]
    real = [i for i, x in enumerate(xs) if x.dtype.is_floating]

    def body(count: Any, carried: list[Any], tables: list[Any], sums: list[Any]) -> Any:
        time = times - 1 - count
        old, now = _at(before, time), _at(xs, time)
        sources = [*old, *(now[i] for i in real), *weights]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            new = step(old, now, weights)
        wanted = [c + u for c, u in zip(carried, _at(upstream, time))]
        found = tape.gradient(new, sources, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        to_old, to_xs, to_weights = found[: len(old)], found[len(old) : len(old) + len(real)], found[-len(weights) :]
        tables = [table.write(time, g) for table, g in zip(tables, to_xs)]
        return count + 1, to_old, tables, [s + g for s, g in zip(sums, to_weights)]

    start = (
        tf.constant(0),
        [tf.zeros_like(state) for state in init],
        [_table(xs[i][0], times) for i in real],
        [tf.zeros_like(w) for w in weights],
    )
    done = tf.while_loop(lambda count, *_: count < times, body, start, maximum_iterations=times)
    to_xs: list[Any] = [None] * len(xs)
    for i, table in zip(real, done[2]):
        to_xs[i] = table.stack()
    return [*done[1], *to_xs, *done[3]]
