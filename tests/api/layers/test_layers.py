"""Dropout, Embedding, normalizations, SerialDense, CTCLoss and the marks, against NumPy and Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras import layers
from ipu_keras.keras.optimizers import AdamIpuOptimizer
from ipu_keras.ops import _seeds
from tests.api.layers.device import fit_both, same, step

RNG = np.random.default_rng(6)


def _normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def _rebuilt(layer):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(copy) is type(layer) and copy.get_config() == layer.get_config()
    return copy


# --- dropout ------------------------------------------------------------------------------------------------------


def test_dropout_in_training_alone():
    x = np.ones((6, 40), np.float32)
    seeded = _rebuilt(layers.Dropout(0.25, seed=np.array([1, 2], np.int32)))
    outputs, (slopes,), _ = step(lambda x: seeded(x, training=True), [], x)
    assert 0.1 < (outputs == 0).mean() < 0.4
    same(outputs[outputs != 0], np.full((outputs != 0).sum(), 4 / 3))
    assert ((slopes == 0) == (outputs == 0)).all()
    same(step(lambda x: seeded(x, training=True), [], x)[0], outputs, 0, 0)
    same(step(seeded, [], x)[0], x, 0, 0)
    rows = layers.Dropout(0.5, noise_shape=(None, 1), seed=[3, 1])
    masked = step(lambda x: rows(x, training=True), [], x)[0]
    assert (masked == masked[:, :1]).all() and len(np.unique(masked)) == 2
    for arguments in ({"rate": 1.0}, {"rate": -1}, {"rate": 0.5, "seed": 3}, {"rate": 0.5, "seed": [1, 2, 3]}):
        with pytest.raises(ValueError, match="Dropout"):
            layers.Dropout(**arguments)


def test_dropout_without_a_seed_has_a_new_mask_each_step_of_a_fit():
    """The layer's outputs are the model's loss, step by step, so that the masks of a fit are seen."""
    x, y = np.ones((24, 50), np.float32), np.zeros((24, 50), np.float32)

    def shares(seed):
        _seeds.reset(seed)
        with IPUStrategy().scope():
            model = keras.Sequential([keras.Input((50,)), layers.Dropout(0.5), keras.layers.Dense(50, use_bias=False)])
            model.compile(keras.optimizers.SGD(0.0), "mae", steps_per_execution=1)
        model.layers[-1].set_weights([np.eye(50, dtype=np.float32)])
        seen = []
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append(logs["loss"]))
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
        return seen

    first = shares(5)
    assert len(set(first)) > 4 and all(0.7 < s < 1.3 for s in first)
    assert shares(5) == first and shares(6) != first


# --- embedding ----------------------------------------------------------------------------------------------------


def test_embedding_rows_and_dense_gradients():
    layer = _rebuilt(layers.Embedding(8, 3, serialization_factor=4))
    ids = np.array([[1, 7, 1], [0, 1, 2]], np.int32)
    layer(ids)
    outputs, _, (slopes,) = step(layer, layer.weights, ids)
    table = np.asarray(layer.embeddings)
    assert layer.weights[0].name == "embeddings"
    same(outputs, table[ids], 0, 0)
    expected = np.zeros((8, 3))
    np.add.at(expected, ids.ravel(), np.cos(np.arange(18.0)).reshape(6, 3))
    same(slopes, expected)
    same(step(layer, layer.weights, ids.astype(np.float32))[0], table[ids], 0, 0)


def test_embedding_refuses():
    for name, value in (
        ("embeddings_regularizer", "l2"),
        ("activity_regularizer", "l2"),
        ("embeddings_constraint", "non_neg"),
        ("mask_zero", True),
        ("input_length", 3),
    ):
        with pytest.raises(NotImplementedError, match=name):
            layers.Embedding(4, 2, **{name: value})
    for factor in (0, 3):
        with pytest.raises(ValueError, match="serialization_factor"):
            layers.Embedding(4, 2, serialization_factor=factor)
    with pytest.raises(ValueError, match="rank"):
        layers.Embedding(4, 2)(np.zeros(3, np.int32))


def test_embedding_in_fit_with_an_optimizer_that_takes_dense_gradients(tmp_path):
    x, y = RNG.integers(0, 6, (16, 3)).astype(np.int32), _normal(16, 2)

    def make():
        keras.utils.set_random_seed(1)
        parts = [layers.Embedding(6, 4), layers.LayerNorm(), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((3,), dtype="int32"), *parts])
        model.compile(AdamIpuOptimizer(0.01, epsilon=1e-3), "mse")
        return model

    fit_both(make, x, y, tmp_path)


# --- normalization ------------------------------------------------------------------------------------------------


def _grouped(x, groups, axis, strided, gamma, beta, epsilon=1e-3):
    """The definition, a group at a time."""
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    out, channels = np.empty_like(x), np.arange(x.shape[-1])
    group = channels % groups if strided else channels // (x.shape[-1] // groups)
    for b in range(x.shape[0]):
        for g in range(groups):
            part = x[b][..., group == g]
            out[b][..., group == g] = (part - part.mean()) / np.sqrt(part.var() + epsilon)
    return np.moveaxis(out * gamma + beta, -1, axis)


@pytest.mark.parametrize("shape, axis", [((2, 5, 4, 6), -1), ((2, 6, 4, 5), 1), ((3, 6), 1), ((2, 4, 6), 2)])
@pytest.mark.parametrize("strided", [True, False])
def test_group_normalization(shape, axis, strided):
    layer = _rebuilt(layers.GroupNormalization(3, axis, strided_channel_grouping=strided))
    x, gamma, beta = _normal(*shape) * 3 + 1, _normal(6), _normal(6)
    layer(x)
    layer.set_weights([gamma, beta])
    outputs, slopes, to_weights = step(layer, layer.weights, x)
    same(outputs, _grouped(x, 3, axis, strided, gamma, beta), 1e-3, 1e-4)
    if not strided:
        theirs = keras.layers.GroupNormalization(3, axis=axis, epsilon=1e-3)
        theirs(x)
        theirs.set_weights([gamma, beta])
        same((slopes, to_weights), step(theirs, theirs.weights, x, host=True)[1:], 1e-3, 1e-3)
    else:  # the same with the channels in the other order
        order = np.argsort(np.arange(6) % 3, kind="stable")
        plain = layers.GroupNormalization(3, axis, strided_channel_grouping=False)
        turned = np.take(x, order, axis)
        plain(turned)
        plain.set_weights([gamma[order], beta[order]])
        same(np.take(outputs, order, axis), step(plain, plain.weights, turned)[0], 1e-4, 1e-5)


def test_instance_normalization_and_missing_parts():
    x = _normal(2, 5, 4, 6) * 2 - 1
    layer = _rebuilt(layers.InstanceNormalization(center=False, scale=False, epsilon=1e-2))
    layer(x)
    assert not layer.weights and layers.InstanceNorm is layers.InstanceNormalization
    wide = x.astype(np.float64)
    mean, var = wide.mean((1, 2), keepdims=True), wide.var((1, 2), keepdims=True)
    same(step(layer, [], x)[0], (wide - mean) / np.sqrt(var + 1e-2), 1e-3, 1e-4)
    started = layers.GroupNorm(gamma_initializer=keras.initializers.Constant(3), beta_initializer="ones")
    started(x)
    same([np.asarray(w) for w in started.weights], [np.full(6, 3.0), np.ones(6)])
    for arguments in ({"groups": 7}, {"groups": 4}, {"groups": 0}, {"channels_axis": 2}):
        with pytest.raises(ValueError, match=r"groups|channels_axis"):
            layers.GroupNormalization(**arguments)(x)


@pytest.mark.parametrize("axis", [-1, [1, 2], [-1, 1], 2])
def test_layer_normalization(axis):
    x = _normal(2, 4, 3, 5) * 2 + 1
    axes = sorted(a % 4 for a in (axis if isinstance(axis, list) else [axis]))
    layer = _rebuilt(layers.LayerNormalization(axis))
    layer(x)
    shape = [x.shape[a] for a in axes]
    gamma, beta = _normal(*shape), _normal(*shape)
    layer.set_weights([gamma, beta])
    wide = x.astype(np.float64)
    mean, var = wide.mean(tuple(axes), keepdims=True), wide.var(tuple(axes), keepdims=True)
    broadcast = [x.shape[a] if a in axes else 1 for a in range(4)]
    expected = (wide - mean) / np.sqrt(var + 1e-3) * gamma.reshape(broadcast) + beta.reshape(broadcast)
    result = step(layer, layer.weights, x)
    same(result[0], expected, 1e-3, 1e-4)
    if axis == -1:
        theirs = keras.layers.LayerNormalization(epsilon=1e-3)
        theirs(x)
        theirs.set_weights([gamma, beta])
        same(result, step(theirs, theirs.weights, x, host=True), 1e-3, 1e-3)


def test_normalization_of_half_precision_computes_in_single():
    x = (RNG.normal(size=(2, 64)) * 300).astype(np.float16)  # the squares do not fit float16
    layer = layers.LayerNormalization(dtype="float16")
    layer(x)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    outputs, (slopes,), _ = step(layer, layer.weights, x)
    assert outputs.dtype == slopes.dtype == np.float16
    same(outputs, expected, 3e-3, 3e-3)
    # Of the sum that `step` takes: by the definition, in float64, with an epsilon that does not matter here.
    theirs = layers.LayerNormalization()
    theirs(wide)
    same(slopes.astype(np.float32), step(theirs, theirs.weights, wide.astype(np.float32))[1][0], 0, 2e-5)


def test_layer_normalization_refuses():
    for name in ("beta_regularizer", "gamma_regularizer", "beta_constraint", "gamma_constraint"):
        with pytest.raises(NotImplementedError, match=name):
            layers.LayerNormalization(**{name: "l2"})
    with pytest.raises(ValueError, match="must be known"):
        layers.LayerNormalization()(keras.Input((None, 4)))
    with pytest.raises(ValueError, match="axis"):
        layers.LayerNormalization(axis=[1, -1])(_normal(2, 4))


# --- products, losses, marks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", ["input_columns", "input_rows_kernel_columns", "kernel_rows"])
def test_serial_dense(dimension):
    x = _normal(4, 6)
    layer = _rebuilt(layers.SerialDense(8, 2, dimension, activation="tanh", bias_initializer="ones"))
    theirs = keras.layers.Dense(8, activation="tanh")
    layer(x), theirs(x)
    theirs.set_weights(layer.get_weights())
    same(step(layer, layer.weights, x), step(theirs, theirs.weights, x, host=True))
    bare = layers.SerialDense(8, 2, dimension, use_bias=False)
    bare(x)
    same(step(bare, bare.weights, x)[0], x.astype(np.float64) @ np.asarray(bare.kernel))
    with pytest.raises(ValueError, match="divide"):
        layers.SerialDense(8, 5, dimension)(x)
    with pytest.raises(ValueError, match="serialization_dimension"):
        layers.SerialDense(8, 2, "columns")


@pytest.mark.parametrize("from_logits", [True, False])
def test_ctc_loss_layer(from_logits):
    labels, lengths, times = np.array([[1, 2], [3, 0]], np.int32), np.int32([2, 1]), np.int32([6, 5])
    data = _normal(6, 2, 4)
    layer = _rebuilt(layers.CTCLoss(blank_index=0, from_logits=from_logits))

    def ours(data):
        return layer(labels, data if from_logits else tf.nn.log_softmax(data), lengths, times)

    def theirs(data):
        return tf.reduce_mean(tf.nn.ctc_loss(labels, data, lengths, times, blank_index=0))[None]

    result = step(ours, [], data)
    assert result[0].shape == (1,)
    same(result, step(theirs, [], data, host=True))


@pytest.mark.parametrize("layer", [layers.RecomputationCheckpoint(), layers.AssumeEqualAcrossReplicas(inplace=True)])
def test_marks_change_nothing(layer):
    layer, x = _rebuilt(layer), _normal(3, 4)
    outputs, (slopes,), _ = step(lambda x: layer({"a": x, "b": [x * 2]}), [], x)
    same(outputs, {"a": x, "b": [x * 2]}, 0, 0)
    wave = np.cos(np.arange(12.0)).reshape(3, 4)
    same(slopes, wave * 3)


def test_all_of_them_in_one_model(tmp_path):
    x, y = _normal(16, 6, 4), _normal(16, 2)

    def make():
        keras.utils.set_random_seed(1)
        parts = [
            layers.SerialDense(8, 2, "kernel_rows", activation="relu"),
            layers.GroupNorm(4),
            layers.RecomputationCheckpoint(),
            layers.InstanceNorm(),
            layers.AssumeEqualAcrossReplicas(),
            layers.Dropout(0.0),
            layers.GRU(5, return_sequences=True),
            layers.LayerNorm(axis=[1, 2]),
            layers.LSTM(4),
            keras.layers.Dense(2),
        ]
        model = keras.Sequential([keras.Input((6, 4)), *parts])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    fit_both(make, x, y, tmp_path)
