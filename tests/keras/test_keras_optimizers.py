"""Every optimizer of Keras's namespace, by its own update, against plain Keras."""

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from tests.sweep import in_turns

# The base class; a wrapper with a test of its own; one that is made of others.
NOT_OPTIMIZERS_OF_THEIR_OWN = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
NAMES = sorted(
    name
    for name, value in vars(keras.optimizers).items()
    if isinstance(value, type)
    and issubclass(value, keras.optimizers.Optimizer)
    and name not in NOT_OPTIMIZERS_OF_THEIR_OWN
)


@pytest.mark.parametrize("name", in_turns(NAMES, 4, always=("Adam", "SGD")))
def test_optimizer(name):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype(np.float32), rng.integers(0, 3, 32)

    def built():
        keras.utils.set_random_seed(0)
        keras.backend.clear_session(free_memory=False)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
        optimizer = getattr(keras.optimizers, name)(0.01)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
        return model

    with IPUStrategy().scope():
        ours = built()
    theirs = built()
    theirs.set_weights(ours.get_weights())
    # Built inside its first traced step, plain Keras's ScheduleFreeAdamW starts from zeros instead of the weights.
    theirs.optimizer.build(theirs.trainable_variables)
    try:
        expected = theirs.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    except AttributeError as error:  # Muon of Keras 3.12
        pytest.skip(f"plain Keras {keras.__version__} cannot train with {name}: {error}")
    losses = ours.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="this Keras has no such optimizer")
def test_a_model_built_by_its_first_batch_and_an_optimizer_that_starts_from_its_weights():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 6)).astype(np.float32), rng.normal(size=(16, 2)).astype(np.float32)
    with IPUStrategy().scope():
        ours = keras.Sequential([keras.layers.Dense(2)])
        ours.compile(keras.optimizers.ScheduleFreeAdamW(0.01), "mse")
    ours.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    momentum = next(v for v in ours.optimizer.variables if "kernel_momentum" in v.path)
    # After four steps the averaged weights and the fast ones have parted; assigned anew in each step they could not.
    assert np.abs(momentum.numpy() - ours.layers[0].kernel.numpy()).max() > 1e-4
