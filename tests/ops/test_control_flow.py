"""Loops, conditionals and dynamic slices, against XLA on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module
from tests.harness import check, hlo_of

rng = np.random.default_rng(5)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def test_counted_loop_with_something_that_does_not_change():
    def fn(x):
        return tf.while_loop(lambda i, a, b: i < 5, lambda i, a, b: (i + 1, tf.tanh(a @ b) + a, b), [0, x, x * 0.1])

    check(fn, floats(6, 6))


def test_loop_whose_end_the_data_decides():
    def fn(x):
        def body(i, a):
            return i + tf.cast(a[0, 0] > 0, tf.int32) + 1, a - 0.3

        return tf.while_loop(lambda i, a: tf.logical_and(i < 50, tf.reduce_sum(a) > -10), body, [0, x])

    check(fn, floats(3, 4))
    check(fn, floats(3, 4) - 100)  # not a single round


def test_states_that_change_places():
    check(
        lambda x, y: tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), [0, x, y]),
        floats(3),
        floats(3),
    )


def test_nested_loops():
    def fn(x):
        def body(i, a):
            _, a = tf.while_loop(lambda j, a: j < i, lambda j, a: (j + 1, a * 1.1), [0, a])
            return i + 1, a + 1

        return tf.while_loop(lambda i, a: i < 4, body, [0, x])

    check(fn, floats(5))


def scan(x):
    def body(i, s, out):
        s = s * 0.5 + x[i]
        return i + 1, s, out.write(i, s)

    out = tf.TensorArray(tf.float32, size=7)
    _, s, out = tf.while_loop(lambda i, s, out: i < 7, body, [0, tf.zeros_like(x[0]), out], maximum_iterations=7)
    return s, out.stack()


def test_scan_and_its_gradient():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            s, y = scan(x)
            loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(s)
        return tape.gradient(loss, x)

    check(scan, floats(7, 3, 4))
    check(gradient, floats(7, 3, 4))


@pytest.mark.parametrize("sign", [1, -1])
def test_conditional_takes_either_side(sign):
    def fn(x, y):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: (x * 2, y + 1), lambda: (x - 1, tf.exp(y)))

    check(fn, sign * np.abs(floats(40, 3)), floats(5))


@pytest.mark.parametrize("start", [-3, 0, 1, 7, 100])
def test_dynamic_slices_are_clamped(start):
    check(
        lambda x, i: tf.slice(x, [i, 0], [2, 3]) if start < 8 else x[:2],
        floats(9, 5),
        np.array(max(0, min(start, 7)), np.int32),
    )

    def raw(x, u, i):
        from tensorflow.compiler.tf2xla.python import xla

        i = tf.reshape(i, [1])
        starts = tf.concat([i, tf.zeros_like(i)], 0)
        return xla.dynamic_slice(x, starts, [2, 5]), xla.dynamic_update_slice(x, u, starts)

    check(raw, floats(9, 5), floats(3, 5), np.array(start, np.int32))


def test_a_loops_cycles_count_its_trips():
    def fn(n):
        return lambda x: tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, tf.sin(a)), [0, x])

    cycles = [compile_module(hlo_of(fn(n), floats(100))[0]).profile().cycles for n in (1, 2, 10)]
    assert cycles[2] - cycles[1] == 8 * (cycles[1] - cycles[0]) > 0


@pytest.mark.parametrize("choice", [0, 1, 2])  # SetBound, once refused
def test_a_shape_that_is_asserted_in_branches(choice):
    def fn(i, x):
        y = tf.ensure_shape(tf.cond(i > 1, lambda: x, lambda: -x), [3, 2])
        return tf.switch_case(i, [lambda: y, lambda: 0 - y, lambda: tf.ensure_shape(tf.maximum(x, y), [3, 2])])

    check(fn, np.int32(choice), floats(3, 2))
