"""Every regulariser and constraint of Keras against plain Keras, and that the optimizers have their tests elsewhere."""

import keras
import numpy as np
import pytest

from tests.against_keras import BATCH, check_training
from tests.keras import test_keras_optimizers as optimizers
from tests.namespace.choose import cases

BASES = {"Regularizer", "Constraint"}


def classes(namespace):
    return {name for name, value in vars(namespace).items() if isinstance(value, type)} - BASES


def check(**options):
    def model():
        rules = {place: make() for place, make in options.items()}
        layers = [keras.layers.Dense(4, activation="tanh", **rules), keras.layers.Dense(2)]
        result = keras.Sequential([keras.Input((5,)), *layers])
        result.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
        return result

    rng = np.random.default_rng(1)
    x = rng.normal(size=(2 * BATCH, 5)).astype(np.float32)
    check_training(model, x, rng.normal(size=(2 * BATCH, 2)).astype(np.float32))


@pytest.mark.parametrize("name", cases(classes(keras.regularizers), keras.regularizers, {"L1L2"}))
def test_regularizer(name):
    make = getattr(keras.regularizers, name)
    options = {"l1": 0.01, "l2": 0.02} if name in ("L1L2", "l1_l2") else {}
    activity = {} if "rthogonal" in name else {"activity_regularizer": make}
    check(kernel_regularizer=lambda: make(**options), **activity)


@pytest.mark.parametrize("name", cases(classes(keras.constraints), keras.constraints, {"MaxNorm"}))
def test_constraint(name):
    make = getattr(keras.constraints, name)
    check(kernel_constraint=(lambda: make(max_value=0.5)) if name in ("MaxNorm", "max_norm") else make)


def test_every_optimizer_has_its_test():
    base = keras.optimizers.Optimizer
    public = {n for n, v in vars(keras.optimizers).items() if isinstance(v, type) and issubclass(v, base)}
    assert public <= set(optimizers.NAMES) | optimizers.NOT_OPTIMIZERS_OF_THEIR_OWN
