"""The data rules of fit, evaluate and predict, and their errors."""

import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy
from ipu_keras.errors import DataError, UnsupportedError
from tests.keras import helpers


@pytest.fixture
def model():
    with IPUStrategy().scope():
        return helpers.mlp(optimizer="sgd", norm=False, steps_per_execution=2)


def slices(samples=32, batch=8, drop=True):
    return tf.data.Dataset.from_tensor_slices(helpers.make_data(samples)).batch(batch, drop_remainder=drop)


def refused(pattern, call, *args, **kwargs):
    before = ipu_keras.executions()
    with pytest.raises(ValueError, match=pattern) as info:
        call(*args, **kwargs)
    assert isinstance(info.value, DataError) and ipu_keras.executions() == before
    return str(info.value)


def test_partial_batch_of_arrays(model):
    x, y = helpers.make_data(30)
    for call, args in ((model.fit, (x, y)), (model.evaluate, (x, y)), (model.predict, (x,))):
        message = refused("has a partial batch", call, *args, batch_size=8, verbose=0)
        for part in ("30 samples", "batch_size=8", "partial batch of 6", 'partial_batch="compile"', "x[:24]"):
            assert part in message
    assert "default" not in refused("partial batch of 30", model.predict, x, verbose=0)
    good, labels = helpers.make_data(32)
    fit = dict(batch_size=8, verbose=0)
    refused("validation data.*partial batch of 6", model.fit, good, labels, validation_data=(x, y), **fit)
    refused("validation split.*partial batch of 4", model.fit, good[:20], labels[:20], validation_split=0.2, **fit)
    # a whole number of batches before the rest is fine
    model.fit(x, y, batch_size=8, steps_per_epoch=2, verbose=0)


def test_shapes_not_fully_defined(model):
    message = refused("not fully defined", model.fit, slices(drop=False), verbose=0)
    assert "drop_remainder=True" in message and "(None, 5)" in message
    refused("not fully defined", model.predict, slices(drop=False).map(lambda x, y: x), verbose=0)


def test_infinite_and_empty(model):
    refused("When providing an infinite dataset", model.fit, slices().repeat(), verbose=0)
    refused("no batches", model.fit, slices(batch=64), verbose=0)
    refused("does not have enough data", model.fit, slices(), steps_per_epoch=6, verbose=0)
    refused("does not have enough data", model.evaluate, *helpers.make_data(16), batch_size=8, steps=3, verbose=0)


def test_steps_per_execution_must_divide(model):
    message = refused("must be a divisor", model.fit, slices(40), verbose=0)
    assert "steps_per_execution=2" in message and "5" in message
    refused("must be a divisor", model.evaluate, *helpers.make_data(24), batch_size=8, verbose=0)
    refused("must be a divisor", model.fit, slices().repeat(), steps_per_epoch=3, verbose=0)


def test_steps_per_execution_is_reduced_with_a_warning(caplog):
    inside, outside = helpers.pair(optimizer="sgd", norm=False, steps_per_execution=10)
    x, y = helpers.make_data(32)
    before = ipu_keras.executions()
    with caplog.at_level("WARNING", "ipu_keras"):
        a = inside.fit(x, y, batch_size=8, shuffle=False, verbose=0, validation_data=(x[:16], y[:16])).history
    assert ipu_keras.executions() == before + 2 and inside.steps_per_execution == 10
    assert "more than the 4 step" in caplog.text and "more than the 2 step" in caplog.text
    b = outside.fit(x, y, batch_size=8, shuffle=False, verbose=0, validation_data=(x[:16], y[:16])).history
    helpers.assert_same_logs(a, b, rtol=1e-4)


def test_strings(model):
    words = np.array(["a", "b"] * 4)
    refused("string tensors", model.predict, words, batch_size=8, verbose=0)
    refused("string tensors", model.predict, tf.data.Dataset.from_tensor_slices(words).batch(8, drop_remainder=True))
    refused("string tensors", model.predict_on_batch, words)


def test_ragged_and_sparse(model):
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1.0], [1.0, 2.0]]))
    refused("RaggedTensor", model.predict, ragged, verbose=0)
    refused("SparseTensor", model.predict_on_batch, tf.sparse.from_dense([[1.0, 0.0]]))


def test_a_generator_whose_batches_differ(model):
    x, y = helpers.make_data(32)

    def shrinking():
        yield x[:8], y[:8]
        yield x[8:16], y[8:16]
        yield x[16:20], y[16:20]

    with pytest.raises(DataError, match="partial batch of 4"):
        model.fit(shrinking(), verbose=0)

    def widening():
        yield (np.ones((4, 5), np.float32),)
        yield (np.ones((4, 6), np.float32),)

    with pytest.raises(DataError, match="not fully defined"):
        model.predict(widening(), verbose=0)


@pytest.mark.parametrize("spe", [1, 4])
def test_opt_in_for_the_partial_batch(spe):
    inside, outside = helpers.pair(
        strategy=IPUStrategy(partial_batch="compile"), optimizer="sgd", norm=False, steps_per_execution=spe
    )
    x, y = helpers.make_data(30)
    kwargs = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
    a, b = inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history
    helpers.assert_same_logs(a, b, rtol=1e-4)
    helpers.assert_same_weights(inside, outside)
    assert len(inside.train_function.session.programs) == 2
    p, q = inside.predict(x, batch_size=8, verbose=0), outside.predict(x, batch_size=8, verbose=0)
    assert p.shape == q.shape == (30, 3)
    np.testing.assert_allclose(p, q, rtol=1e-3, atol=1e-5)
    data = slices(30, drop=False)
    np.testing.assert_allclose(inside.evaluate(data, verbose=0), outside.evaluate(data, verbose=0), rtol=1e-4)


def test_host_callbacks_in_the_step_are_listed():
    import keras

    class Printing(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            tf.print("x", x)
            return tf.py_function(lambda a: a, [self.dense(x)], tf.float32)

    with IPUStrategy().scope():
        model = Printing()
    with pytest.raises(UnsupportedError) as info:
        model.predict(np.ones((4, 5), np.float32), batch_size=4, verbose=0)
    assert len(info.value.items) == 2
    assert "tf.print" in str(info.value) and "tf.py_function" in str(info.value) and "printing" in str(info.value)


def test_float64_variables_are_named():
    import keras

    with IPUStrategy().scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, dtype="float64", name="wide")])
    with pytest.raises(UnsupportedError, match=r"kernel.*float64"):
        model.predict(np.ones((4, 5), np.float32), batch_size=4, verbose=0)
