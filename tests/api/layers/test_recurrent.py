"""LSTM and GRU on the tiles against Keras's own layers with the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.keras import layers
from ipu_keras.ops import nn_ops
from tests.api.layers.device import fit_both, same, step

RNG = np.random.default_rng(8)
X = RNG.normal(size=(2, 6, 3)).astype(np.float32)


def _pair(kind, units=4, **kwargs):
    """Our layer and Keras's, with the same random weights."""
    ours, theirs = getattr(layers, kind)(units, **kwargs), None
    kwargs.pop("time_major", None)
    known = {"hard_sigmoid": nn_ops.hard_sigmoid}
    renamed = {k: known.get(v, v) if isinstance(v, str) else v for k, v in kwargs.items()}
    theirs = getattr(keras.layers, kind)(units, **renamed)
    theirs(X)
    values = [RNG.normal(size=w.shape).astype(np.float32) * 0.7 for w in theirs.weights]
    theirs.set_weights(values)
    return ours, theirs, values


CASES = {
    "LSTM": ("LSTM", {}),
    "LSTM, all": ("LSTM", {"return_sequences": True, "return_state": True}),
    "LSTM, functions": ("LSTM", {"activation": "softmax", "recurrent_activation": "hard_sigmoid"}),
    "LSTM, relu": ("LSTM", {"activation": "relu", "return_sequences": True}),
    "GRU": ("GRU", {}),
    "GRU, all": ("GRU", {"return_sequences": True, "return_state": True}),
    "GRU, reset before": ("GRU", {"reset_after": False, "return_sequences": True}),
    "GRU, functions": ("GRU", {"activation": "relu", "recurrent_activation": "tanh"}),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_keras(name):
    kind, arguments = CASES[name]
    ours, theirs, values = _pair(kind, **arguments)
    ours(X)
    ours.set_weights(values)
    same(step(ours, ours.weights, X), step(theirs, theirs.weights, X, host=True))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_time_major_and_initial_states(kind):
    ours, theirs, values = _pair(kind, time_major=True, return_sequences=True, return_state=True)
    first = [RNG.normal(size=(2, 4)).astype(np.float32) for _ in range(2 if kind == "LSTM" else 1)]
    turned = np.ascontiguousarray(X.transpose(1, 0, 2))
    ours(turned)
    ours.set_weights(values)

    def call(layer):
        return lambda x, *states: layer(x, initial_state=list(states))

    (output, *last), to_inputs, to_weights = step(call(ours), ours.weights, turned, *first)
    expected = step(call(theirs), theirs.weights, X, *first, host=True)
    same((output.transpose(1, 0, 2), last), expected[0])
    # The wave lies along the output's own order, so gradients agree where the order does not matter: the states'.
    only = step(lambda x, *s: call(ours)(x, *s)[1:], ours.weights, turned, *first)
    only_keras = step(lambda x, *s: call(theirs)(x, *s)[1:], theirs.weights, X, *first, host=True)
    same((only[1][0].transpose(1, 0, 2), only[1][1:], only[2]), only_keras[1:])
    assert len(to_inputs) == 1 + len(first) and len(to_weights) == 3


def test_weights_have_the_documented_names_and_starts():
    lstm, gru, old = layers.PopnnLSTM(4, seed=3), layers.PopnnGRU(4), layers.PopnnGRU(4, reset_after=False)
    for layer in (lstm, gru, old):
        layer.build((2, 6, 3))
    shapes = {w.name: tuple(w.shape) for w in lstm.weights}
    assert shapes == {"kernel": (3, 16), "recurrent_kernel": (4, 16), "biases": (16,)}
    assert tuple(gru.biases.shape) == (2, 12) and tuple(old.biases.shape) == (12,)
    np.testing.assert_array_equal(lstm.biases, [0] * 4 + [1] * 4 + [0] * 8)
    plain = layers.LSTM(4, unit_forget_bias=False, seed=3)
    plain.build((2, 6, 3))
    np.testing.assert_array_equal(plain.biases, np.zeros(16))
    np.testing.assert_array_equal(plain.kernel, lstm.kernel)
    assert layers.LSTM is layers.PopnnLSTM and layers.GRU is layers.PopnnGRU


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_dropout_has_one_mask_for_all_times(kind):
    ours, _, values = _pair(kind, dropout=0.5, return_sequences=True)
    ones = np.ones((2, 5, 3), np.float32)
    ours(ones)
    ours.set_weights(values)
    ours.dropout_seed = [3, 4]
    outputs, (to_inputs,), _ = step(lambda x: ours(x, training=True), ours.weights, ones)
    dropped = to_inputs == 0
    assert dropped.any() and not dropped.all() and (dropped == dropped[:, :1]).all()
    again, _, _ = step(lambda x: ours(x, training=True), ours.weights, ones)
    same(outputs, again, 0, 0)
    masked = np.where(dropped, 0, ones * 2)
    same(outputs, step(ours, ours.weights, masked.astype(np.float32))[0])


def test_a_stateful_layer_goes_on_where_it_was():
    whole, parts = layers.LSTM(4, return_sequences=True), layers.LSTM(4, return_sequences=True, stateful=True)
    whole(X), parts(X)
    parts.set_weights([*whole.get_weights(), *[np.zeros((2, 4), np.float32)] * 2])
    expected = step(whole, whole.trainable_weights, X)[0]
    found = [step(parts, parts.trainable_weights, X[:, i : i + 3])[0] for i in (0, 3)]
    same(np.concatenate(found, 1), expected)
    parts.reset_states()
    same(step(parts, parts.trainable_weights, X[:, :3])[0], expected[:, :3])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_two_layers_in_fit(kind, tmp_path):
    x, y = RNG.normal(size=(16, 6, 3)).astype(np.float32), RNG.normal(size=(16, 4)).astype(np.float32)

    def make():
        keras.utils.set_random_seed(4)
        layer = getattr(layers, kind)
        model = keras.Sequential([keras.Input((6, 3)), layer(5, return_sequences=True), layer(4)])
        model.compile("adam", "mse")
        return model

    model = fit_both(make, x, y, tmp_path)
    weights = model.get_weights()
    reference = keras.Sequential(
        [keras.Input((6, 3)), getattr(keras.layers, kind)(5, return_sequences=True), getattr(keras.layers, kind)(4)]
    )
    reference.set_weights(weights)
    same(model.predict(x, batch_size=8, verbose=0), reference.predict(x, verbose=0))


def test_half_precision():
    ours, theirs, values = _pair("LSTM", dtype="float16")
    ours(X)
    ours.set_weights(values)
    outputs, _, to_weights = step(ours, ours.weights, X.astype(np.float16))
    assert outputs.dtype == np.float16 and all(g.dtype == np.float16 for g in to_weights)
    reference, _, slopes = step(theirs, theirs.weights, X.astype(np.float16), host=True)
    same((outputs, to_weights), (reference, slopes), 3e-2, 3e-2)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_refusals(kind):
    make = getattr(layers, kind)
    refused = {
        "use_bias": False,
        "recurrent_dropout": 0.1,
        "go_backwards": True,
        "unroll": True,
        "kernel_regularizer": "l2",
        "bias_constraint": "non_neg",
        "activation": "elu",
        "recurrent_activation": "relu",
    }
    for name, value in refused.items():
        with pytest.raises(ValueError, match=name):
            make(3, **{name: value})
    make(3, recurrent_dropout=0.0, go_backwards=False, unroll=False, kernel_regularizer=None, activation=keras.ops.tanh)
    with pytest.raises(TypeError, match="options"):
        make(3, options="availableMemoryProportion=0.1")
    with pytest.raises(ValueError, match="mask"):
        make(3)(X, mask=tf.ones((2, 6), tf.bool))
    with pytest.raises(ValueError, match="number of times"):
        make(3)(keras.Input((None, 3)))
    with pytest.raises(ValueError, match="initial_state"):
        make(3)(X, initial_state=[tf.zeros((2, 3))] * 3)
