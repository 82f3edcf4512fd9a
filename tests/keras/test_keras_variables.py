"""What a person or a callback assigns between executions is what the next execution uses; nothing else is copied."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras import packing, variables
from tests.keras import helpers

CHANGES = {
    "assign": lambda m: m.layers[0].kernel.assign(m.layers[0].kernel * 0.5),
    "assign_add": lambda m: m.layers[0].kernel.value.assign_add(tf.ones_like(m.layers[0].kernel.value) * 0.1),
    "set_weights": lambda m: m.set_weights([w * 0.9 for w in m.get_weights()]),
    "layer.set_weights": lambda m: m.layers[-1].set_weights([w + 0.1 for w in m.layers[-1].get_weights()]),
    "reset_metrics": lambda m: m.reset_metrics(),
    "learning_rate": lambda m: setattr(m.optimizer, "learning_rate", 0.05),
    "sparse update": lambda m: m.layers[0].kernel.value.scatter_update(
        tf.IndexedSlices(tf.zeros((1, 7)), tf.constant([2]))
    ),
    "one element": lambda m: m.layers[0].kernel.value[0, 0].assign(3.0),
    "compiled by XLA": lambda m: tf.function(
        lambda: [v.value.assign_add(0.1 * tf.ones_like(v.value)) for v in m.trainable_variables], jit_compile=True
    )(),
    "trained eagerly": lambda m: m.optimizer.apply([tf.ones_like(v.value) for v in m.trainable_variables]),
}


@pytest.fixture(params=["packed", "by value", "by buffer"])
def way(request, monkeypatch):
    """All ways of finding changes: small variables by value, in a function or one by one; large ones by buffer."""
    monkeypatch.setattr(packing, "PATIENCE", 1 if request.param == "packed" else 10**6)
    if request.param == "by buffer":
        monkeypatch.setattr(packing, "FEWEST", 10**6)
    return request.param


def step(model, x, y):
    """One step that keeps the metrics' state (train_on_batch would reset it)."""
    model.make_train_function()
    return {k: float(v) for k, v in model.train_function(iter([(x, y)])).items()}


@pytest.mark.sweep(turns=2)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_used(change, way):
    inside, outside = helpers.pair(optimizer="sgd", norm=False)
    x, y = helpers.make_data(8)
    for model in (inside, outside):
        step(model, x, y)
        step(model, x, y)
        change(model)
    sync = inside.train_function.session.programs[0].sync
    before = sync.uploads
    helpers.assert_same_logs(step(inside, x, y), step(outside, x, y))
    assert sync.uploads > before
    helpers.assert_same_weights(inside, outside)
    after = sync.uploads
    step(inside, x, y)
    assert sync.uploads == after, "unchanged variables were copied again"


def test_load_weights(tmp_path, way):
    inside, outside = helpers.pair(optimizer="sgd", norm=False)
    x, y = helpers.make_data(8)
    inside.save_weights(tmp_path / "a.weights.h5")
    for model in (inside, outside):
        step(model, x, y)
        model.load_weights(tmp_path / "a.weights.h5")
    helpers.assert_same_logs(step(inside, x, y), step(outside, x, y))
    helpers.assert_same_weights(inside, outside)


def test_train_and_test_programs_see_each_other(way):
    inside, outside = helpers.pair(optimizer="sgd", norm=False)
    x, y = helpers.make_data(16)
    for _ in range(3):
        np.testing.assert_allclose(inside.train_on_batch(x, y), outside.train_on_batch(x, y), rtol=1e-4)
        np.testing.assert_allclose(inside.test_on_batch(x, y), outside.test_on_batch(x, y), rtol=1e-4)
        np.testing.assert_allclose(inside.predict_on_batch(x), outside.predict_on_batch(x), rtol=1e-3, atol=1e-5)


CALLBACKS = {
    "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=0, min_delta=10.0),
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=1, restore_best_weights=True, min_delta=10.0
    ),
    "SwapEMAWeights": None,
}


@pytest.mark.parametrize("make", [c for c in CALLBACKS.values() if c], ids=[k for k, c in CALLBACKS.items() if c])
def test_callbacks_that_assign(make):
    inside, outside = helpers.pair(optimizer="sgd", norm=False)
    x, y = helpers.make_data(32)
    kwargs = dict(batch_size=8, epochs=4, shuffle=False, verbose=0, validation_data=(x, y))
    a = inside.fit(x, y, callbacks=[make()], **kwargs).history
    b = outside.fit(x, y, callbacks=[make()], **kwargs).history
    helpers.assert_same_logs(a, b, rtol=1e-4)
    helpers.assert_same_weights(inside, outside)
    np.testing.assert_allclose(inside.predict(x, batch_size=8, verbose=0), outside(x), rtol=1e-3, atol=1e-5)


def test_callback_that_assigns_between_executions():
    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * 0.5)

    inside, outside = helpers.pair(optimizer="sgd", norm=False, steps_per_execution=2)
    x, y = helpers.make_data(32)
    kwargs = dict(batch_size=8, shuffle=False, verbose=0)
    a = inside.fit(x, y, callbacks=[Halve()], **kwargs).history
    helpers.assert_same_logs(a, outside.fit(x, y, callbacks=[Halve()], **kwargs).history)
    helpers.assert_same_weights(inside, outside)


def test_model_checkpoint_holds_the_weights_of_its_execution(tmp_path):
    with IPUStrategy().scope():
        model = helpers.mlp()
    x, y = helpers.make_data(16)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[checkpoint])
    last = model.get_weights()
    model.load_weights(tmp_path / "2.weights.h5")
    for a, b in zip(model.get_weights(), last, strict=True):
        np.testing.assert_array_equal(a, b)


class _Engine:
    """Counts what is written; keeps it."""

    def __init__(self):
        self.memory, self.written = {}, []

    def write_state(self, index, array):
        self.written.append(index)
        self.memory[index] = np.array(array)

    def read_state(self, index):
        return self.memory[index].copy()


def test_sync_of_an_old_value_that_somebody_holds(way):
    """Writing back must not write into a tensor that a person has read before."""
    held = [tf.Variable(np.full((40,), float(i), np.float32)) for i in range(9)]
    engine = _Engine()
    sync = variables.VariableSync(engine, dict(enumerate(held)), {}, list(range(9)))
    old = [v.read_value() for v in held]
    sync.upload()
    for i in engine.memory:
        engine.memory[i] = engine.memory[i] + 100
    sync.download()
    mine = [v.read_value() for v in held]
    for i in engine.memory:
        engine.memory[i] = engine.memory[i] + 100
    sync.download()
    for i in range(9):
        assert old[i][0] == i and mine[i][0] == i + 100 and held[i].numpy()[0] == i + 200
    engine.written.clear()
    sync.upload()
    assert engine.written == []


def test_sync_of_dtypes_and_nan(way):
    values = [True, np.int64(2**40), np.float16(2), np.uint8(3), np.float32("nan"), np.zeros((0, 2), np.float32)]
    held = [tf.Variable(v) for v in values] + [tf.Variable(float(i)) for i in range(5)]
    engine = _Engine()
    sync = variables.VariableSync(engine, dict(enumerate(held)), {20: tf.constant([1, 2])}, [0, 1, 4])
    sync.upload()
    assert len(engine.written) == len(held) + 1 and engine.memory[1] == 2**40
    engine.written.clear()
    sync.upload()
    assert engine.written == []
    engine.memory[0], engine.memory[1] = np.array(False), np.array(7, np.int64)
    sync.download()
    assert not held[0].numpy() and held[1].numpy() == 7
    held[3].assign(9)
    sync.upload()
    assert engine.written == [3]
    sync.invalidate()
    sync.upload()
    assert len(engine.written) == 1 + len(held) + 1
