"""Once wrong: programs that gave other numbers than XLA, or a crash, without any error message."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.target import Target
from tests.harness import check


def rand(*shape):
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("tiles", [7, 1472])
def test_gradient_of_conv_flatten_dense(tiles):
    def gradient(x, kernel, dense):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reshape(tf.nn.conv2d(x, kernel, 1, "SAME"), (4, -1)) @ dense
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, x)

    check(gradient, rand(4, 7, 5, 5), rand(3, 3, 5, 6), rand(210, 3), target=Target(tiles=tiles), atol=1e-4)


def test_conv_over_a_dimension_of_one():
    check(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), rand(3, 1, 9, 5), rand(3, 3, 5, 4))


def test_transposed_conv_from_a_dimension_of_one():
    check(lambda x, w: tf.nn.conv2d_transpose(x, w, (3, 4, 8, 5), 4, "VALID"), rand(3, 1, 2, 4), rand(4, 4, 5, 4))


def run_twice(make):
    """(emulated, TensorFlow's) results and variables of two calls."""
    ours, theirs = make(), make()
    found = []
    for function, variables, call in ((*ours, IPUStrategy().run), (*theirs, lambda f, args: f(*args))):
        outs = [tf.nest.flatten(call(function, args=(np.arange(4, dtype=np.float32),))) for _ in range(2)]
        found.append([np.asarray(t) for t in [*outs[0], *outs[1], *variables]])
    return found


def old_value_returned():
    v = tf.Variable([1.0, 2, 3, 4])

    @tf.function
    def step(x):
        old = v.read_value()
        v.assign(old + x + 1)
        return old

    return step, [v]


def constant_times_constant_state():
    rate, scale, w = tf.Variable(0.5), tf.Variable(1.0), tf.Variable([1.0, 2, 3, 4])

    @tf.function
    def step(x):
        w.assign_sub(rate * (x * scale))
        scale.assign(rate * 0.25)
        return tf.reduce_sum(w) * scale

    return step, [rate, scale, w]


def test_a_state_s_old_value_is_returned():
    ours, theirs = run_twice(old_value_returned)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b)


def test_a_state_s_new_value_does_not_depend_on_the_step():
    ours, theirs = run_twice(constant_times_constant_state)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b)


def bits_returned():
    from tensorflow.compiler.tf2xla.python import xla

    key = tf.Variable(np.array([1, 2, 3], np.uint64))

    @tf.function(jit_compile=True)
    def step(x):
        _, bits = xla.rng_bit_generator(1, key.read_value(), tf.constant([8]), dtype=tf.uint32)
        key.assign(key + tf.constant([5, 6, 7], tf.uint64))
        return bits

    return step, [key]


def test_random_bits_of_a_state_that_is_then_changed():
    ours, theirs = run_twice(bits_returned)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
