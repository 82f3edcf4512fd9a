"""Ctrl-C and errors: the variables are those of the last finished execution, and the process goes on."""

import os
import signal
import threading
import time

import keras
import numpy as np
import pytest

import ipu_keras
from ipu_keras import IPUStrategy
from ipu_keras.frontend import tfapi
from ipu_keras.keras import session, variables
from tests.keras import helpers


@pytest.fixture(autouse=True)
def interrupts():
    """A shell starts what runs in its background with SIGINT ignored: then Python would raise nothing."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def values(model):
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


class _Wrapped:
    """An engine whose next run is left by an error, after the states have been damaged."""

    def __init__(self, engine, program, error):
        self._engine, self._program, self._error = engine, program, error

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, feeds, repeat=1, turns=-1, queues=None):
        if self._error is None:
            return self._engine.run(feeds, repeat, turns, queues)
        error, self._error = self._error, None
        for parameter in self._program.traced.updates:
            shape = self._program.traced.variables[parameter].shape
            dtype = self._program.traced.variables[parameter].dtype.as_numpy_dtype
            self._engine.write_state(parameter, np.full(shape, 77).astype(dtype))
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the device is on fire")], ids=["ctrl-c", "error"])
def test_run_left_early(error):
    inside, outside = helpers.pair()
    x, y = helpers.make_data(8)
    for model in (inside, outside):
        model.train_on_batch(x, y)
    program = inside.train_function.session.programs[0]
    engine = _Wrapped(program.engine, program, error)
    program.engine = program.sync._engine = engine
    before, count = values(inside), ipu_keras.executions()
    with pytest.raises(type(error)):
        inside.train_on_batch(x, y)
    assert_equal(values(inside), before)
    assert ipu_keras.executions() == count
    np.testing.assert_allclose(inside.train_on_batch(x, y), outside.train_on_batch(x, y), rtol=1e-5)
    helpers.assert_same_weights(inside, outside)


def test_write_back_is_all_or_nothing(monkeypatch):
    """An interrupt that arrives while variables are assigned is delivered when all are."""
    with IPUStrategy().scope():
        model = helpers.mlp()
    x, y = helpers.make_data(8)
    model.train_on_batch(x, y)
    monkeypatch.setattr("ipu_keras.keras.packing.FEWEST", 10**6)
    model.compile(model.optimizer, model.loss)
    model.train_on_batch(x, y)
    assign, calls = tfapi.assign_tensor, []

    def interrupted(handle, tensor):
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        calls.append(handle)
        assign(handle, tensor)

    monkeypatch.setattr(tfapi, "assign_tensor", interrupted)
    iteration = int(model.optimizer.iterations.numpy())
    before = values(model)
    with pytest.raises(KeyboardInterrupt):
        model.train_on_batch(x, y)
    monkeypatch.setattr(tfapi, "assign_tensor", assign)
    assert len(calls) == len(model.train_function.session.programs[0].traced.updates)
    assert int(model.optimizer.iterations.numpy()) == iteration + 1
    changed = [not np.array_equal(a, b) for a, b in zip(before, values(model), strict=True)]
    assert all(changed[i] for i, v in enumerate(model.weights) if v.trainable)
    model.train_on_batch(x, y)


def test_interrupt_while_compiling(monkeypatch):
    inside, outside = helpers.pair()
    x, y = helpers.make_data(8)
    real, layer = session.trace, dict(vars(keras.layers.Layer))

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inside.fit(x, y, batch_size=8, verbose=0)
    monkeypatch.setattr(session, "trace", real)
    assert dict(vars(keras.layers.Layer)) == layer and "_ipu_rules" not in vars(inside)
    helpers.assert_same_logs(
        inside.fit(x, y, batch_size=8, verbose=0).history, outside.fit(x, y, batch_size=8, verbose=0).history
    )


def test_interrupt_in_the_trace_itself():
    class Interrupting(keras.layers.Layer):
        armed = True

        def call(self, x):
            if Interrupting.armed:
                raise KeyboardInterrupt
            return x

    before = dict(vars(keras.layers.Layer))
    with IPUStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(3), Interrupting()])
    helpers.compile_mlp(model)
    x, y = helpers.make_data(8)
    with pytest.raises(KeyboardInterrupt):
        model.train_on_batch(x, y)
    assert dict(vars(keras.layers.Layer)) == before
    Interrupting.armed = False
    assert np.isfinite(model.train_on_batch(x, y)).all()


def test_interrupt_of_fit_keeps_the_last_execution():
    with IPUStrategy().scope():
        model = helpers.mlp()
    x, y = helpers.make_data(64)
    kept = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept[:] = values(self.model)
            if batch == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[Stop()])
    assert_equal(values(model), kept)
    assert model.steps_per_execution == 1
    model.fit(x, y, batch_size=8, verbose=0)


def test_interrupts_in_other_threads_are_left_alone():
    caught = []

    def work():
        with variables._InterruptLater():
            caught.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught == [before]


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.35])
def test_interrupt_at_any_time(delay):
    """Whenever Ctrl-C comes, the variables are those after a whole number of executions."""
    x, y = helpers.make_data(64)
    with IPUStrategy().scope():
        model = helpers.mlp()
    model.train_on_batch(x[:8], y[:8])
    start = values(model)
    variables_ = [*model.weights, *model.optimizer.variables]
    states = {}

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            states[int(self.model.optimizer.iterations.numpy())] = values(self.model)

    fit = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
    model.fit(x, y, callbacks=[Record()], **fit)
    for variable, value in zip(variables_, start, strict=True):
        variable.assign(value)
    first = int(model.optimizer.iterations.numpy())
    states[first] = start
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y, **{**fit, "epochs": 2000})
    finally:
        timer.cancel()
    iteration = int(model.optimizer.iterations.numpy())
    if iteration in states:  # a fast machine gets further than the states that were noted
        assert_equal(values(model), states[iteration])
    assert np.isfinite(model.train_on_batch(x[:8], y[:8])).all()
