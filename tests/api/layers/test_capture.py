"""Gradients recorded on their way back, on the tiles and by a tape on the host, and what ALSOptimizer makes of them."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras import layers
from ipu_keras.keras.optimizers import ALSOptimizer
from ipu_keras.ops._capture import GradientCaptureContext, GradientCaptureTape
from ipu_keras.ops.grad_util_ops import capture_upstream_gradients

RNG = np.random.default_rng(2)
X = RNG.normal(size=(3, 4)).astype(np.float32)


def test_upstream_gradients_in_the_innermost_context_on_the_tiles():
    def f(x):
        with GradientCaptureContext() as outer, tf.GradientTape() as tape:
            tape.watch(x)
            a = capture_upstream_gradients({"square": x * x, "cube": x * x * x}, tag="powers")
            with GradientCaptureContext() as inner:
                b = capture_upstream_gradients(tf.tanh(a["square"]), tag="tanh")
            loss = tf.reduce_sum(3 * b + 5 * a["cube"])
        slope = tape.gradient(loss, x)
        assert list(inner.captured_gradients) == ["tanh"] and list(outer.captured_gradients) == ["powers"]
        return slope, dict(inner.captured_gradients), dict(outer.captured_gradients)

    slope, inner, outer = IPUStrategy().run(tf.function(f), (X,))
    x = X.astype(np.float64)
    back = 3 * (1 - np.tanh(x * x) ** 2)
    np.testing.assert_allclose(inner["tanh"], np.full(X.shape, 3))
    np.testing.assert_allclose(outer["powers"]["square"], back, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outer["powers"]["cube"], np.full(X.shape, 5))
    np.testing.assert_allclose(slope, back * 2 * x + 15 * x * x, rtol=1e-4, atol=1e-4)


def test_the_tape_captures_and_nobody_else_writes():
    w = tf.Variable(X)
    with GradientCaptureTape(persistent=True) as tape:
        loss = tf.reduce_sum(capture_upstream_gradients(w * 2, tag="w") * X)
    np.testing.assert_allclose(tape.gradient(loss, w), 2 * X)
    np.testing.assert_allclose(tape.captured_gradients["w"], X)
    with pytest.raises(TypeError):
        tape.captured_gradients["w"] = 0


def test_a_loop_keeps_its_gradients_to_itself():
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, capture_upstream_gradients(y * 2, tag="y")),
                (0, x),
                maximum_iterations=3,
            )[1]
        return tape.gradient(y, x)

    with pytest.raises(NotImplementedError, match="loop"):
        IPUStrategy().run(tf.function(f), (X,))


def _captured(layer, x):
    """(outputs, gradients by tag) of a sum of squares, and the gradients of the layer's weights."""
    layer(x)

    def f(x):
        with GradientCaptureTape() as tape:
            outputs = layer(x)
            loss = tf.reduce_sum(outputs**2)
        slopes = tape.gradient(loss, [w.value for w in layer.trainable_weights])
        return outputs, dict(tape.captured_gradients), slopes

    return tf.nest.map_structure(np.asarray, IPUStrategy().run(tf.function(f), (x,)))


def test_upstream_layer():
    inner = keras.layers.Dense(2, activation="tanh", name="hidden")
    layer = layers.CaptureUpstreamGradients(inner)
    outputs, captured, slopes = _captured(layer, X)
    assert layer.tag == "hidden_cug" and layer.layer is inner and layer.weights == inner.weights
    np.testing.assert_allclose(outputs, np.tanh(X @ inner.kernel.numpy().astype(np.float64)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(captured["hidden_cug"], 2 * outputs, rtol=1e-5)
    back = 2 * outputs * (1 - outputs**2)
    np.testing.assert_allclose(slopes[0], X.T @ back, rtol=1e-4, atol=1e-5)


def test_activation_layer():
    inner = keras.layers.Dense(2, activation="relu", bias_initializer="ones", name="hidden")
    layer = layers.CaptureActivationGradients(inner, tag="mark")
    outputs, captured, slopes = _captured(layer, X)
    assert layer.layer is not inner and len(layer.weights) == 2
    before = X @ layer.layer.kernel.numpy().astype(np.float64) + 1
    np.testing.assert_allclose(outputs, np.maximum(before, 0), rtol=1e-4, atol=1e-5)
    assert list(captured) == ["mark_activation"]
    np.testing.assert_allclose(captured["mark_activation"], 2 * outputs, rtol=1e-5)
    np.testing.assert_allclose(slopes[0], X.T @ (2 * np.maximum(before, 0)), rtol=1e-4, atol=1e-4)
    assert layers.CaptureActivationGradients(inner).tag == "hidden_cag"
    attention = layers.CaptureActivationGradients.layer_is_supported(keras.layers.MultiHeadAttention(2, 2))
    assert not attention and layers.CaptureActivationGradients.layer_is_supported(inner)
    with pytest.raises(ValueError, match="no activation"):
        layers.CaptureActivationGradients(keras.layers.Flatten())
    with pytest.raises(NotImplementedError, match="loop"):
        layers.CaptureActivationGradients(layers.LSTM(2))


def test_training_is_left_out_where_it_is_not_known():
    class Plain(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2

    with pytest.warns(UserWarning, match="training"):
        layers.CaptureUpstreamGradients(Plain())(X, training=True)
    drop = layers.CaptureUpstreamGradients(layers.Dropout(0.5, seed=[1, 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (np.asarray(drop(X, training=True)) == 0).any() and (np.asarray(drop(X)) == X).all()


@pytest.mark.parametrize("only", [True, False])
def test_fit_counts_captured_gradients_and_the_model_can_be_saved(only, tmp_path):
    x, y = RNG.normal(size=(16, 4)).astype(np.float16), RNG.normal(size=(16, 2)).astype(np.float16)
    with IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        hidden = layers.CaptureActivationGradients(keras.layers.Dense(8, "tanh", dtype="float16"), dtype="float16")
        last = layers.CaptureUpstreamGradients(keras.layers.Dense(2, dtype="float16"), dtype="float16")
        model = keras.Sequential([keras.Input((4,), dtype="float16"), hidden, last])
        model.compile(ALSOptimizer(keras.optimizers.SGD(0.1), captured_grads_only=only), "mse")
    before = model.get_weights()
    model.fit(x, y, batch_size=8, verbose=0)
    assert all((a != b).any() for a, b in zip(before[::2], model.get_weights()[::2], strict=True))
    weights = 0 if only else 4 * 8 + 8 + 8 * 2 + 2
    np.testing.assert_array_equal(model.optimizer.histogram, [2 * (8 * 8 + 8 * 2 + weights), 0])
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert [layer.tag for layer in loaded.layers] == [hidden.tag, last.tag]
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0, batch_size=8), atol=2e-3)
