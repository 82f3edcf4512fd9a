"""tf_keras (Keras 2) models made in the scope train, evaluate and predict on the device as they do without it."""

import numpy as np
import pytest
import tensorflow as tf

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

import ipu_keras  # noqa: E402
from ipu_keras import IPUStrategy, errors  # noqa: E402
from tests.sweep import in_turns  # noqa: E402

RNG = np.random.default_rng(3)
X = RNG.normal(size=(24, 6, 6, 2)).astype(np.float32)
Y = RNG.integers(0, 3, 24)


def sequential():
    tf_keras.utils.set_random_seed(5)
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)]
    )


def functional():
    tf_keras.utils.set_random_seed(5)
    inputs = tf_keras.Input((6, 6, 2))
    h = tf_keras.layers.Flatten()(inputs)
    h = tf_keras.layers.LayerNormalization()(tf_keras.layers.Dense(8, "gelu")(h))
    return tf_keras.Model(inputs, tf_keras.layers.Dense(3)(h))


class Subclass(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.two = tf_keras.layers.Dense(5, "tanh"), tf_keras.layers.Dense(3)

    def call(self, x):
        return self.two(self.one(tf.reshape(x, (-1, 72))))


def subclass():
    tf_keras.utils.set_random_seed(5)
    return Subclass()


def trained(make, **options):
    model = make()
    model.build((None, 6, 6, 2)) if make is not functional else None
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"], **options)
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(X[:8], Y[:8]))
    return (
        model,
        history.history,
        model.evaluate(X, Y, batch_size=8, verbose=0),
        model.predict(X, batch_size=8, verbose=0),
    )


@pytest.mark.parametrize("make", in_turns([sequential, functional, subclass], 3, always=[functional]))
def test_as_without_the_scope(make):
    before = ipu_keras.executions()
    with IPUStrategy().scope():
        model, history, evaluation, prediction = trained(make, steps_per_execution=1)
    assert ipu_keras.executions() - before == 2 * (3 + 1) + 3 + 3
    _, plain, plain_evaluation, plain_prediction = trained(make, jit_compile=True)
    assert history.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(evaluation, plain_evaluation, rtol=2e-4)
    np.testing.assert_allclose(prediction, plain_prediction, rtol=1e-3, atol=1e-4)
    assert model.optimizer.iterations.numpy() == 6


def test_steps_per_execution_and_the_layers_names():
    before = ipu_keras.executions()
    with IPUStrategy().scope():
        model, history, _, _ = trained(sequential, steps_per_execution=3)
    assert ipu_keras.executions() - before == 2 * (1 + 1) + 1 + 1
    _, plain, _, _ = trained(sequential, jit_compile=True)
    np.testing.assert_allclose(history["loss"], plain["loss"], rtol=2e-4)
    labels = " ".join(model.train_function.session.latest.executable.program.header["labels"])
    assert "sequential/conv2d" in labels or "/conv2d" in labels


def test_a_partial_batch_is_refused_with_the_way_out():
    with IPUStrategy().scope():
        model = sequential()
        model.compile("sgd", "mse")
    before = ipu_keras.executions()
    with pytest.raises(errors.DataError, match="20"):
        model.fit(X[:20], np.zeros((20, 3)), batch_size=8, verbose=0)
    assert ipu_keras.executions() == before  # nothing was trained
    ragged = tf.data.Dataset.from_generator(
        lambda: iter([X[:8], X[:4]]), output_signature=tf.TensorSpec((None, 6, 6, 2))
    )
    with pytest.raises(errors.DataError, match="drop_remainder"):
        model.predict(ragged, verbose=0)


def test_models_outside_stay_plain_and_files_stay_the_same(tmp_path):
    with IPUStrategy().scope():
        inside, _, _, prediction = trained(functional)
    assert type(functional()).__mro__[1].__name__ != "Keras2Model"
    inside.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    before = ipu_keras.executions()
    np.testing.assert_allclose(loaded.predict(X, batch_size=8, verbose=0), prediction, rtol=1e-3, atol=1e-4)
    assert ipu_keras.executions() == before
