"""Runs a function of arrays on the emulated tiles, with its gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ipu_keras import IPUStrategy


def run(fn, *arrays):
    """The function's results on the tiles, as arrays."""
    result = IPUStrategy().run(tf.function(lambda *a: fn(*a)), tuple(np.asarray(a) for a in arrays))
    return tf.nest.map_structure(np.asarray, result)


def gradients(fn, *arrays, host=False):
    """(result, gradients of sum(result * wave) for all floating-point arguments); a wave has no symmetry."""

    def both(*tensors):
        watched = [t for t in tensors if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            result = fn(*tensors)
            flat = tf.cast(tf.reshape(result, [-1]), tf.float32)
            loss = tf.reduce_sum(flat * tf.cos(tf.cast(tf.range(tf.size(flat)), tf.float32)))
        return result, [tf.convert_to_tensor(g) for g in tape.gradient(loss, watched)]

    if host:
        return tf.nest.map_structure(np.asarray, both(*map(tf.constant, arrays)))
    return run(both, *arrays)


def same(ours, theirs, rtol=1e-5, atol=1e-6):
    """Compares structures of arrays, in which there is something."""
    ours, theirs = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype.kind == b.dtype.kind, (a.shape, b.shape, a.dtype, b.dtype)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)
