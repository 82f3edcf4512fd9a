"""Every function of `keras.activations`, and its gradient, against plain Keras."""

import functools
import inspect

import keras
import numpy as np
import pytest

from tests.against_keras import BATCH, check_training
from tests.namespace.choose import cases

NOT_ACTIVATIONS = {"deserialize", "get", "serialize"}
ARGUMENTS = {"threshold": {"threshold": 0.1, "default_value": 0.3}}
NAMES = {name for name, value in vars(keras.activations).items() if inspect.isfunction(value)} - NOT_ACTIVATIONS


@pytest.mark.parametrize("name", cases(NAMES, keras.activations, {"gelu"}))
def test_activation(name):
    def model():
        symbolic = keras.Input((5,))
        function = functools.partial(getattr(keras.activations, name), **ARGUMENTS.get(name, {}))
        active = keras.layers.Lambda(function)(keras.layers.Dense(6)(symbolic))
        result = keras.Model(symbolic, keras.layers.Dense(2)(active))
        result.compile(keras.optimizers.SGD(0.02), "mse", jit_compile=True)
        return result

    rng = np.random.default_rng(1)
    x = rng.normal(size=(2 * BATCH, 5)).astype(np.float32)
    check_training(model, x, rng.normal(size=(2 * BATCH, 2)).astype(np.float32))
