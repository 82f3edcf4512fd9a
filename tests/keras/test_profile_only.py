"""Programs that are compiled and never run: strategies with execute=False, `analyse`, and what does not fit."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy, analyse, executable, hlo
from ipu_keras.errors import ConfigError, DataError, ProfileOnlyError
from ipu_keras.frontend.abstract import SMALL_BYTES, abstract_variables
from ipu_runtime.engine import Engine
from ipu_runtime.program import Program
from tests.keras.helpers import make_data


@pytest.fixture(autouse=True)
def real_compiler(engine):
    if engine != "ipu":
        pytest.skip("the stand-in has no profiles")


def network(built=True):
    layers = [keras.layers.Dense(7, "relu", name="a"), keras.layers.Dropout(0.3, name="b", seed=1)]
    layers += [keras.layers.BatchNormalization(name="c"), keras.layers.Dense(3, name="d")]
    model = keras.Sequential([*([keras.Input((5,))] if built else []), *layers], name="network")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def in_scope(make=network, **options):
    with IPUStrategy(**options).scope():
        return make()


def assert_same_program(one, other):
    for name in Program.ARRAYS:
        np.testing.assert_array_equal(getattr(one.program, name), getattr(other.program, name), err_msg=name)
    assert one.program.header == other.program.header


@pytest.mark.parametrize("built", [True, False])
def test_the_profile_is_that_of_the_program_that_runs(built):
    x, y = make_data()
    keras.backend.clear_session(free_memory=False)  # numbers in the names of variables start again
    runs = in_scope(lambda: network(built))
    runs.fit(x, y, batch_size=8, verbose=0)
    runs.predict(x, batch_size=8, verbose=0)
    keras.backend.clear_session(free_memory=False)
    asked = in_scope(lambda: network(built), execute=False)
    analyse(asked, "train", (x[:8], y[:8]))
    analyse(asked, "predict", x[:8])
    for kind in ("train", "predict"):
        one, other = executable(runs, kind), executable(asked, kind)
        assert_same_program(one, other)
        p, q = one.profile(), other.profile()
        assert p.cycles == q.cycles > 0
        assert p.layers == q.layers and p.phases == q.phases and p.steps == q.steps
        np.testing.assert_array_equal(p.memory.by_tile, q.memory.by_tile)
        assert (p.memory.always_live_bytes, p.memory.peak_bytes) == (q.memory.always_live_bytes, q.memory.peak_bytes)


@pytest.mark.sweep(turns=3)
def test_large_variables_take_no_memory():
    """A layer of 2 GiB with two slots of Adam: made, traced and compiled with less than a tenth of one of them."""
    script = """
        import keras, tensorflow as tf
        from ipu_keras import IPUStrategy, analyse

        def resident():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) * 1024

        def peak():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

        def ask(units):
            with IPUStrategy(execute=False, options={"allow_out_of_memory": True}).scope():
                model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(16)])
                model.compile("adam", "mse")
            batch = (tf.TensorSpec((4, 1 << 14)), tf.TensorSpec((4, 16)))
            return analyse(model, "train", batch).profile().memory.always_live_bytes

        ask(16)  # what TensorFlow and XLA take at their first use
        before = resident()
        live = ask(1 << 15)
        print(live, resident() - before, peak() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    live, grown, peak = map(int, done.stdout.split())
    assert live > 6 << 30
    assert grown < 200 << 20 and peak < 600 << 20


def test_fit_compiles_trains_nothing_and_says_so(caplog):
    x, y = make_data()
    model = in_scope(execute=False)
    before = ipu_keras.executions()
    with caplog.at_level(logging.WARNING, "ipu_keras"):
        history = model.fit(x, y, batch_size=8, epochs=3, validation_split=0.25, verbose=0)
    assert history.history == {} and history.epoch == []
    assert [r.message for r in caplog.records if "trained nothing" in r.message and "network" in r.message]
    assert executable(model).profile().cycles > 0
    assert ipu_keras.executions() == before and int(model.optimizer.iterations.numpy()) == 0


def test_what_would_return_numbers_refuses_once_it_is_compiled():
    x, y = make_data()
    model = in_scope(execute=False)
    calls = {
        "test": [lambda: model.evaluate(x, y, batch_size=8, verbose=0), lambda: model.test_on_batch(x, y)],
        "predict": [lambda: model.predict(x, batch_size=8, verbose=0), lambda: model.predict_on_batch(x)],
        "train": [lambda: model.train_on_batch(x, y)],
    }
    for kind, ways in calls.items():
        for call in ways:
            with pytest.raises(ProfileOnlyError, match=f"network.{kind}_step was compiled with execute=False"):
                call()
            assert executable(model, kind).profile().memory.fits


def test_steps_per_execution_needs_one_batch():
    x, y = make_data()
    model = in_scope(execute=False)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=4)
    model.make_train_function()
    batches = iter([(x[:8], y[:8])] * 4)
    with pytest.raises(ProfileOnlyError):
        model.train_function(batches)
    assert len(list(batches)) == 3
    assert [feed["shape"] for feed in executable(model).program.header["feeds"]] == [[8, 5], [8]]


def test_tf_keras():
    tf_keras = pytest.importorskip("tf_keras", reason="the extra 'tf-keras' is not installed")
    x, y = make_data()
    with IPUStrategy(execute=False).scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(300, input_shape=(5,)), tf_keras.layers.Dense(3)])
        model.compile("adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert model.fit(x, y, batch_size=8, verbose=0).history == {}
    with pytest.raises(ProfileOnlyError):
        model.predict(x, batch_size=8, verbose=0)
    assert executable(model).profile().cycles > executable(model, "predict").profile().cycles > 0


def test_analyse_where_programs_run_is_the_program_that_runs(monkeypatch):
    x, y = make_data()
    model = in_scope()
    made = []
    monkeypatch.setattr("ipu_runtime.engine.Engine", lambda *a: made.append(a) or Engine(*a))
    found = analyse(model, "train", (tf.TensorSpec((8, 5)), keras.InputSpec(dtype="int32", shape=(8,))))
    assert executable(model) is found and not made
    history = model.fit(x, y.astype(np.int32), batch_size=8, epochs=2, verbose=0)
    assert executable(model) is found and len(made) == 1
    assert history.history["loss"][1] != history.history["loss"][0]
    analyse(model, "train", (x[:4], y[:4].astype(np.int32)))
    assert executable(model) is not found
    model.fit(x, y.astype(np.int32), batch_size=8, verbose=0)
    assert executable(model) is found


def test_analyse_takes_specs_and_arrays_alike():
    x, y = make_data(samples=8)
    model = in_scope(execute=False)
    found = analyse(model, "test", (x.astype(np.float64), y))
    assert analyse(model, "test", (tf.TensorSpec((8, 5)), tf.TensorSpec((8,), tf.int64))) is found
    assert analyse(model, "predict", keras.KerasTensor((8, 5))) is analyse(model, "predict", x)
    with IPUStrategy(execute=False).scope():
        a = keras.Input((4,), batch_size=2, name="a")
        inputs = {"a": a, "b": keras.Input((3,), batch_size=2, dtype="int32", name="b")}
        two = keras.Model(inputs, inputs["a"][:, :3] + keras.ops.cast(inputs["b"], "float32"))
    feeds = analyse(two, "predict").program.header["feeds"]
    assert [(feed["shape"], feed["dtype"]) for feed in feeds] == [([2, 4], "f32"), ([2, 3], "s32")]


def test_analyse_says_what_is_missing():
    x, y = make_data(samples=8)
    with pytest.raises(DataError, match="in the scope"):
        analyse(network(), "train", (x, y))
    model = in_scope(execute=False)
    with pytest.raises(DataError, match="must be one of train, test, predict"):
        analyse(model, "fit", (x, y))
    with pytest.raises(DataError, match="needs the batch of a train step"):
        analyse(model, "train")
    with pytest.raises(DataError, match=r"\(None, 5\).*fixed shapes"):
        analyse(model, "predict")
    with pytest.raises(DataError, match="string"):
        analyse(model, "predict", np.array(["a"]))
    with pytest.raises(DataError, match="compile"):
        analyse(in_scope(lambda: keras.Sequential([keras.layers.Dense(1)])), "train", (x, y))


def test_run_refuses_and_the_function_has_a_program():
    strategy = IPUStrategy(execute=False)

    @tf.function
    def double(x):
        return 2 * x

    @tf.function
    def total(iterator):
        return next(iterator) + next(iterator)

    data = tf.data.Dataset.from_tensor_slices(np.ones((4, 3), np.float32))
    for function, argument in ((double, np.ones(3, np.float32)), (total, iter(data))):
        with pytest.raises(ProfileOnlyError, match=function.__name__):
            strategy.run(function, args=(argument,))
        assert strategy.executable(function).profile().cycles > 0


# --- abstract variables


@pytest.mark.parametrize("policy", ["float32", "float16", "mixed_float16"])
def test_dtypes_and_shapes_are_those_of_real_variables(policy):
    def make():
        model = keras.Sequential(
            [keras.Input((40,)), keras.layers.Dense(64, dtype=policy), keras.layers.Embedding(50, 40, dtype=policy)]
        )
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    real, abstract = in_scope(make), in_scope(make, execute=False)
    pairs = list(zip(real.variables, abstract.variables, strict=True))
    assert [(v.value.shape, v.value.dtype) for v, _ in pairs] == [(w.value.shape, w.value.dtype) for _, w in pairs]
    assert [v.trainable for v, _ in pairs] == [w.trainable for _, w in pairs]
    assert float(abstract.optimizer.learning_rate) == float(real.optimizer.learning_rate) > 0
    for _, variable in pairs:
        if np.prod(variable.shape) * 4 > 2 * SMALL_BYTES:
            assert not np.asarray(variable).any()


def test_what_is_assigned_to_one_variable_stays_there():
    shape = (64, 64)
    with abstract_variables():
        one, other = (tf.Variable(lambda: tf.random.normal(shape)) for _ in range(2))
        late = tf.Variable(tf.zeros(shape))
    one.assign_add(tf.ones(shape))
    late.assign(tf.fill(shape, 2.0))
    late[0].assign(tf.fill(shape[1:], 3.0))
    assert float(tf.reduce_sum(one)) == 64 * 64 and float(tf.reduce_max(late)) == 3 and float(tf.reduce_sum(other)) == 0
    with abstract_variables():
        assert float(tf.reduce_sum(tf.Variable(lambda: tf.random.normal(shape)))) == 0


def test_an_initializer_that_needs_eager_values_is_computed():
    with abstract_variables():
        variable = tf.Variable(lambda: tf.constant(tf.ones((64, 64)).numpy() * 3))
        named = tf.Variable("text")
    assert float(tf.reduce_sum(variable)) == 3 * 64 * 64 and named.numpy() == b"text"
    assert float(tf.reduce_sum(tf.Variable(tf.ones((64, 64))))) == 64 * 64  # after the context


# --- the low-level door, and what does not fit


def module(columns=4):
    spec = [tf.TensorSpec((8, 64)), tf.TensorSpec((64, columns))]
    return tf.function(lambda x, w: x @ w, jit_compile=True).experimental_get_compiler_ir(*spec)(stage="hlo_serialized")


def too_large(**arguments):
    return hlo.compile(module(1 << 23), state={1: None}, name="large", **arguments)


def test_hlo_without_execution(tmp_path):
    exe = hlo.compile(module(), execute=False, name="product")
    x, w = np.ones((8, 64), np.float32), np.full((64, 4), 2, np.float32)
    for use in (lambda: exe.run(x, w), lambda: exe.run(), exe.engine):
        with pytest.raises(ProfileOnlyError, match=r"product was compiled with execute=False.*profile\(\)"):
            use()
    assert exe.profile().cycles == hlo.compile(module(), name="product").profile().cycles
    exe.save(tmp_path / "product.ipu")
    np.testing.assert_array_equal(hlo.load(tmp_path / "product.ipu").run(x, w)[0], np.full((8, 4), 128))


@pytest.mark.parametrize("execute", [True, False])
def test_a_program_that_does_not_fit_is_profiled_if_that_is_allowed(tmp_path, execute):
    with pytest.raises(ipu_keras.errors.IPUOutOfMemoryError) as caught:
        too_large(execute=execute)
    exe = too_large(execute=execute, options={"allow_out_of_memory": True})
    memory = exe.profile().memory
    assert not memory.fits and memory.max_tile_bytes == caught.value.need > caught.value.have == memory.limit
    np.testing.assert_array_equal(memory.by_tile, caught.value.report.by_tile)
    assert exe.profile().cycles > 0 and exe.program.header["overflows"] is True
    exe.save(tmp_path / "large.ipu")
    again = hlo.load(tmp_path / "large.ipu")
    assert again.program.header["overflows"] is True and not again.profile().memory.fits
    for use in (again.engine, lambda: Engine(again.program), lambda: again.run()):
        with pytest.raises(ProfileOnlyError, match=r"large does not fit gc200.*allow_out_of_memory"):
            use()
    assert "overflows" not in hlo.compile(module(), options={"allow_out_of_memory": True}).program.header


def test_a_model_that_does_not_fit():
    def make():
        model = keras.Sequential([keras.layers.Dense(1 << 14), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    batch = (tf.TensorSpec((2, 1 << 14)), tf.TensorSpec((2, 1)))
    with pytest.raises(ipu_keras.errors.IPUOutOfMemoryError) as caught:
        analyse(in_scope(make, execute=False), "train", batch)
    assert caught.value.report.max_tile_bytes > caught.value.report.limit
    model = in_scope(make, execute=False, options={"allow_out_of_memory": True})
    assert analyse(model, "train", batch).profile().memory.max_tile_bytes == caught.value.need


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ({"debug.allowOutOfMemory": "true"}, True),
        ({"debug.allowOutOfMemory": True, "debug.instrument": "true"}, True),
        ({"debug.allowOutOfMemory": "false"}, False),
        ({"debug.instrument": "true"}, False),
    ],
)
def test_poplar_engine_options(monkeypatch, value, allowed):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(value))
    if allowed:
        assert not too_large().profile().memory.fits
        with pytest.raises(ipu_keras.errors.IPUOutOfMemoryError):
            too_large(options={"allow_out_of_memory": False})
    else:
        with pytest.raises(ipu_keras.errors.IPUOutOfMemoryError):
            too_large()


@pytest.mark.parametrize("value", ["{", "[]", '{"debug.allowOutOfMemory": "yes"}', '{"debug.allowOutOfMemory": 1}'])
def test_wrong_poplar_engine_options(monkeypatch, value):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", value)
    with pytest.raises(ConfigError, match="POPLAR_ENGINE_OPTIONS"):
        hlo.compile(module())


def test_wrong_option():
    with pytest.raises(ConfigError, match="allow_out_of_memory must be True or False, not 'yes'"):
        hlo.compile(module(), options={"allow_out_of_memory": "yes"})
