"""dot and convolution, forward and backward, against XLA on the CPU and float64 NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.target import Target
from tests.harness import check, run_both

rng = np.random.default_rng(3)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def gradients(fn):
    def run(*args):
        with tf.GradientTape() as tape:
            tape.watch(args)
            y = tf.reduce_sum(tf.sin(fn(*args)))
        return tape.gradient(y, args)

    return run


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (64, 200, 130), (3, 1000, 2), (129, 7, 65), (1, 300, 1), (500, 1, 3)]
)
def test_matmul(m, k, n):
    x, y = floats(m, k), floats(k, n)
    ours, theirs = run_both(tf.matmul, x, y)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    assert np.abs(ours[0] - exact).max() <= 2 * np.abs(theirs[0] - exact).max() + 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_transposed_operands(ta, tb):
    x, y = floats(33, 21), floats(21, 18)
    check(lambda a, b: tf.matmul(a, b, ta, tb), x.T.copy() if ta else x, y.T.copy() if tb else y, atol=2e-6)


@pytest.mark.parametrize(
    "spec", ["bshd,bthd->bhst", "abc,cd->abd", "abc,abd->cd", "abcd,cde->abe", "ab,cd->abcd", "ab,ab->"]
)
def test_einsum(spec):
    sizes = dict(zip("abcdehst", (3, 5, 4, 6, 7, 2, 9, 8), strict=True))
    left, right = spec.split("->")[0].split(",")
    x, y = floats(*(sizes[c] for c in left)), floats(*(sizes[c] for c in right))
    check(lambda a, b: tf.einsum(spec, a, b), x, y, atol=2e-6)
    check(gradients(lambda a, b: tf.einsum(spec, a, b)), x, y, rtol=1e-4, atol=1e-5)


def test_half_and_integer_products():
    check(lambda x, y: x @ y, floats(16, 32).astype(np.float16), floats(32, 8).astype(np.float16), rtol=2e-3, atol=2e-3)
    x, y = (
        rng.integers(-1000, 1000, (9, 20)).astype(np.int32),
        rng.integers(-(2**31), 2**31 - 1, (20, 5)).astype(np.int32),
    )
    check(tf.matmul, x, y)


CONVS = {
    "same": dict(strides=1, padding="SAME"),
    "stride 2": dict(strides=2, padding="SAME"),
    "valid": dict(strides=1, padding="VALID"),
    "dilated": dict(strides=1, padding="VALID", dilations=2),
    "stride over rest": dict(strides=3, padding="VALID"),
}


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize(("ci", "co"), [(1, 16), (3, 5), (8, 1)])
def test_conv2d_and_its_gradients(name, ci, co):
    x, w = floats(4, 9, 8, ci), floats(3, 3, ci, co)
    fn = lambda a, b: tf.nn.conv2d(a, b, **CONVS[name])  # noqa: E731
    check(fn, x, w, rtol=1e-4, atol=2e-6)
    check(gradients(fn), x, w, rtol=1e-4, atol=1e-5)


def test_conv_of_one_and_three_dimensions():
    check(lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), floats(3, 20, 4), floats(5, 4, 6), rtol=1e-4)
    check(
        lambda x, w: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME"),
        floats(2, 5, 6, 4, 3),
        floats(2, 3, 3, 3, 4),
        rtol=1e-4,
    )


def test_conv_whose_input_comes_from_another_shape():
    fn = lambda a, b: tf.nn.conv1d(tf.reshape(a, (7, 4, 1)), b, 1, "SAME")  # noqa: E731
    check(fn, floats(4, 7), floats(2, 1, 8), rtol=1e-4)


def test_conv_with_padding_beyond_the_input():
    fn = lambda a, b: tf.nn.conv2d(a, b, [1, 2, 2, 1], [[0, 0], [2, 3], [1, 3], [0, 0]])  # noqa: E731
    for tiles in (3, 7):
        check(fn, floats(4, 1, 2, 3), floats(3, 2, 3, 4), rtol=1e-4, target=Target(tiles=tiles))


def test_grouped_and_depthwise():
    fn = lambda a, b: tf.nn.conv2d(a, b, 1, "SAME")  # noqa: E731
    check(fn, floats(2, 6, 6, 8), floats(3, 3, 2, 12), rtol=1e-4, atol=2e-6)
    depthwise = lambda a, b: tf.nn.depthwise_conv2d(a, b, [1, 2, 2, 1], "SAME")  # noqa: E731
    for multiplier in (1, 3):
        check(depthwise, floats(2, 6, 6, 8), floats(3, 3, 8, multiplier), rtol=1e-4, atol=2e-6)
        check(gradients(depthwise), floats(2, 6, 6, 8), floats(3, 3, 8, multiplier), rtol=1e-4, atol=1e-5)


def test_transposed_convolution():
    fn = lambda a, b: tf.nn.conv2d_transpose(a, b, (2, 12, 10, 6), 2, "SAME")  # noqa: E731
    check(fn, floats(2, 6, 5, 4), floats(3, 3, 6, 4), rtol=1e-4, atol=2e-6)
    check(gradients(fn), floats(2, 6, 5, 4), floats(3, 3, 6, 4), rtol=1e-4, atol=1e-5)


def test_half_convolution():
    check(
        lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"),
        floats(2, 5, 5, 4).astype(np.float16), floats(3, 3, 4, 6).astype(np.float16), rtol=3e-3, atol=3e-3,
    )  # fmt: skip
