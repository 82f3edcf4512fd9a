"""What replicas tell each other: each has rows of its own, from an infeed queue, and says what it got."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, loops
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedQueue
from ipu_keras.ops import (
    all_to_all_op,
    cross_replica_ops,
    rand_ops,
    reduce_scatter_op,
    replication_ops,
)

REPLICAS = 4
X = np.random.default_rng(0).normal(size=(REPLICAS, 5, 8)).astype(np.float32)


def on_replicas(fn, x=X, replicas=REPLICAS):
    """[replica, ...] of each result of a function of a replica's own part of `x`."""
    infeed, queue = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(x)), IPUOutfeedQueue()
    program = tf.function(lambda: loops.repeat(1, lambda part: queue.enqueue(fn(part)), infeed_queue=infeed))
    IPUStrategy(strict=True, ipus=replicas).run(program)
    return tf.nest.map_structure(lambda value: value.numpy()[0], queue.dequeue())


@pytest.mark.parametrize("size", [None, 1, 2, 4])
def test_sums_and_means_over_groups(size):
    groups = X.astype(np.float64).reshape(-1, size or REPLICAS, 5, 8)
    total, mean, count, half = on_replicas(
        lambda x: (
            cross_replica_ops.cross_replica_sum(x, size),
            cross_replica_ops.cross_replica_mean(x, size),
            cross_replica_ops.cross_replica_sum(tf.constant([1, 2]), replica_group_size=size),
            cross_replica_ops.cross_replica_mean(tf.constant(30000, tf.float16), size),
        )
    )
    want = np.repeat(groups.sum(1), groups.shape[1], 0)
    np.testing.assert_allclose(total, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, want / groups.shape[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(count, [[size or REPLICAS, 2 * (size or REPLICAS)]] * REPLICAS)
    assert half.tolist() == [30000] * REPLICAS  # whose sum is no number of fp16


def test_gradients_of_sums_come_from_all_replicas():
    def gradients(x):
        weight = tf.cast(replication_ops.replication_index() + 1, tf.float32)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            total = weight * tf.reduce_sum(cross_replica_ops.cross_replica_sum(x) ** 2)
            mean = weight * tf.reduce_sum(cross_replica_ops.cross_replica_mean(x, 2))
        return tape.gradient(total, x), tape.gradient(mean, x)

    of_total, of_mean = on_replicas(gradients)
    want = (1 + 2 + 3 + 4) * 2 * X.astype(np.float64).sum(0)
    np.testing.assert_allclose(of_total, np.broadcast_to(want, X.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_mean[:, 0, 0], [1.5, 1.5, 3.5, 3.5])


def test_gathers_and_scatters():
    gathered, both, swapped, joined, chunk, means, index = on_replicas(
        lambda x: (
            all_to_all_op.all_gather(x, REPLICAS),
            all_to_all_op.all_gather([tf.cast(x[0, 0] * 100, tf.int32), x[0]], REPLICAS),
            all_to_all_op.all_to_all(x, 1, 0, REPLICAS),
            all_to_all_op.all_to_all(x, 1, 1, REPLICAS),
            reduce_scatter_op.reduce_scatter(x[:, 0], REPLICAS),  # five elements in four chunks
            reduce_scatter_op.reduce_scatter([x[0]], REPLICAS, op="COLLECTIVE_OP_MEAN"),
            replication_ops.replication_index(),
        )
    )
    np.testing.assert_array_equal(gathered, [X] * REPLICAS)
    np.testing.assert_array_equal(both[0], [(X[:, 0, 0] * 100).astype(np.int32)] * REPLICAS)
    np.testing.assert_array_equal(both[1], [X[:, 0]] * REPLICAS)
    parts = X.reshape(REPLICAS, 5, REPLICAS, 2)  # from, row, to, column
    np.testing.assert_array_equal(swapped, parts.transpose(2, 0, 1, 3).reshape(REPLICAS, 20, 2))
    np.testing.assert_array_equal(joined, parts.transpose(2, 1, 0, 3).reshape(REPLICAS, 5, 8))
    sums = np.pad(X.astype(np.float64)[:, :, 0].sum(0), (0, 3)).reshape(REPLICAS, 2)
    np.testing.assert_allclose(chunk, sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(means[0], X.astype(np.float64)[:, 0].mean(0).reshape(4, 2), rtol=1e-5, atol=1e-6)
    assert index.tolist() == [0, 1, 2, 3] and index.dtype == np.int32


def test_gathered_infinities_stay_where_they_are():
    x = X.copy()
    x[1, 0, 0], x[2, 0, 1] = np.inf, np.nan
    np.testing.assert_array_equal(on_replicas(lambda part: all_to_all_op.all_gather(part, REPLICAS), x), [x] * REPLICAS)


def test_one_replica_has_only_itself():
    total, gathered, index, marked = on_replicas(
        lambda x: (
            cross_replica_ops.cross_replica_sum(x),
            all_to_all_op.all_gather(x, 1),
            replication_ops.replication_index(),
            cross_replica_ops.assume_equal_across_replicas([x], inplace=True)[0],
        ),
        replicas=1,
    )
    np.testing.assert_array_equal(total, X[0])
    np.testing.assert_array_equal(gathered, X[:1])
    np.testing.assert_array_equal(marked, X[0])
    assert index == 0
    assert cross_replica_ops.cross_replica_mean(3.0).numpy() == 3  # on the host, too


def test_random_numbers_differ_between_replicas():
    layer = keras.layers.Dropout(0.5, seed=1)
    a, b = on_replicas(lambda x: (rand_ops.dropout(tf.ones(64), rate=0.5), layer(tf.ones(64), training=True)))
    for masks in (a, b):
        assert set(np.unique(masks)) == {0, 2} and len({m.tobytes() for m in masks}) == REPLICAS


def test_keras_trains_on_all_replicas():
    """The gradients' sum, and what is the same for all: the weights."""
    layer, optimizer = keras.layers.Dense(2, use_bias=False), keras.optimizers.SGD(0.01)
    layer.build((5, 8))
    before, queue = layer.kernel.numpy(), IPUOutfeedQueue()
    infeed = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(X))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x))
        optimizer.apply_gradients([(tape.gradient(loss, layer.kernel), layer.kernel)])
        return queue.enqueue(layer.kernel)

    IPUStrategy(strict=True, ipus=REPLICAS).run(tf.function(lambda: loops.repeat(1, step, infeed_queue=infeed)))
    want = before - 0.01 * X.astype(np.float64).sum((0, 1))[:, None]
    np.testing.assert_allclose(layer.kernel.numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(queue.dequeue()[0], [layer.kernel.numpy()] * REPLICAS)


def test_refusals():
    for text, call in (
        ("must divide the number of replicas", lambda x: cross_replica_ops.cross_replica_sum(x, 3)),
        ("must divide the number of replicas", lambda x: cross_replica_ops.cross_replica_mean(x, 0)),
        ("replication_factor is 2", lambda x: all_to_all_op.all_gather(x, 2)),
        ("does not divide", lambda x: all_to_all_op.all_to_all(x, 0, 0, REPLICAS)),
        ("there are 4 replica", lambda x: reduce_scatter_op.reduce_scatter(x[0], 2)),
        ("takes a vector", lambda x: reduce_scatter_op.reduce_scatter(x, REPLICAS)),
        ("op is 'MAX'", lambda x: reduce_scatter_op.reduce_scatter(x[0], REPLICAS, op="MAX")),
    ):
        with pytest.raises(ValueError, match=text):
            on_replicas(call)
