"""The layers in a pipeline of two stages: the steps of one large batch, and masks of their own in each stage."""

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.keras import layers
from ipu_keras.keras.optimizers import AdamIpuOptimizer
from ipu_keras.keras.pipeline import PipelineStage
from ipu_keras.ops import _seeds
from tests.api.layers.device import same

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def two_chips():
    config = IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    yield
    reset_ipu_configuration()


def _model(first, second, shape, **kwargs):
    """Two lists of layers, each in a stage of its own."""
    inputs = x = keras.Input(shape, **kwargs)
    for number, stage in enumerate((first, second)):
        with PipelineStage(number):
            for layer in stage:
                x = layer(x)
    return keras.Model(inputs, x)


def test_recurrent_layers_and_normalizations():
    x, y = RNG.integers(0, 8, (32, 6)).astype(np.int32), RNG.normal(size=(32, 2)).astype(np.float32)
    first = [layers.Embedding(8, 4), layers.GRU(5, return_sequences=True), layers.GroupNorm(1)]
    second = [layers.LSTM(4), layers.LayerNorm(), layers.SerialDense(2, 2, "kernel_rows")]
    with IPUStrategy().scope():
        model = _model(first, second, (6,), dtype="int32")
        model.compile(AdamIpuOptimizer(0.01, epsilon=4e-2), "mse", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    copies = [type(layer).from_config(layer.get_config()) for layer in (*first, *second)]
    plain = keras.Sequential([keras.Input((6,), dtype="int32"), *copies])
    plain.compile(AdamIpuOptimizer(0.01, epsilon=1e-2), "mse", jit_compile=False)
    before = model.get_weights()
    plain.set_weights(before)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    plain.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    same(model.get_weights(), plain.get_weights(), 1e-3, 1e-5)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_dropout_in_both_stages():
    _seeds.reset(3)
    ones, zeros = np.ones((16, 30), np.float32), np.zeros((16, 30), np.float32)
    with IPUStrategy().scope():
        kept = keras.layers.Dense(30, use_bias=False)
        model = _model([layers.Dropout(0.5)], [layers.Dropout(0.5), kept], (30,))
        model.compile(keras.optimizers.SGD(0.0), "mae", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    kept.set_weights([np.eye(30, dtype=np.float32)])
    loss = model.fit(ones, zeros, batch_size=4, verbose=0).history["loss"][0]
    # Of ones, a quarter is left, four times as large; with one mask in both stages a half would be.
    assert 0.5 < loss < 1.5
