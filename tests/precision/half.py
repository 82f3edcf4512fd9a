"""What the tests of this folder share: a configured system, a small fp16 model, a program's states."""

import contextlib

import keras
import numpy as np

import ipu_keras as ipu
from ipu_keras.config import IPUConfig, StochasticRoundingBehaviour

OFF, ON, IDENTICAL = StochasticRoundingBehaviour


@contextlib.contextmanager
def system(policy="float16", ipus=1, stable=False, **behaviour):
    """A configured system and a dtype policy, for as long as the context is open."""
    config = IPUConfig()
    config.auto_select_ipus = ipus
    config.experimental.enable_prng_stability = stable
    for name, value in behaviour.items():
        setattr(config.floating_point_behaviour, name, value)
    config.configure_ipu_system()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        with ipu.IPUStrategy().scope():
            yield
    finally:
        keras.config.set_dtype_policy(before)
        ipu.config.reset_ipu_configuration()


def data(samples=32, width=8, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(samples, width)).astype(np.float16)
    return x, x[:, :1]


def small(optimizer=None, **compiling):
    """Two dense layers, compiled; made in the scope that is open."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="tanh", name="first"),
            keras.layers.Dense(1, name="second"),
        ]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.01), "mse", **compiling)
    return model


def weights(model):
    return [v.numpy() for v in model.trainable_variables]


def equal(a, b):
    assert len(a) == len(b) > 0
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def replicas_weights(model, replicas):
    """The fp16 states that each replica holds."""
    program = model.train_function.session.latest
    states = [s["param"] for s in program.executable.program.header["states"] if s["dtype"] == "f16" and s["updated"]]
    return [[program.engine.read_state(p, r) for p in states] for r in range(replicas)]
