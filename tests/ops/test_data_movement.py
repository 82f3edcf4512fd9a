"""Operations that only move data, against XLA on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import check

rng = np.random.default_rng(1)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def test_slices_with_strides_and_reverse():
    check(lambda x: x[1:5, ::2, ::-1], floats(7, 9, 5))
    check(lambda x: tf.reverse(x, [0, 2]), floats(3, 4, 5))
    check(lambda x: x[:0], floats(7, 3))


@pytest.mark.parametrize("perm", [(2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_transpose(perm):
    check(lambda x: tf.transpose(x, perm) + 1.0, floats(5, 6, 7))
    check(lambda x: tf.reduce_sum(tf.transpose(x, perm), 1), floats(5, 6, 7))


def test_transposed_bytes():
    check(lambda x: tf.transpose(x), rng.integers(0, 2, (37, 5)).astype(bool))
    check(lambda x: tf.transpose(x), rng.integers(0, 200, (3, 50)).astype(np.uint8))


@pytest.mark.parametrize(
    ("a", "b"), [((5, 6, 7), (14, 15)), ((6, 4), (8, 3)), ((64, 10), (640,)), ((2, 3, 4), (24, 1))]
)
def test_reshape_between_any_shapes(a, b):
    check(lambda x: tf.reshape(tf.reshape(x * 2.0, b) + 1.0, a) * x, floats(*a))
    check(lambda x: tf.reduce_max(tf.reshape(x * 2.0, b), 0), floats(*a))


def test_pad_concatenate_stack():
    check(lambda x: tf.pad(x, [[1, 2], [0, 3]], constant_values=2.0), floats(7, 9))
    check(lambda x, e: tf.pad(x, [[1, 2], [0, 3]], constant_values=e[0]), floats(7, 9), floats(1))
    check(lambda x, y: tf.concat([x, y, x], 1), floats(7, 9), floats(7, 4))
    check(lambda x, y: tf.stack([x, y], 1), floats(7, 9), floats(7, 9))
    check(lambda x: tf.repeat(x, 3, axis=1), floats(4, 5))
    check(lambda x: tf.tile(x, [2, 3]), floats(4, 5))
    check(lambda x: tf.roll(x, 2, 1), floats(4, 5))


def test_operands_without_elements():
    check(lambda x, e: tf.pad(x, [[1, 2], [0, 3]], constant_values=e[0]), floats(0, 4), floats(1))
    check(lambda x, y: tf.concat([x @ y, y], 0), floats(3, 0), floats(0, 4))


def test_one_hot_range_and_constants():
    check(lambda i: tf.one_hot(i, 10), rng.integers(-1, 12, 9))
    big = floats(200, 300)
    check(lambda x: x + big, floats(200, 300))
    check(lambda x: (x * 0.0 + tf.cast(tf.range(5), tf.float32), tf.eye(5)), floats(5))


def test_output_that_is_an_input_or_constant():
    check(lambda x: (x, tf.constant([1.0, 2.0]), tf.transpose(x)), floats(4, 5))


@pytest.mark.parametrize("tiles", [1, 2, 7, 64])
def test_small_chips(tiles):
    from ipu_keras.target import Target

    target = Target("small", tiles=tiles, bytes_per_tile=1 << 22)
    check(lambda x, y: tf.nn.softmax(tf.matmul(x, y) + 1.0)[::2], floats(20, 30), floats(30, 10), target=target)
