"""Pooling, embeddings and random bits, against XLA on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import check, run_both

rng = np.random.default_rng(4)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def gradient(fn):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(fn(x)))
        return tape.gradient(y, x)

    return run


@pytest.mark.parametrize("pool", [tf.nn.max_pool2d, tf.nn.avg_pool2d], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, 2, "SAME"), (3, 2, "SAME"), (3, 1, "VALID"), (2, 3, "VALID")]
)
def test_pooling_and_its_gradient(pool, size, stride, padding):
    fn = lambda x: pool(x, size, stride, padding)  # noqa: E731
    check(fn, floats(2, 7, 8, 5))
    check(gradient(fn), floats(2, 7, 8, 5))


def test_max_pool_gradient_with_equal_elements():
    fn = lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME")  # noqa: E731
    check(gradient(fn), rng.integers(0, 3, (2, 7, 7, 3)).astype(np.float32))


@pytest.mark.parametrize(
    ("entries", "width", "shape"), [(50, 6, (4, 5)), (1000, 3, (7,)), (5000, 64, (2, 9)), (3, 1, (1,))]
)
def test_gather_and_its_gradient(entries, width, shape):
    index = rng.integers(0, entries, shape).astype(np.int32)
    check(tf.gather, floats(entries, width), index)

    def dense(table, i):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = tf.reduce_sum(tf.sin(tf.gather(table, i)))
        return tf.convert_to_tensor(tape.gradient(y, table))

    check(dense, floats(entries, width), index)


def test_gather_of_other_axes_and_dtypes():
    check(lambda t, i: tf.gather(t, i, axis=1), floats(6, 40, 3), rng.integers(0, 40, (5,)))
    check(tf.gather, rng.integers(-5, 5, (30, 4)), rng.integers(0, 30, (6,)))
    check(tf.gather, rng.normal(size=(30, 4)).astype(np.float16), rng.integers(0, 30, (6,)).astype(np.int32))


def test_scatter_updates_with_repeated_and_outside_indices():
    index = np.array([[1], [3], [1], [99]], np.int32)
    check(lambda t, u: tf.tensor_scatter_nd_add(t, index, u), floats(10, 4), floats(4, 4))
    check(lambda t, u: tf.tensor_scatter_nd_max(t, index, u), floats(10, 4), floats(4, 4))


@pytest.mark.parametrize("shape", [(1,), (5,), (33, 7), (1473, 3), (4, 5, 6)], ids=str)
def test_philox_bits_are_those_of_xla(shape):
    seed = np.array([3, -4], np.int32)
    ours, theirs = run_both(
        lambda s: (
            tf.random.stateless_uniform(shape, s, None, None, tf.int32),
            tf.random.stateless_uniform(shape, s),
            tf.random.stateless_uniform(shape, s, None, None, tf.int64),
        ),
        seed,
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gather_of_several_dimensions_and_batches():
    check(lambda t, i: tf.gather_nd(t, i), floats(5, 6, 3), rng.integers(0, 5, (4, 2)).astype(np.int32))
    check(lambda t, i: tf.gather(t, i, batch_dims=1), floats(5, 6, 3), rng.integers(0, 6, (5, 2)).astype(np.int32))
    check(lambda t, i: tf.gather(t, i, axis=2, batch_dims=1), floats(4, 3, 7), rng.integers(0, 7, (4, 5)))
    check(lambda t: tf.gather_nd(t, [[0, 1, 2], [4, 5, 1]]), floats(5, 6, 3))


def test_gather_of_windows_is_clamped():
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.compiler.xla import xla_data_pb2

    def windows(table, starts):
        numbers = xla_data_pb2.GatherDimensionNumbers(
            offset_dims=[1, 2], collapsed_slice_dims=[], start_index_map=[1, 0], index_vector_dim=1
        )
        return xla.gather(table, starts, numbers, slice_sizes=[2, 3])

    check(windows, floats(6, 7), np.array([[0, 0], [4, 5], [100, -3], [2, 1]], np.int32))


def test_gradients_of_general_gathers_scatter_into_them():
    def gradient(fn):
        def run(t, i):
            with tf.GradientTape() as tape:
                tape.watch(t)
                y = tf.reduce_sum(tf.sin(fn(t, i)))
            return tf.convert_to_tensor(tape.gradient(y, t))

        return run

    check(gradient(tf.gather_nd), floats(5, 6, 3), rng.integers(0, 5, (9, 2)).astype(np.int32))
    batched = gradient(lambda t, i: tf.gather(t, i, batch_dims=1))
    check(batched, floats(5, 6, 3), rng.integers(0, 6, (5, 4)).astype(np.int32))


def test_scatter_of_windows_and_overwriting():
    index = np.array([[1, 2], [0, 0], [4, 9], [-1, 2]], np.int32)
    check(lambda t, u: tf.tensor_scatter_nd_add(t, index, u), floats(5, 6, 3), floats(4, 3))
    check(lambda t, u: tf.tensor_scatter_nd_update(t, index[:2], u), floats(5, 6), floats(2))
