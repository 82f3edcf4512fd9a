"""Training on the tiles tracks plain Keras: one step closely, a hundred as closely as Keras tracks itself.

The yardstick for a long run is Keras's own sensitivity: how far it moves from itself when the samples of each batch are
permuted, which changes nothing but the order of sums.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from tests.sweep import in_turns

BATCH = 32


def mlp(dropout):
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(48, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(32, activation="gelu"),
            keras.layers.Dense(10),
        ]
    )


def convnet(dropout):
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10),
        ]
    )


MODELS = {"mlp": mlp, "convnet": convnet}

# The mean over the batch is subtracted right after these biases are added, so their true gradient is zero and what is
# computed is rounding.
ZERO_GRADIENT = {"mlp": {"dense/bias"}, "convnet": {"conv2d/bias"}}


def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / 16).astype(np.float32)[:1600], data.target[:1600].astype(np.int64)


def made(name, dropout, weights=None, **compile_options):
    keras.utils.set_random_seed(3)
    keras.backend.clear_session(free_memory=False)
    model = MODELS[name](dropout)
    model.compile(
        keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compile_options
    )
    if weights is not None:
        model.set_weights(weights)
    return model


def distance(a, b):
    return float(np.linalg.norm(np.float64(a) - b) / max(np.linalg.norm(np.float64(b)), 1e-30))


@pytest.mark.parametrize("name", MODELS)
def test_one_step_from_equal_state(name):
    x, y = digits()
    x, y = x[:BATCH], y[:BATCH]

    def step_of(model):
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function(jit_compile=True)
        def step(inputs, labels):
            with tf.GradientTape() as tape:
                loss = loss_fn(labels, model(inputs, training=True))
            return loss, tape.gradient(loss, model.trainable_variables)

        return step

    strategy = IPUStrategy()
    with strategy.scope():
        ours = made(name, 0.25)
    theirs = made(name, 0.25, ours.get_weights())
    loss, gradients = strategy.run(step_of(ours), args=(tf.constant(x), tf.constant(y)))
    expected, expected_gradients = step_of(theirs)(tf.constant(x), tf.constant(y))
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    compared = 0
    for variable, a, b in zip(ours.trainable_variables, gradients, expected_gradients, strict=True):
        if variable.path.split("/", 1)[-1] in ZERO_GRADIENT[name] or variable.path in ZERO_GRADIENT[name]:
            continue
        compared += 1
        assert distance(a.numpy(), b.numpy()) < 1e-5, variable.path
    assert compared == len(gradients) - 1
    for a, b in zip(ours.non_trainable_variables, theirs.non_trainable_variables, strict=True):
        if "moving" in a.path:
            assert distance(a.numpy(), b.numpy()) < 1e-5, a.path
        else:  # the seed generator's state
            np.testing.assert_array_equal(a.numpy(), b.numpy())


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the running mean; the differences of its sums are the batches' own losses.
        self.seen.append(logs["loss"] * (batch + 1))


def trained(model, x, y):
    losses = Losses()
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[losses])
    sums = np.array(losses.seen).reshape(2, -1)
    return np.diff(sums, prepend=0.0, axis=1).reshape(-1), [w.numpy() for w in model.trainable_variables]


@pytest.mark.parametrize("name", in_turns(MODELS, 3, always=("mlp",)))
def test_a_hundred_steps(name):
    x, y = digits()
    order = np.concatenate([i * BATCH + np.random.default_rng(i).permutation(BATCH) for i in range(len(x) // BATCH)])
    with IPUStrategy().scope():
        model = made(name, 0.0)
    start = model.get_weights()
    ours, our_weights = trained(model, x, y)
    theirs, their_weights = trained(made(name, 0.0, start, jit_compile=True), x, y)
    permuted, permuted_weights = trained(made(name, 0.0, start, jit_compile=True), x[order], y[order])
    assert len(ours) == 100
    for steps, floor in ((20, 1e-5), (100, 1e-3)):
        yardstick = np.abs(permuted - theirs)[:steps].max() / np.abs(theirs[:steps]).max()
        moved = np.abs(ours - theirs)[:steps].max() / np.abs(theirs[:steps]).max()
        assert moved <= max(4 * yardstick, floor), (steps, moved, yardstick)
    for variable, a, b, c in zip(model.trainable_variables, our_weights, their_weights, permuted_weights, strict=True):
        if variable.path.split("/", 1)[-1] in ZERO_GRADIENT[name]:
            continue
        assert distance(a, b) <= max(4 * distance(c, b), 1e-3), variable.path
