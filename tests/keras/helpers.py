"""Small models and data for the tests of the Keras side, and the comparison with plain Keras."""

from __future__ import annotations

import keras
import numpy as np

from ipu_keras import IPUStrategy


def make_data(samples=32, features=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, features)).astype(np.float32), rng.integers(0, classes, samples)


def mlp(seed=3, optimizer="adam", compile_model=True, dropout=0.0, norm=True, **kwargs):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((5,)), keras.layers.Dense(7, activation="relu")]
    if norm:
        layers.append(keras.layers.BatchNormalization())
    if dropout:
        layers.append(keras.layers.Dropout(dropout, seed=11))
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    if compile_model:
        compile_mlp(model, optimizer, **kwargs)
    return model


def compile_mlp(model, optimizer="adam", **kwargs):
    kwargs.setdefault("jit_compile", True)
    kwargs.setdefault("metrics", ["accuracy"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **kwargs)


def pair(make=mlp, strategy=None, **kwargs):
    """The same model in the scope and outside it.

    Only XLA draws the same dropout masks; without dropout the plain model is left to TensorFlow, which compiles sooner.
    """
    with (strategy or IPUStrategy()).scope():
        inside = make(**kwargs)
    outside = make(**kwargs)
    outside.set_weights(inside.get_weights())
    if not kwargs.get("dropout"):
        outside.jit_compile = False
    return inside, outside


def assert_same_weights(a, b, rtol=1e-4, atol=1e-6):
    for va, vb in zip(a.weights, b.weights, strict=True):
        x, y = np.asarray(va), np.asarray(vb)
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=va.path)
        else:
            np.testing.assert_array_equal(x, y, err_msg=va.path)


def assert_same_logs(a, b, rtol=1e-5, atol=1e-6):
    assert list(a) == list(b)
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=rtol, atol=atol, err_msg=key)
