"""Element-wise operations and their fusion, against XLA on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import assert_close, check

SHAPES = [(), (1,), (0,), (7,), (13, 5), (3, 1, 4), (1473,), (64, 100)]
rng = np.random.default_rng(0)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chain_over_shapes(shape):
    check(lambda x, y: tf.tanh(x * y + 1.5) / (1.0 + tf.exp(-y)), floats(*shape), floats(*shape))


UNARY = {
    "abs": tf.abs, "neg": tf.negative, "sign": tf.sign, "ceil": tf.math.ceil, "floor": tf.math.floor,
    "round": tf.round, "exp": tf.exp, "expm1": tf.math.expm1, "log": tf.math.log, "log1p": tf.math.log1p,
    "sqrt": tf.sqrt, "rsqrt": tf.math.rsqrt, "sin": tf.sin, "cos": tf.cos, "tan": tf.tan, "tanh": tf.tanh,
    "sigmoid": tf.sigmoid, "erf": tf.math.erf, "finite": tf.math.is_finite, "relu": tf.nn.relu, "gelu": tf.nn.gelu,
    "softplus": tf.math.softplus,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 3.3e38, 0.5], np.float32)
    check(UNARY[name], np.concatenate([special, floats(50) * 3]), rtol=3e-6)


BINARY = [tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum, tf.math.floordiv, tf.math.floormod]


@pytest.mark.parametrize("fn", BINARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8", "u4", "f2"])
def test_binary(fn, dtype):
    if dtype[0] == "f":
        x, y = (rng.normal(size=40) * 5).astype(dtype), (rng.normal(size=40) * 3).astype(dtype)
    else:
        top = np.iinfo(dtype).max
        x = rng.integers(0, top, 40).astype(dtype)
        y = rng.integers(1, 1000, 40).astype(dtype)
    check(fn, x, y, rtol=1e-3 if dtype == "f2" else 1e-6)


def test_64_bit_integers_are_exact():
    x, y = rng.integers(-(2**62), 2**62, 33), rng.integers(-(2**62), 2**62, 33)
    check(
        lambda a, b: (
            a * b, a + b, tf.bitwise.bitwise_xor(a, b), tf.bitwise.right_shift(a, 7 + 0 * a), a // 7, a % 13, a < b,
            tf.cast(a, tf.float32), tf.cast(a, tf.int32),
        ),
        x, y,
    )  # fmt: skip


def test_every_dtype_passes_through():
    for dtype in ("?", "i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4"):
        x = rng.integers(0, 2, 37).astype(dtype)
        check(lambda v: tf.where(tf.cast(v, tf.bool), v, tf.zeros_like(v)), x)


@pytest.mark.parametrize(
    ("a", "b"), [((64, 96), (96,)), ((64, 96), (64, 1)), ((4, 6, 8), (6, 1)), ((5,), ()), ((2, 3, 4, 5), (3, 1, 5))]
)
def test_broadcast_operands(a, b):
    check(lambda x, y: (x + y) * tf.exp(-y), floats(*a), floats(*b))


def test_chain_longer_than_one_vertex_may_be():
    def long(x):
        for i in range(300):
            x = x * 0.999 + float(i % 7)
        return x

    check(long, floats(9, 9), rtol=1e-5)


def test_results_used_twice_and_returned_inside_a_chain():
    def fn(x):
        a = tf.exp(x)
        b = a * 2.0
        c = b + a
        return a, c, tf.cast(c > 1.0, tf.int32), b

    check(fn, floats(70, 3))


def test_the_comparison_itself_fails_on_nan():
    x = floats(20)
    x[3] = np.nan
    with pytest.raises(AssertionError):
        assert_close(x, np.nan_to_num(x))
