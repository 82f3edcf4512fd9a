"""Keras's take_along_axis where it asks for whole rows: the same values and gradients, few pieces on the tiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from ipu_keras import IPUStrategy, analyse
from ipu_runtime.program import EXCHANGE
from tests.keras.helpers import assert_same_weights, pair

rng = np.random.default_rng(8)


class Take(keras.layers.Layer):
    """A row of features for each position; what a head for masked words does."""

    def __init__(self, axis=1, **kwargs):
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, x, at):
        return ops.take_along_axis(x, at, self.axis)


SHAPES = {
    "rows": ((6, 5), (3, 1), 1),
    "rows from the end": ((6, 5), (3, 1), -2),
    "blocks": ((6, 2, 5), (4, 1, 1), 1),
    "rows of rows": ((3, 6, 5), (3, 2, 1), 2),
    "elements": ((6, 5), (6, 2), 2),
    "elements, each by its own": ((6, 5), (3, 5), 1),
    "broadcast in front": ((3, 6, 5), (1, 2, 1), 2),
}


@pytest.mark.sweep(turns=3)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", SHAPES)
def test_takes_what_keras_takes(name, dtype):
    data, at, axis = SHAPES[name]

    def make():
        keras.utils.set_random_seed(1)
        x, places = keras.Input(data), keras.Input(at, dtype=dtype)
        model = keras.Model([x, places], Take(axis)(keras.layers.Dense(data[-1])(x), places))
        model.compile("sgd", "mse", jit_compile=True)
        return model

    ours, plain = pair(make)
    n = data[axis - 1 if axis > 0 else axis]
    x = rng.normal(size=(4, *data)).astype(np.float32)
    # Negative places count from the end.
    places = rng.integers(-n, n, (4, *at)).astype(dtype)
    found, want = (model.predict([x, places], batch_size=4, verbose=0) for model in (ours, plain))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    y = rng.normal(size=plain.output_shape[1:]).astype(np.float32)[None].repeat(4, 0)
    losses = [m.fit([x, places], y, epochs=2, batch_size=4, verbose=0).history["loss"] for m in (ours, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_same_weights(ours, plain)


def test_masked_words_of_a_batch():
    """Element by element this is an exchange of 7 million copies, which no program can hold."""
    with IPUStrategy(execute=False).scope():
        x, places = keras.Input((128, 768)), keras.Input((20, 1), dtype="int32")
        model = keras.Model([x, places], Take()(keras.layers.EinsumDense("btf,f->btf", (None, 768))(x), places))
        model.compile("sgd", "mse")
    spec = ((tf.TensorSpec((40, 128, 768)), tf.TensorSpec((40, 20, 1), tf.int32)), tf.TensorSpec((40, 20, 768)))
    profile = analyse(model, "train", spec).profile()
    # 800 rows of 768 fp32 values are 2.4 MB: each is moved a few times, not copied for each of its elements.
    moved = sum(step.bytes_moved for step in profile.steps if step.kind == EXCHANGE)
    assert moved < 10 * 40 * 128 * 768 * 4
