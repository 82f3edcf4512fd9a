"""Optimizers around those of tf.compat.v1.train, on one replica and on several, beside float64 arithmetic."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, loops, optimizers
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ops import cross_replica_ops

v1 = tf.compat.v1.train
BATCH, RATE = 2, 0.1
X = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
W, B = np.linspace(-0.4, 0.5, 6).reshape(3, 2).astype(np.float32), np.float32([0.1, -0.2])


def trained(optimizer, steps, replicas=1, runs=1):
    """Weights after a linear regression towards 1 in a loop of the device; the weights of one sample are its own."""
    w, b = tf.Variable(W), tf.Variable(B)
    queue = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(X).batch(BATCH, drop_remainder=True))

    @tf.function
    def program():
        def body(x):
            loss = tf.reduce_mean((x @ w + b - 1.0) ** 2)
            optimizer.apply_gradients(optimizer.compute_gradients(loss, [w, b]))

        loops.repeat(steps // runs, body, infeed_queue=queue)

    strategy = IPUStrategy(strict=True, ipus=replicas)
    for _ in range(runs):
        strategy.run(program)
    return w.numpy(), b.numpy()


class Reference:
    """The same in float64.

    Args:
        update: takes the gradients of an update; gives what is subtracted from each weight.
    """

    def __init__(self, update):
        self.weights, self.update, self.taken = [W.astype(np.float64), B.astype(np.float64)], update, 0

    def gradients(self):
        x = X[self.taken : self.taken + BATCH].astype(np.float64)
        self.taken += BATCH
        error = 2 * (x @ self.weights[0] + self.weights[1] - 1) / (BATCH * 2)
        return [x.T @ error, error.sum(0)]

    def step(self, replicas=1, batches=1, divisor=1, change=lambda g, w: g):
        found = [self.gradients() for _ in range(replicas * batches)]
        means = [change(sum(gs) / divisor, w) for gs, w in zip(zip(*found), self.weights, strict=True)]
        self.weights = [w - d for w, d in zip(self.weights, self.update(means), strict=True)]


def sgd(gradients):
    return [RATE * g for g in gradients]


class Momentum:
    def __init__(self):
        self.state = [0.0, 0.0]

    def __call__(self, gradients):
        self.state = [0.9 * s + g for s, g in zip(self.state, gradients, strict=True)]
        return [RATE * s for s in self.state]


class Adam:
    def __init__(self):
        self.first, self.second, self.t = [0.0, 0.0], [0.0, 0.0], 0

    def __call__(self, gradients):
        self.t += 1
        self.first = [0.9 * m + 0.1 * g for m, g in zip(self.first, gradients, strict=True)]
        self.second = [0.999 * v + 0.001 * g * g for v, g in zip(self.second, gradients, strict=True)]
        rate = RATE * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return [rate * m / (np.sqrt(v) + 1e-3) for m, v in zip(self.first, self.second, strict=True)]


def adam():
    return v1.AdamOptimizer(RATE, epsilon=1e-3)


def check(found, reference):
    assert len(found) > 0
    for ours, theirs in zip(found, reference.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("replicas", [1, 4])
def test_cross_replica_takes_the_mean(replicas):
    found = trained(optimizers.CrossReplicaOptimizer(v1.MomentumOptimizer(RATE, 0.9)), 4, replicas, runs=2)
    reference = Reference(Momentum())
    for _ in range(4):
        reference.step(replicas, divisor=replicas)
    check(found, reference)


@pytest.mark.parametrize("method", ["SUM", "MEAN", "RUNNING_MEAN"])
def test_accumulation(method):
    by = optimizers.GradientAccumulationReductionMethod[method]
    found = trained(optimizers.GradientAccumulationOptimizerV2(adam(), 3, reduction_method=by), 8, runs=2)
    reference = Reference(Adam())
    for _ in range(2):  # the third update is not complete after eight batches
        reference.step(batches=3, divisor=1 if method == "SUM" else 3)
    check(found, reference)


@pytest.mark.parametrize("inner", ["sgd", "adam"])
def test_accumulation_then_the_mean_over_replicas(inner):
    make, rule = (adam, Adam()) if inner == "adam" else (lambda: v1.GradientDescentOptimizer(RATE), sgd)
    optimizer = optimizers.CrossReplicaGradientAccumulationOptimizerV2(make(), 2, reduction_method="sum")
    found = trained(optimizer, 4, replicas=2)
    reference = Reference(rule)
    for _ in range(2):
        reference.step(replicas=2, batches=2, divisor=2)
    check(found, reference)
    assert len(optimizer.variables()) == 3 + len(optimizer._optimizer.variables())


def test_gradients_are_mapped_before_they_are_applied():
    decay = optimizers.MapGradientOptimizer(v1.GradientDescentOptimizer(RATE), lambda g, v: 2 * g + 0.5 * v)
    reference = Reference(sgd)
    for _ in range(3):
        reference.step(change=lambda g, w: 2 * g + 0.5 * w)
    check(trained(optimizers.IpuOptimizer(decay), 3), reference)


def test_accumulators_may_have_another_dtype():
    seen = []

    def cast(gradient, variable):
        seen.append(gradient.dtype)
        return tf.cast(gradient, variable.dtype)

    inner = optimizers.MapGradientOptimizer(v1.GradientDescentOptimizer(RATE), cast)
    for dtype in (tf.float16, lambda variable: "float16"):
        found = trained(optimizers.GradientAccumulationOptimizerV2(inner, 2, dtype=dtype), 2)
        reference = Reference(sgd)
        reference.step(batches=2)
        for ours, theirs in zip(found, reference.weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)
            assert np.abs(ours - theirs).max() > 1e-7  # it was rounded
    assert set(seen) == {tf.float16}


def test_without_a_wrapper():
    reference = Reference(Momentum())
    for _ in range(3):
        reference.step()
    check(trained(v1.MomentumOptimizer(RATE, 0.9), 3), reference)


def test_slots_are_the_inner_optimizers():
    inner = v1.MomentumOptimizer(RATE, 0.9)
    outer = optimizers.CrossReplicaOptimizer(optimizers.IpuOptimizer(inner))
    assert outer.get_slot_names() == inner.get_slot_names()
    weight = tf.Variable(3.0)
    outer.apply_gradients([(tf.constant(2.0), weight), (None, tf.Variable(1.0))])
    assert outer.get_slot(weight, "momentum").numpy() == 2 and weight.numpy() == np.float32(3 - 0.2)


def test_keras_optimizers_sum_over_replicas():
    """What the IPU API says of them, beside the mean above: no wrapper, and the sum."""
    w, optimizer = tf.Variable(B), keras.optimizers.SGD(RATE)

    @tf.function
    def program():
        share = tf.cast(cross_replica_ops.cross_replica_sum(1), tf.float32)
        optimizer.apply_gradients([(w * share, w)])

    IPUStrategy(strict=True, ipus=4).run(program)
    np.testing.assert_allclose(w, B - RATE * 16 * B, rtol=1e-5)


def test_refusals():
    sgd_ = v1.GradientDescentOptimizer(RATE)
    for make in (
        optimizers.IpuOptimizer,
        optimizers.CrossReplicaOptimizer,
        lambda opt: optimizers.MapGradientOptimizer(opt, lambda g, v: g),
        lambda opt: optimizers.GradientAccumulationOptimizerV2(opt, 2),
        lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizerV2(opt, 2),
    ):
        with pytest.raises(ValueError, match=r"tf\.compat\.v1\.train\.Optimizer"):
            make(keras.optimizers.SGD(RATE))
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match="1 or more"):
            optimizers.GradientAccumulationOptimizerV2(sgd_, bad)
    with pytest.raises(ValueError, match="Cannot parse"):
        optimizers.GradientAccumulationOptimizerV2(sgd_, 2, reduction_method="max")
    with pytest.raises(ValueError, match="no gradient"):
        optimizers.GradientAccumulationOptimizerV2(sgd_, 2).apply_gradients([(None, tf.Variable(1.0))])
    for name in ("GradientAccumulationOptimizer", "ShardedOptimizer"):
        with pytest.raises(AttributeError, match="is not there; "):
            getattr(optimizers, name)
