"""Reductions, against XLA on the CPU and float64 NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tests.harness import check, run_both

rng = np.random.default_rng(2)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


AXES = [None, 0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("fn", [tf.reduce_sum, tf.reduce_max, tf.reduce_min, tf.reduce_prod], ids=lambda f: f.__name__)
def test_axes(fn, axis):
    check(lambda x: fn(x, axis), floats(13, 17, 9), rtol=2e-5)


def test_error_against_float64_is_no_larger_than_twice_that_of_xla():
    x = floats(1000, 371)
    ours, theirs = run_both(lambda v: (tf.reduce_sum(v), tf.reduce_sum(v, 0), tf.reduce_sum(v, 1)), x)
    for axis, a, b in zip((None, 0, 1), ours, theirs, strict=True):
        exact = x.astype(np.float64).sum(axis)
        assert np.abs(a - exact).max() <= 2 * np.abs(b - exact).max() + 1e-6 * np.abs(exact).max()


def test_empty_and_single():
    check(lambda x: (tf.reduce_sum(x, 0), tf.reduce_max(x, 0)), floats(0, 5))
    check(lambda x: (tf.reduce_sum(x, 0), tf.reduce_max(x, 0)), floats(1, 5))
    check(lambda x: tf.reduce_sum(x), floats(1))


def test_integers_bools_halves():
    check(lambda x: tf.reduce_sum(x, 0), rng.integers(-(2**31), 2**31 - 1, (50, 3)).astype(np.int32))
    check(lambda x: tf.reduce_sum(x), rng.integers(-(2**60), 2**60, 500))
    check(lambda x: (tf.reduce_any(x, 1), tf.reduce_all(x, 0)), rng.integers(0, 2, (9, 40)).astype(bool))
    check(lambda x: tf.reduce_sum(x, 1), rng.normal(size=(5, 700)).astype(np.float16), rtol=2e-3)


def test_argmax_takes_the_first_of_equals():
    x = rng.integers(0, 3, (40, 11)).astype(np.float32)
    check(lambda v: (tf.argmax(v, -1), tf.argmin(v, 0), tf.argmax(v, 1, tf.int32)), x)
    x[3, 4] = np.nan
    check(lambda v: tf.argmax(v, -1), x)


@pytest.mark.parametrize("length", [255, 256, 300, 1000, 5000])
def test_argmax_of_long_lines(length):
    # Equal largest numbers in other lanes, and on other tiles beyond 2,048.
    x = rng.integers(0, 4, (3, length)).astype(np.float32)
    check(lambda v: (tf.argmax(v, -1), tf.argmin(v, -1), tf.argmax(v, 0)), x)
    x[1] = 7
    check(lambda v: (tf.argmax(v, -1), tf.argmin(v, -1)), x)
    if length <= 2048:
        # What XLA's region makes of a NaN depends on the order: it is kept on one tile, and only there.
        x[0, length // 2] = np.nan
        check(lambda v: (tf.argmax(v, -1), tf.argmin(v, -1)), x)


@pytest.mark.parametrize("length", [7, 256, 777, 3000])
def test_a_region_whose_operands_have_an_order(length):
    # Lines a x + b, one after another, modulo 2^32: associative, and no two may change places.
    types = [tf.TensorSpec((), tf.int32)] * 4

    @tf.function(input_signature=types)
    def then(a, b, c, d):
        return a * c, b * c + d

    def chain(a, b):
        fn = then.get_concrete_function()
        return gen_xla_ops.xla_variadic_reduce_v2([a, b], [tf.constant(1), tf.constant(0)], [1], fn)

    a = rng.integers(0, 9, (4, length)).astype(np.int32) * 2 + 1  # odd: no product is ever 0
    b = rng.integers(0, 9, (4, length)).astype(np.int32)
    ours, _ = run_both(chain, a, b)
    factor, rest = np.ones(4, np.int32), np.zeros(4, np.int32)
    for i in range(length):
        factor, rest = factor * a[:, i], rest * a[:, i] + b[:, i]
    np.testing.assert_array_equal(ours[0], factor)
    np.testing.assert_array_equal(ours[1], rest)


def test_softmax_and_moments():
    check(lambda x: (tf.nn.softmax(x), tf.nn.log_softmax(x)), floats(64, 10) * 10)
    check(lambda x: tf.nn.moments(x, [0, 1, 2]), floats(8, 5, 6, 16))
    check(lambda x: tf.cumsum(x, 1), floats(5, 9))
