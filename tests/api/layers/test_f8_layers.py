"""Layers of 8-bit floats in models on the tiles: numbers by hand, what is trained, saved, refused."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy
from ipu_keras.keras.layers import ConvertFromF8, ConvertToF8, Dense
from ipu_keras.ops.f8_ops import Format, create_metadata

rng = np.random.default_rng(4)
KIND = ml_dtypes.float8_e4m3fnuz


def model(head=False):
    """Casts, multiplies in 8-bit floats, casts back; a trained head if wanted."""
    inputs = keras.Input((12,), batch_size=4, dtype="float16")
    x = ConvertToF8()(inputs, metadata=create_metadata(Format.F143, -2))
    x = Dense(6, kernel_scale=-5, activation="relu", bias_initializer="ones", name="narrow")(x)
    x = ConvertFromF8(dtype="float32")(ConvertToF8()(x, metadata=create_metadata(Format.F143, -1)))
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(x) if head else x)


def rounded(numbers, scale):
    """fp16 numbers as 1.4.3 with a scale, by ml_dtypes, saturated."""
    scaled = np.clip(numbers.astype(np.float64) * 2.0**-scale, -240, 240)
    return scaled.astype(np.float32).astype(KIND).astype(np.float64) * 2.0**scale


def by_hand(x, weights):
    """What `model` computes: 12 channels are one block of the AMP, rounded once."""
    kernel = weights["narrow/kernel_data"].view(KIND).astype(np.float64) * 2.0**-5
    product = (rounded(x, -2) @ kernel).astype(np.float16) + weights["narrow/bias"]
    return rounded(np.maximum(product, 0), -1).astype(np.float32)


def weights_of(net):
    return {w.path: np.asarray(w) for w in net.weights}


def test_predicts_and_is_saved(tmp_path):
    x = rng.normal(size=(8, 12)).astype(np.float16)
    with IPUStrategy(target="c600").scope():
        net = model()
        before = ipu_keras.executions()
        found = net.predict(x, batch_size=4, verbose=0)
        assert ipu_keras.executions() > before
    weights = weights_of(net)
    assert {path: str(w.dtype) for path, w in weights.items()} == {
        "narrow/bias": "float16", "narrow/kernel_data": "uint8", "narrow/kernel_metadata": "uint8",
    }  # fmt: skip
    assert weights["narrow/kernel_metadata"] == create_metadata(Format.F143, -5)
    assert not (weights["narrow/kernel_data"] == 0x80).any()
    np.testing.assert_array_equal(found, by_hand(x, weights))
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(weights_of(loaded)["narrow/kernel_data"], weights["narrow/kernel_data"])
    np.testing.assert_array_equal(loaded.predict(x, batch_size=4, verbose=0), found)


def test_a_head_is_trained_and_the_quarters_are_not():
    x, y = rng.normal(size=(8, 12)).astype(np.float16), rng.normal(size=(8, 2)).astype(np.float32)
    with IPUStrategy(target="c600").scope():
        net = model(head=True)
        net.get_layer("narrow").trainable = False
        net.compile("sgd", "mse")
        before = weights_of(net)
        net.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    after = weights_of(net)
    changed = {path for path in before if (before[path] != after[path]).any()}
    assert changed == {"head/kernel", "head/bias"}
    # The first step by hand, from features that are known.
    kernel, bias = before["head/kernel"].astype(np.float64), before["head/bias"].astype(np.float64)
    for batch in (slice(0, 4), slice(4, 8)):
        features = by_hand(x[batch], before).astype(np.float64)
        error = 2 * (features @ kernel + bias - y[batch]) / y[batch].size
        kernel, bias = kernel - 0.01 * features.T @ error, bias - 0.01 * error.sum(0)
    np.testing.assert_allclose(after["head/kernel"], kernel, rtol=1e-4, atol=1e-5)


def test_dense_of_plain_tensors_is_keras_own():
    x = rng.normal(size=(4, 12)).astype(np.float32)
    layer = Dense(5, use_bias=False)
    found = layer(tf.constant(x))
    assert [w.path.split("/")[-1] for w in layer.weights] == ["kernel"]
    exact = x.astype(np.float64) @ np.asarray(layer.kernel, np.float64)
    # Twelve products of any sign: what is left of their sum may be small, its error is not.
    sizes = np.abs(x) @ np.abs(np.asarray(layer.kernel))
    assert (np.abs(found - exact) <= 12 * np.finfo(np.float32).eps * sizes).all()


def test_rows_of_any_rank_and_a_given_kernel():
    codes = rng.integers(0, 128, (7, 3)).astype(np.uint8)
    layer = Dense(3, kernel_format=Format.F152, kernel_data_initializer=keras.initializers.Constant(codes))
    data = tf.constant(rng.integers(0, 64, (2, 4, 7)).astype(np.uint8))
    found = layer([data, tf.constant(create_metadata(Format.F143), tf.uint8)])
    exact = data.numpy().view(KIND).astype(np.float64) @ codes.view(ml_dtypes.float8_e5m2fnuz).astype(np.float64)
    with np.errstate(over="ignore"):
        exact = exact.astype(np.float16)
    assert found.shape == (2, 4, 3) and found.dtype == tf.float16
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    again = Dense.from_config(layer.get_config())
    assert (again.kernel_format, again.kernel_scale, again.units) == (Format.F152, 0, 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"kernel_scale": 32}, "from -32 to 31"), ({"kernel_format": 3}, "the format is 3")],
)
def test_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        Dense(3, **arguments)


def test_a_regularizer_of_quarters_is_refused():
    layer = Dense(3, kernel_regularizer="l2")
    with pytest.raises(ValueError, match="no regularizer"):
        layer([tf.zeros((2, 4), tf.uint8), tf.zeros((), tf.uint8)])
