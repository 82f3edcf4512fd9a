"""A layer on the emulated tiles and on the host: its outputs, and its gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ipu_keras import IPUStrategy
from tests.api.ops import device


def step(call, weights, *arrays, host=False):
    """(outputs, gradients for the arrays that are floating-point, gradients for the weights), of a wave-weighted sum.

    Args:
        call: a function of the tensors, such as a layer.
        weights: the variables.
        *arrays: arguments of `call`.
        host: whether TensorFlow runs it.
    """

    def run(*tensors):
        watched = [t for t in tensors if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = call(*tensors)
            loss = tf.zeros(())
            for output in tf.nest.flatten(outputs):
                flat = tf.cast(tf.reshape(output, [-1]), tf.float32)
                loss += tf.reduce_sum(flat * tf.cos(tf.cast(tf.range(tf.size(flat)), tf.float32)))
        variables = [w.value for w in weights]
        to_inputs, to_weights = tape.gradient(loss, [watched, variables])
        return outputs, to_inputs, [tf.convert_to_tensor(g) for g in to_weights]

    if host:
        result = run(*map(tf.constant, arrays))
    else:
        result = IPUStrategy().run(tf.function(run), tuple(arrays))
    return tf.nest.map_structure(np.asarray, result)


def same(ours, theirs, rtol=1e-4, atol=1e-5):
    """Compares structures of arrays, for products that are summed up in another order."""
    device.same(ours, theirs, rtol, atol)


def fit_both(make, x, y, tmp_path, rtol=1e-3, atol=1e-5):
    """Trains the model that `make` gives, in the scope and outside it: equal weights, which changed. Then saves it.

    Args:
        make: gives a compiled model.
        x: inputs.
        y: targets.
        tmp_path: a folder.
        rtol: of the comparison of weights.
        atol: of the comparison of weights.

    Returns:
        the model in the scope.
    """
    import keras

    with IPUStrategy().scope():
        inside = make()
    outside = make()
    outside.set_weights(inside.get_weights())
    outside.jit_compile = False
    before = inside.get_weights()
    for model in (inside, outside):
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    same(inside.get_weights(), outside.get_weights(), rtol, atol)
    trained = {id(w) for w in inside.trainable_weights}
    for variable, old in zip(inside.weights, before, strict=True):
        assert id(variable) not in trained or (np.asarray(variable) != old).any(), variable.path
    inside.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(inside.predict(x, batch_size=8, verbose=0).shape, y.shape)
    same(inside.predict(x, batch_size=8, verbose=0), loaded.predict(x, batch_size=8, verbose=0))
    return inside
