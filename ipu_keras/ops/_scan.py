"""A recurrence over time whose gradient is a recurrence back.

TensorFlow's own gradient of a loop keeps every intermediate value of every step in lists. This keeps the states, and
computes the rest of a step again; the product of a recurrent layer's state is computed for all times at once in the
backward pass, as is the gradient of its weights, so that the loop back has one small product a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ipu_keras.ops._names import gradient_scope

__all__ = ["scan"]

Step = Callable[[list[Any], list[Any], list[Any]], list[Any]]


def scan(
    step: Step, init: Sequence[Any], xs: Sequence[Any], weights: Sequence[Any] = (), linear: Sequence[Any] = ()
) -> list[Any]:
    """All states of ``state = step(state, x, weights)``.

    Args:
        step: gives the new states for the states, one time's entries of `xs`, and the weights; differentiable, and
            using no other tensor that needs a gradient.
        init: states before the first step; the new ones have their shapes and dtypes.
        xs: tensors of shape [times, ...], the number of times being known and not 0.
        weights: tensors.
        linear: a kernel of shape [units, width], and perhaps a bias of shape [width]: then each step has
            ``state[0] @ kernel + bias`` as the last of its entries of `xs`.

    Returns:
        for each state a tensor of shape [times, ...].
    """
    counts = [len(init), len(xs), len(weights), len(linear)]
    backward_scope = gradient_scope()

    @tf.custom_gradient
    def run(*flat: Any) -> Any:
        start, inputs, shared, products = _parts(flat, counts)
        states = _forward(step, start, inputs, shared, products)

        def gradient(*upstream: Any) -> Any:
            with backward_scope():
                before = [tf.concat([first[None], state[:-1]], 0) for first, state in zip(start, states)]
                return _backward(step, before, inputs, shared, products, list(upstream))

        return states, gradient

    result = run(*(tf.convert_to_tensor(t) for t in (*init, *xs, *weights, *linear)))
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _parts(flat: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    rest, found = list(flat), []
    for count in counts:
        found.append(rest[:count])
        rest = rest[count:]
    return found


def _at(tensors: list[Any], time: Any) -> list[Any]:
    return [tf.gather(t, time) for t in tensors]


def _table(like: Any, times: int) -> Any:
    return tf.TensorArray(like.dtype, size=times, element_shape=like.shape, clear_after_read=False)


def _product(state: Any, linear: list[Any]) -> list[Any]:
    if not linear:
        return []
    product = tf.tensordot(state, linear[0], 1)
    return [product + linear[1] if len(linear) > 1 else product]


def _forward(step: Step, init: list[Any], xs: list[Any], weights: list[Any], linear: list[Any]) -> list[Any]:
    times = int(xs[0].shape[0])

    def body(time: Any, states: list[Any], tables: list[Any]) -> Any:
        new = step(states, [*_at(xs, time), *_product(states[0], linear)], weights)
        return time + 1, new, [table.write(time, state) for table, state in zip(tables, new)]

    start = (tf.constant(0), init, [_table(state, times) for state in init])
    done = tf.while_loop(lambda time, *_: time < times, body, start, maximum_iterations=times)
    return [table.stack() for table in done[2]]


def _backward(
    step: Step, before: list[Any], xs: list[Any], weights: list[Any], linear: list[Any], upstream: list[Any]
) -> list[Any]:
    times, given = int(xs[0].shape[0]), len(xs)
    xs = [*xs, *_product(before[0], linear)]
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
        to_old, to_xs, to_weights = _parts(found, [len(old), len(real), len(weights)])
        if linear:
            to_old[0] += tf.matmul(to_xs[-1], linear[0], transpose_b=True)
        tables = [table.write(time, g) for table, g in zip(tables, to_xs)]
        return count + 1, to_old, tables, [s + g for s, g in zip(sums, to_weights)]

    start = (
        tf.constant(0),
        [tf.zeros_like(state[0]) for state in before],
        [_table(xs[i][0], times) for i in real],
        [tf.zeros_like(w) for w in weights],
    )
    done = tf.while_loop(lambda count, *_: count < times, body, start, maximum_iterations=times)
    to_xs: list[Any] = [None] * len(xs)
    for i, table in zip(real, done[2]):
        to_xs[i] = table.stack()
    to_linear: list[Any] = []
    if linear:
        to_linear.append(tf.tensordot(before[0], to_xs[-1], [[0, 1], [0, 1]]))
        to_linear += [tf.reduce_sum(to_xs[-1], [0, 1])] if len(linear) > 1 else []
    return [*done[1], *to_xs[:given], *done[3], *to_linear]
