"""Loss scaling with state of scaled gradients: its steps are those of Keras's optimizers with divided gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras.optimizers import ALSOptimizerAdam, ALSOptimizerRMSProp, ALSOptimizerSGD

RNG = np.random.default_rng(12)
GRADIENTS = RNG.normal(size=(7, 4)).astype(np.float32)
LARGE = (2, 5)  # steps whose half-precision gradient makes the factor smaller

CASES = {
    "SGD": (ALSOptimizerSGD, keras.optimizers.SGD, {"learning_rate": 0.1}),
    "momentum": (ALSOptimizerSGD, keras.optimizers.SGD, {"learning_rate": 0.1, "momentum": 0.8}),
    "nesterov": (ALSOptimizerSGD, keras.optimizers.SGD, {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True}),
    "Adam": (ALSOptimizerAdam, keras.optimizers.Adam, {"learning_rate": 0.1, "epsilon": 0.1}),
    "amsgrad": (ALSOptimizerAdam, keras.optimizers.Adam, {"learning_rate": 0.1, "beta_2": 0.5, "amsgrad": True}),
    "RMSprop": (ALSOptimizerRMSProp, keras.optimizers.RMSprop, {"learning_rate": 0.1, "epsilon": 0.1}),
    "RMSprop, all": (
        ALSOptimizerRMSProp,
        keras.optimizers.RMSprop,
        {"learning_rate": 0.1, "rho": 0.6, "momentum": 0.5, "epsilon": 0.1, "centered": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_keras_steps_while_the_factor_changes(name):
    kind, plain_kind, arguments = CASES[name]
    optimizer = kind(**arguments, initial_loss_scaling_factor=16, update_frequency=1, increase_factor=4)
    optimizer = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    single, half = (keras.Variable(np.zeros(n), dtype=d) for n, d in ((4, "float32"), (1, "float16")))
    optimizer.build([single, half])

    @tf.function
    def step(gradient, other):
        scaled = gradient * optimizer.loss_scaling_factor
        optimizer.apply([scaled, other], [single, half])
        return tf.identity(single.value)

    strategy, ours, factors = IPUStrategy(), [], []
    for i, gradient in enumerate(GRADIENTS):
        other = np.float16([20000 if i in LARGE else 1])
        ours.append(np.asarray(strategy.run(step, (gradient, other))))
        factors.append(float(optimizer.loss_scaling_factor))
    assert factors == [64, 256, 64, 256, 1024, 256, 1024]

    plain, weight, theirs = plain_kind(**arguments), keras.Variable(np.zeros(4, np.float32)), []
    for gradient in GRADIENTS:
        plain.apply([tf.constant(gradient)], [weight])
        theirs.append(weight.numpy())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
