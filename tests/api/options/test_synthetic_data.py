"""Data made up on the chip (api.md section 17): nothing streams, and what is computed is of the made-up data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras import IPUStrategy
from ipu_keras.compiler.synthetic import values
from ipu_keras.errors import ConfigError
from ipu_keras.utils import SyntheticDataCategory, use_synthetic_data_for
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.program import STREAM_IN, STREAM_OUT

X = np.arange(32, dtype=np.float32).reshape(8, 4)
Y = np.arange(8) % 3
EVERYTHING = "--use_synthetic_data"


@pytest.fixture
def flags(monkeypatch):
    return lambda text: monkeypatch.setenv("TF_POPLAR_FLAGS", text)


def model(stages=False):
    inputs = keras.Input((4,))
    if stages:
        with ipu.keras.PipelineStage(0):
            x = keras.layers.Dense(5, "relu", kernel_initializer="ones", name="first")(inputs)
        with ipu.keras.PipelineStage(1):
            outputs = keras.layers.Dense(3, kernel_initializer=keras.initializers.Constant(0.5), name="second")(x)
    else:
        outputs = keras.layers.Dense(3, kernel_initializer=keras.initializers.Constant(0.5))(inputs)
    return keras.Model(inputs, outputs)


def test_which_categories(flags):
    assert not any(use_synthetic_data_for(category) for category in SyntheticDataCategory)
    flags(EVERYTHING)
    assert all(use_synthetic_data_for(category) for category in SyntheticDataCategory)
    flags("--use_ipu_model --synthetic_data_categories='outfeed,infeed'")
    on = [category.name for category in SyntheticDataCategory if use_synthetic_data_for(category)]
    assert on == ["Infeed", "Outfeed"]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("--synthetic_data_categories=infeed,inputs", "'inputs'"),
        ("--synthetic_data_initializer=1", "needs --use_synthetic_data"),
        ("--use_synthetic_data --synthetic_data_initializer=gauss", "uniform, random, normal"),
        ("--use_synthetic_data --synthetic_data_initializer=nan", "uniform, random, normal"),
        ("--use_synthetic_data --synthetic_data_categories=infeed", "all categories"),
    ],
)
def test_refused(flags, text, phrase):
    flags(text)
    with pytest.raises(ConfigError, match=phrase):
        IPUStrategy().run(tf.function(lambda x: x + 1), args=(X,))


def test_values():
    half, small = values((4000,), np.dtype(np.float16), "uniform", "a"), np.dtype(np.int8)
    assert np.isfinite(half).all() and half.min() < -6e4 < 6e4 < half.max()
    assert set(values((4000,), small, "random", "a").tolist()) == set(range(-128, 128))
    normal = values((40_000,), np.dtype(np.float32), "normal", "a")
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert (values((3,), small, "normal", "a") == 1).all() and (values((3,), small, "-2.7", "a") == -2).all()
    assert (values((3,), np.dtype(np.float16), "7.9", "a") == 7).all()
    assert not values((3,), small, None, "a").any()
    assert (values((9,), small, "uniform", "a") != values((9,), small, "uniform", "b")).any()


def test_a_function_computes_with_the_made_up_value(flags):
    flags("--synthetic_data_categories=infeed --synthetic_data_initializer=3")
    for _ in range(2):
        out = IPUStrategy().run(tf.function(lambda x, n: (x * 2 + 1, n - 1)), args=(tf.constant(X), tf.constant(Y)))
        assert (out[0].numpy() == 7).all() and (out[1].numpy() == 2).all()


def test_keras_without_any_transfer(flags):
    flags(EVERYTHING + " --synthetic_data_initializer=normal")
    with IPUStrategy().scope():
        ours = model()
        ours.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        before = ours.get_weights()
        history = ours.fit(X, Y, batch_size=4, verbose=0).history
        assert {name: value for name, (value,) in history.items()} == {"accuracy": 0, "loss": 0}
        predicted = ours.predict(X, batch_size=4, verbose=0)
        assert predicted.shape == (8, 3) and not predicted.any()
        for a, b in zip(before, ours.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        profile = ipu.executable(ours, "train").profile()
    assert profile.cycles > 0 and not any(step.kind in (STREAM_IN, STREAM_OUT) for step in profile.steps)


def test_weights_that_are_sent_and_data_that_is_not(flags):
    """Trained on constant 2 and class 2: the loss of the first step is that of these."""
    flags("--synthetic_data_categories=infeed --synthetic_data_initializer=2")
    with IPUStrategy().scope():
        ours = model()
        ours.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        loss = ours.fit(X[:4], Y[:4], batch_size=4, verbose=0).history["loss"][0]
        assert loss == pytest.approx(np.log(3), rel=1e-6)  # equal logits
        bias = ours.get_weights()[1]
        # The gradient is the softmax, 1/3 each, less 1 at the class.
        np.testing.assert_allclose(bias, [-0.01 / 3, -0.01 / 3, 0.02 / 3], rtol=1e-5)


def test_a_pipeline_with_accumulation(flags):
    flags("--synthetic_data_categories=infeed --synthetic_data_initializer=1")
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    try:
        with IPUStrategy().scope():
            ours = model(stages=True)
            ours.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
            ours.compile("sgd", "mse", steps_per_execution=4)
            loss = ours.fit(np.tile(X, (2, 1)), np.zeros((16, 3), "f"), batch_size=4, verbose=0).history["loss"][0]
    finally:
        ipu.config.reset_ipu_configuration()
    assert loss == pytest.approx((5 * 4 * 0.5 - 1) ** 2, rel=1e-6)  # the targets are 1, too


@pytest.mark.parametrize("mode", ipu.ipu_outfeed_queue.IPUOutfeedMode)
def test_queues(flags, mode):
    """An infeed gives nothing away, an outfeed that keeps all has nothing, one that keeps the last cannot be asked."""
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(X).repeat())
    outfeed, last = ipu.ipu_outfeed_queue.IPUOutfeedQueue(mode), tf.Variable(0.0)

    @tf.function
    def run():
        def body(x):
            last.assign_add(tf.reduce_sum(x))
            return outfeed.enqueue(x)

        ipu.loops.repeat(3, body, [], infeed)

    flags("--synthetic_data_categories=infeed,outfeed --synthetic_data_initializer=5")
    strategy = IPUStrategy()
    with strategy.scope():
        strategy.run(run)
    assert float(last) == 3 * 4 * 5
    if mode is ipu.ipu_outfeed_queue.IPUOutfeedMode.ALL:
        assert outfeed.dequeue().shape == (0, 4)
    else:
        with pytest.raises(ValueError, match="not been enqueued"):
            outfeed.dequeue()


def test_a_saved_executable(flags, tmp_path):
    flags("--use_synthetic_data --synthetic_data_initializer=4")
    strategy, function = IPUStrategy(), tf.function(lambda x: x + 1)
    strategy.run(function, args=(tf.constant(X),))
    strategy.executable(function).save(tmp_path / "made_up.ipu")
    flags("")
    (out,) = ipu.hlo.load(tmp_path / "made_up.ipu").run(X)
    assert out.shape == X.shape and not out.any()


@pytest.mark.parametrize(
    "entry",
    [
        {"output": 0, "shape": [-1], "dtype": "f32"},
        {"output": 0, "shape": [1 << 40], "dtype": "f32"},
        {"output": 0, "shape": [2], "dtype": "f99"},
        {"output": 0, "shape": [2], "dtype": "f32", "micro": 1 << 40},
        {"output": "0", "shape": [2], "dtype": "f32"},
        [],
    ],
)
def test_a_file_that_says_nonsense(tmp_path, entry):
    strategy, function = IPUStrategy(), tf.function(lambda x: x + 1)
    strategy.run(function, args=(tf.constant(X),))
    exe = strategy.executable(function)
    exe.program.header["synthetic"]["outputs"] = [entry]
    exe.save(tmp_path / "altered.ipu")
    with pytest.raises(ExecutableFormatError, match=r"synthetic outputs|too large"):
        ipu.hlo.load(tmp_path / "altered.ipu")
