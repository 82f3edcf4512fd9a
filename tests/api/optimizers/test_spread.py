"""Optimizers over replicas and accumulated micro-batches: the steps of one large batch."""

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.keras import layers
from ipu_keras.keras.optimizers import AdamIpuOptimizer, ALSOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer
from ipu_keras.ops import _seeds

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 5)).astype(np.float32), RNG.normal(size=(32, 2)).astype(np.float32)

# Gradients are sums over replicas and micro-batches: a rate (or an epsilon, where lengths do not matter) undoes that.
OPTIMIZERS = {
    "als": lambda n: ALSOptimizer(keras.optimizers.SGD(0.1 / n), 2, update_frequency=1),
    "adam": lambda n: AdamIpuOptimizer(0.01, epsilon=1e-3 * n),
    "sgd": lambda n: SGDIpuOptimizer(0.1 / n, 0.5),
    "lamb": lambda n: LAMBIpuOptimizer(0.01, epsilon=1e-3 * n),
}


@pytest.fixture
def device():
    def configure(ipus):
        config = IPUConfig()
        config.auto_select_ipus = ipus
        config.configure_ipu_system()

    yield configure
    reset_ipu_configuration()


def _model(optimizer, *, dropout=0.0, **kwargs):
    keras.utils.set_random_seed(2)
    hidden = [keras.layers.Dense(4, "tanh"), layers.Dropout(dropout)]
    model = keras.Sequential([keras.Input((5,)), *hidden, keras.layers.Dense(2)])
    model.compile(optimizer, "mse", **kwargs)
    return model


@pytest.mark.parametrize("replicas, steps", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_spread_fit_is_that_of_large_batches(device, name, replicas, steps):
    device(replicas)
    parts = replicas * steps
    with IPUStrategy().scope():
        spread = _model(OPTIMIZERS[name](parts), steps_per_execution=steps)
        spread.set_gradient_accumulation_options(steps)
    spread.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    plain = _model(OPTIMIZERS[name](1), jit_compile=False)
    plain.fit(X, Y, batch_size=4 * parts, shuffle=False, verbose=0)
    for a, b in zip(spread.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
    if name == "als":  # an update of the factor for each of the weights, and one factor for all replicas
        updates = 8 // parts
        assert float(spread.optimizer.loss_scaling_factor) == 2 * 2**updates


def test_captured_gradients_are_accumulated_before_they_are_counted(device):
    device(1)
    x, y = X.astype(np.float16), Y.astype(np.float16)
    with IPUStrategy().scope():
        keras.utils.set_random_seed(2)
        last = layers.CaptureUpstreamGradients(keras.layers.Dense(2, dtype="float16"), dtype="float16")
        model = keras.Sequential([keras.Input((5,), dtype="float16"), last])
        optimizer = ALSOptimizer(keras.optimizers.SGD(0.1), captured_grads_only=True)
        model.compile(optimizer, "mse", steps_per_execution=4)
        model.set_gradient_accumulation_options(4)
    model.fit(x, y, batch_size=4, verbose=0)
    np.testing.assert_array_equal(optimizer.histogram, [2 * 4 * 2, 0])  # 8 values in each of two updates


def test_replicas_drop_different_elements(device):
    """Both replicas have the same data: with the same masks an even sum of gradients would be twice an odd one."""
    device(2)
    _seeds.reset(3)
    ones, zeros = np.ones((8, 40), np.float32), np.zeros((8, 40), np.float32)
    with IPUStrategy().scope():
        model = keras.Sequential([keras.Input((40,)), layers.Dropout(0.5), keras.layers.Dense(40, use_bias=False)])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    model.layers[-1].set_weights([np.eye(40, dtype=np.float32)])
    model.fit(ones, zeros, batch_size=4, shuffle=False, verbose=0)
    # Each kept element adds 2 * 2 * 2 / (4 * 40) to its diagonal entry of the kernel's gradient.
    counts = (1 - np.diag(model.layers[-1].get_weights()[0])) / (8 / 160)
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-3)
    assert 0 < counts.mean() < 8 and (np.rint(counts) % 2 == 1).any()
