"""64-bit integers from the host reach the tiles in 32 bits, or not at all."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, errors, hlo

IDS = np.array([[1, 2], [3, 4]])


def module(fn, *specs):
    return tf.function(fn, jit_compile=True).experimental_get_compiler_ir(*specs)(stage="hlo_serialized")


def test_a_feed_takes_half_the_bytes_and_arithmetic_keeps_its_width():
    exe = hlo.compile(module(lambda x: x * x, tf.TensorSpec([3], tf.int64)))
    (feed,) = exe.program.header["feeds"]
    assert (feed["dtype"], feed["host_dtype"]) == ("s32", "s64")
    (square,) = exe.run(np.array([3, -1, 2**31 - 1]))
    np.testing.assert_array_equal(square, np.array([9, 1, (2**31 - 1) ** 2]))
    assert square.dtype == np.int64


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_what_does_not_fit_is_an_error_and_no_wrap(value):
    exe = hlo.compile(module(lambda x: x + 1, tf.TensorSpec([2], tf.int64)))
    with pytest.raises(errors.DataError, match=str(value)):
        exe.run(np.array([0, value]))
    np.testing.assert_array_equal(exe.run(np.array([0, 1]))[0], [1, 2])


def test_unsigned():
    exe = hlo.compile(module(lambda x: x + 1, tf.TensorSpec([2], tf.uint64)))
    np.testing.assert_array_equal(exe.run(np.array([0, 2**32 - 1], np.uint64))[0], np.array([1, 2**32], np.uint64))
    with pytest.raises(errors.DataError):
        exe.run(np.array([0, 2**32], np.uint64))


def test_a_model_says_what_to_do_and_keeps_its_weights():
    with IPUStrategy().scope():
        model = keras.Sequential([keras.layers.Embedding(5, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(IDS, np.zeros(2), batch_size=2, verbose=0)
    before = model.get_weights()
    with pytest.raises(errors.DataError, match="int32"):
        model.fit(IDS + 2**33, np.zeros(2), batch_size=2, verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.fit(IDS, np.zeros(2), batch_size=2, verbose=0)
