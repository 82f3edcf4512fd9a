"""What the scope changes, and above all what it does not."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy, IPUStrategyV1
from ipu_keras.keras import refusals
from ipu_keras.keras.model import IPUModel
from tests.keras import helpers


def functional():
    inputs = keras.Input((5,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


class Subclassed(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class FunctionalSubclass(keras.Model):
    def __init__(self):
        inputs = keras.Input((5,))
        super().__init__(inputs, keras.layers.Dense(3)(inputs))


MAKERS = {
    "sequential": lambda: keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]),
    "functional": functional,
    "subclass": Subclassed,
    "functional subclass": FunctionalSubclass,
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_instances_keep_name_and_isinstance(maker):
    outside = maker()
    with IPUStrategy().scope():
        inside = maker()
    after = maker()
    assert isinstance(inside, IPUModel) and not isinstance(outside, IPUModel) and type(after) is type(outside)
    assert isinstance(inside, type(outside)) and isinstance(inside, keras.Model)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(inside), attribute) == getattr(type(outside), attribute)


def test_keras_model_is_untouched_before_and_after():
    before, sequential = dict(vars(keras.Model)), dict(vars(keras.Sequential))
    strategy = IPUStrategy()
    with strategy.scope(), IPUStrategy().scope(), strategy.scope():
        MAKERS["sequential"]()
    assert dict(vars(keras.Model)) == before and dict(vars(keras.Sequential)) == sequential
    with pytest.raises(ZeroDivisionError), strategy.scope():
        raise ZeroDivisionError
    assert dict(vars(keras.Model)) == before


def test_layer_classes_are_untouched_after_a_trace():
    before = dict(vars(keras.layers.Layer)), dict(vars(keras.Optimizer)), dict(vars(keras.Model))
    with IPUStrategy().scope():
        model = helpers.mlp()
    x, y = helpers.make_data(8)
    model.train_on_batch(x, y)
    assert (dict(vars(keras.layers.Layer)), dict(vars(keras.Optimizer)), dict(vars(keras.Model))) == before
    assert "update_state" not in vars(model._loss_tracker)


def test_another_thread_makes_plain_models():
    made = []
    with IPUStrategy().scope():
        thread = threading.Thread(target=lambda: made.append(MAKERS["functional"]()))
        thread.start()
        thread.join()
    assert not isinstance(made[0], IPUModel)


def test_tf_keras_spelling_is_the_same():
    with IPUStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    assert isinstance(model, IPUModel)


def test_strategy_object():
    strategy = IPUStrategy("/device:IPU:0", "/device:CPU:0", True, True)
    assert IPUStrategyV1 is IPUStrategy and isinstance(strategy, tf.distribute.Strategy)
    assert strategy.num_replicas_in_sync == 1 and strategy.supports_loss_scaling
    assert strategy.reduce(tf.distribute.ReduceOp.SUM, 3.0, axis=None) == 3.0
    with pytest.raises(RuntimeError, match="experimental_run_v2"):
        strategy.experimental_run_v2(lambda: 1)
    dataset = tf.data.Dataset.range(3)
    assert strategy.experimental_distribute_dataset(dataset) is dataset
    with pytest.raises(ipu_keras.errors.ConfigError, match="'error', 'compile'"):
        IPUStrategy(partial_batch="pad")
    with pytest.raises(ipu_keras.errors.ConfigError, match="IPU"):
        IPUStrategy("/device:GPU:0")
    with pytest.raises(ipu_keras.errors.UnknownTargetError, match="gc200"):
        IPUStrategy(target="gc20")


def test_without_extensions_models_stay_plain():
    with IPUStrategy(enable_keras_extensions=False).scope():
        assert not isinstance(MAKERS["functional"](), IPUModel)


def test_run_eagerly_is_refused():
    with IPUStrategy().scope():
        model = helpers.mlp(compile_model=False)
    with pytest.raises(RuntimeError, match="run_eagerly") as info:
        helpers.compile_mlp(model, run_eagerly=True, jit_compile=False)
    assert isinstance(info.value, ipu_keras.errors.IPUError)
    helpers.compile_mlp(model)
    with pytest.raises(refusals.ModeError):
        model.run_eagerly = True


def test_jit_compile_is_ignored_and_logged_once(caplog):
    from ipu_keras.keras import model as model_module

    model_module._logged.clear()
    with caplog.at_level("INFO", "ipu_keras"), IPUStrategy().scope():
        helpers.mlp()
        helpers.mlp()
    assert sum("jit_compile=True is ignored" in r.message for r in caplog.records) == 1


def test_compile_after_scope_and_optimizer_made_outside():
    optimizer = keras.optimizers.Adam(0.01)
    with IPUStrategy().scope():
        inside = helpers.mlp(compile_model=False)
    helpers.compile_mlp(inside, optimizer)
    outside = helpers.mlp(optimizer=keras.optimizers.Adam(0.01))
    x, y = helpers.make_data(16)
    before = ipu_keras.executions()
    logs = inside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    assert ipu_keras.executions() == before + 2
    helpers.assert_same_logs(logs, outside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history)
    helpers.assert_same_weights(inside, outside)


def test_two_models_in_one_scope_share_layers():
    with IPUStrategy().scope():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(4, activation="relu", name="shared")
        first = keras.Model(inputs, keras.layers.Dense(3)(hidden(inputs)))
        second = keras.Model(inputs, keras.layers.Dense(3)(hidden(inputs)))
        helpers.compile_mlp(first, "sgd")
        helpers.compile_mlp(second, "sgd")
    x, y = helpers.make_data(8)
    second.train_on_batch(x, y)  # its engine now holds the shared kernel
    kernel = hidden.kernel.numpy().copy()
    first.train_on_batch(x, y)
    changed = hidden.kernel.numpy().copy()
    assert np.abs(changed - kernel).max() > 0
    plain = keras.Model(second.inputs, second.outputs)
    np.testing.assert_allclose(second.predict(x, batch_size=8, verbose=0), plain(x), rtol=1e-5, atol=1e-6)
    second.train_on_batch(x, y)
    assert np.abs(hidden.kernel.numpy() - changed).max() > 0


def test_clear_session_in_the_scope():
    before = dict(vars(keras.Model))
    with IPUStrategy().scope():
        keras.backend.clear_session()
        model = helpers.mlp()
        keras.backend.clear_session()
    model.train_on_batch(*helpers.make_data(8))
    assert dict(vars(keras.Model)) == before


def test_overridden_make_train_function_is_refused():
    class Custom(Subclassed):
        def make_train_function(self, force=False):
            return super().make_train_function(force)

    with IPUStrategy().scope():
        model = Custom()
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="The function `make_train_function`"):
        model.fit(np.zeros((4, 5), np.float32), np.zeros((4, 3), np.float32), batch_size=4, verbose=0)


def test_calling_a_model_runs_on_the_host():
    with IPUStrategy().scope():
        model = helpers.mlp()
    before = ipu_keras.executions()
    assert model(np.zeros((2, 5), np.float32)).shape == (2, 3)
    assert ipu_keras.executions() == before


def test_import_is_light():
    import subprocess
    import sys

    code = (
        "import sys, ipu_keras; ipu_keras.errors; ipu_keras.executions();"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
