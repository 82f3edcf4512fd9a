"""strategy.run on a user's own functions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy, errors
from ipu_keras.errors import IPUError, UnsupportedError
from tests.keras import helpers


@pytest.fixture
def strategy():
    return IPUStrategy()


def test_structure_and_values(strategy):
    @tf.function
    def f(x, scale, *, offset):
        return {"a": x * scale + offset, "b": (tf.reduce_sum(x), None)}

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = ipu_keras.executions()
    result = strategy.run(f, args=(x, 3.0), kwargs={"offset": tf.constant(1.0)})
    assert ipu_keras.executions() == before + 1
    np.testing.assert_allclose(result["a"], 3 * x + 1)
    assert result["b"][0].shape == () and float(result["b"][0]) == 15 and result["b"][1] is None
    np.testing.assert_allclose(strategy.run(f, (x, 5.0), {"offset": tf.constant(0.0)})["a"], 5 * x)


def test_jit_function_runs_on_the_device_and_updates_variables(strategy):
    counter = tf.Variable(0, dtype=tf.int64)
    v = tf.Variable(np.ones(3, np.float32))

    @tf.function(jit_compile=True)
    def f(x):
        counter.assign_add(1)
        return v.assign_add(x)

    before = ipu_keras.executions()
    for i in range(3):
        np.testing.assert_allclose(strategy.run(f, (np.ones(3, np.float32),)), np.full(3, 2.0 + i))
    v.assign(np.zeros(3, np.float32))
    np.testing.assert_allclose(strategy.run(f, (np.ones(3, np.float32),)), np.ones(3))
    assert ipu_keras.executions() == before + 4 and int(counter.numpy()) == 4


def test_concrete_function_and_new_shapes(strategy):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def f(x):
        return tf.reduce_sum(x * x)

    concrete = f.get_concrete_function()
    for n in (2, 5):
        assert float(strategy.run(concrete, (np.ones(n, np.float32),))) == n
        assert float(strategy.run(f, (tf.ones(n),))) == n


def test_function_that_creates_its_variables(strategy):
    class Module(tf.Module):
        v = None

        @tf.function
        def __call__(self, x):
            if self.v is None:
                self.v = tf.Variable(2.0)
            return self.v.assign_add(tf.reduce_sum(x))

    module = Module()
    assert float(strategy.run(module.__call__, (np.ones(3, np.float32),))) == 5
    assert float(strategy.run(module.__call__, (np.ones(3, np.float32),))) == 8
    assert float(module.v.numpy()) == 8


def test_custom_training_loop(strategy):
    def make():
        model = helpers.mlp(compile_model=False)
        return model, keras.optimizers.SGD(0.1)

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(model, optimizer):
        @tf.function(jit_compile=True)
        def train(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return train

    with strategy.scope():
        model, optimizer = make()
        train = build(model, optimizer)
        x, y = helpers.make_data(8)
        losses = [float(strategy.run(train, args=(x, y))) for _ in range(3)]
    plain, plain_optimizer = make()
    reference = build(plain, plain_optimizer)
    np.testing.assert_allclose(losses, [float(reference(x, y)) for _ in range(3)], rtol=1e-5)
    helpers.assert_same_weights(model, plain)


def test_python_loop_inside(strategy):
    @tf.function
    def f(x, n):
        for _ in range(n):
            x = x + 1.0
        return x

    assert float(strategy.run(f, (tf.constant(0.0), 3))) == 3
    assert float(strategy.run(f, (tf.constant(0.0), 4))) == 4


def test_plain_function_is_refused(strategy):
    with pytest.raises(ValueError, match="does not support eager execution") as info:
        strategy.run(lambda x: x, (1.0,))
    assert isinstance(info.value, IPUError)


def test_float64_is_refused(strategy):
    f = tf.function(lambda x: x)
    with pytest.raises(TypeError, match="Unsupported data type for input/output: float64"):
        strategy.run(f, (np.ones(3),))
    g = tf.function(lambda x: tf.cast(x, tf.float64))
    with pytest.raises(TypeError, match="Unsupported data type for input/output: float64"):
        strategy.run(g, (np.ones(3, np.float32),))


def test_inside_another_function_is_refused(strategy):
    f = tf.function(lambda x: x)

    @tf.function
    def outer(x):
        return strategy.run(f, (x,))

    with pytest.raises(UnsupportedError, match=r"another tf\.function"):
        outer(tf.constant(1.0))


def test_captured_iterators_and_strings_are_refused(strategy):
    with pytest.raises(ValueError, match="string"):
        strategy.run(tf.function(lambda x: x), (tf.constant("a"),))
    captured = iter(tf.data.Dataset.range(3))
    with pytest.raises(UnsupportedError, match=r"iterator|variant|resource"):
        strategy.run(tf.function(lambda: next(captured)))


def test_error_of_the_user_is_the_users(strategy):
    @tf.function
    def f(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        strategy.run(f, (tf.constant(1.0),))


def test_executables_of_models_and_functions(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    with pytest.raises(errors.DataError, match="has run no train program"):
        ipu_keras.executable(model)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
    assert ipu_keras.executable(model).profile().cycles > 0
    with pytest.raises(errors.DataError, match="predict"):
        ipu_keras.executable(model, "predict")
    with pytest.raises(errors.DataError, match="one of train, test, predict, generate"):
        ipu_keras.executable(model, "fit")

    double = tf.function(lambda x: x * 2)
    with pytest.raises(errors.DataError, match="has not run"):
        strategy.executable(double)
    strategy.run(double, args=(np.ones(3, np.float32),))
    np.testing.assert_array_equal(strategy.executable(double).run(np.ones(3, np.float32))[0], 2)
