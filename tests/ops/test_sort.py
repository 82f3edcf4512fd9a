"""Sorting, against XLA on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import check, run_both

rng = np.random.default_rng(6)


@pytest.mark.parametrize("shape", [(1,), (2,), (37,), (5, 64), (3, 1, 9), (200, 7)], ids=str)
def test_sort_and_argsort(shape):
    x = rng.integers(-5, 5, shape).astype(np.float32)
    check(lambda v: (tf.sort(v), tf.argsort(v, stable=True), tf.sort(v, direction="DESCENDING")), x)


def test_sort_of_other_dimensions_and_dtypes():
    check(lambda v: tf.sort(v, axis=0), rng.normal(size=(9, 40)).astype(np.float32))
    check(lambda v: tf.sort(v, axis=1), rng.integers(-(2**62), 2**62, (3, 40, 2)))
    check(lambda v: tf.sort(v), rng.normal(size=(3, 40)).astype(np.float16))


def test_sort_puts_nan_last_and_minus_zero_first():
    x = np.array([3, np.nan, -0.0, np.inf, 0.0, -np.inf, -0.0, -np.nan, 0.0, -2], np.float32)
    for dtype in (np.float32, np.float16):
        ours, theirs = run_both(lambda v: (tf.sort(v), tf.argsort(v, stable=True)), x.astype(dtype))
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_array_equal(np.signbit(ours[0]), np.signbit(theirs[0]))
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_top_k():
    check(lambda v: tf.math.top_k(v, 5), rng.normal(size=(8, 100)).astype(np.float32))
    check(lambda v: tf.math.in_top_k(tf.constant([1, 2, 3]), v, 2), rng.normal(size=(3, 10)).astype(np.float32))
