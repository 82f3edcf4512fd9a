"""A small net in two stages, its pipeline, and what float64 arithmetic makes of the same data."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras import pipelining_ops as po
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedQueue
from ipu_keras.pipelining_ops import OptimizerFunctionOutput

v1 = tf.compat.v1.train
BATCH, RATE = 2, 0.1
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(96, 3)).astype(np.float32), RNG.normal(size=(96, 1)).astype(np.float32)
START = [RNG.normal(size=(3, 4)).astype(np.float32) / 2, RNG.normal(size=(4, 1)).astype(np.float32) / 2]


class Net:
    """Two layers with a tanh in between, one in each stage; the loss is the mean squared error."""

    def __init__(self):
        self.w = [tf.Variable(w) for w in START]

    def first(self, x, y):
        return tf.tanh(x @ self.w[0]), y

    def second(self, h, y):
        return h @ self.w[1], y

    def loss(self, p, y):
        return tf.reduce_mean((p - y) ** 2)


def run(program, ipus=2):
    return IPUStrategy(strict=True, ipus=ipus).run(tf.function(program))


def data():
    with tf.init_scope():
        return IPUInfeedQueue(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=True).repeat())


def trained(optimizer, count=4, ipus=2, output=OptimizerFunctionOutput, net=None, queue=None, **arguments):
    """(the net, what is in the queue) after a pipeline."""
    net, queue = net or Net(), queue or IPUOutfeedQueue()
    made = lambda p, y: output(optimizer, net.loss(p, y))  # noqa: E731
    arguments = {"outfeed_loss": True, **arguments}
    infeed = data()

    def program():
        po.pipeline(
            [net.first, net.second],
            count,
            infeed_queue=infeed,
            outfeed_queue=queue,
            optimizer_function=made,
            **arguments,
        )

    run(program, ipus)
    return net, queue


def forward(w, x):
    h = np.tanh(x.astype(np.float64) @ w[0])
    return h, h @ w[1]


def gradients(w, x, y):
    """(loss, gradients) of a batch, in float64."""
    h, p = forward(w, x)
    error = p - y
    d = 2 * error / error.size
    return (error**2).mean(), [x.astype(np.float64).T @ (d @ w[1].T * (1 - h * h)), h.T @ d]


def reference(update, count=4, replicas=1, repeat=1, divisor=1):
    """(weights, losses [steps, replicas])."""
    w, losses, at = [s.astype(np.float64) for s in START], [], 0
    for _ in range(repeat):
        total = [0.0, 0.0]
        for _ in range(count * replicas):
            loss, found = gradients(w, X[at : at + BATCH], Y[at : at + BATCH])
            losses.append(loss)
            total = [t + g / divisor for t, g in zip(total, found, strict=True)]
            at += BATCH
        w = [a - b for a, b in zip(w, update(total), strict=True)]
    return w, np.reshape(losses, (repeat * count, replicas))


def sgd(total):
    return [RATE * t for t in total]


def same(ours, theirs, rtol=2e-5):
    assert len(ours) > 0
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=2e-6)


class Momentum:
    state = (0.0, 0.0)

    def __call__(self, total):
        self.state = [0.9 * s + t for s, t in zip(self.state, total, strict=True)]
        return [RATE * s for s in self.state]
