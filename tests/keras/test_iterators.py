"""`next(iterator)` in a function on the device: loops, several iterators, and the data's end."""

import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy, errors

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20, dtype=np.int64)


def dataset(batch=2):
    return tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(batch, drop_remainder=True)


def test_a_training_loop_takes_the_batches_that_it_asks_for():
    strategy, w = IPUStrategy(), tf.Variable(tf.ones((3, 1)))

    @tf.function
    def train(iterator, steps):
        total = 0.0
        for _ in tf.range(steps):
            batch = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((batch["x"] @ w - tf.cast(batch["y"], tf.float32)[:, None]) ** 2)
            w.assign_sub(1e-5 * tape.gradient(loss, w))
            total += loss
        return total

    with strategy.scope():
        iterator = iter(dataset())
        before = ipu_keras.executions()
        losses = [float(strategy.run(train, args=(iterator, 3))) for _ in range(3)]
    assert ipu_keras.executions() - before <= 4  # three, and one to see how many batches it takes

    v = np.ones((3, 1))
    expected = []
    for first in (0, 6, 12):
        total = 0.0
        for at in range(first, first + 6, 2):
            x, y = X[at : at + 2].astype(float), Y[at : at + 2, None]
            total += ((x @ v - y) ** 2).mean()
            v = v - 1e-5 * 2 * x.T @ (x @ v - y) / 2
        expected.append(total)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), v, rtol=1e-5)
    with pytest.raises(tf.errors.OutOfRangeError, match="takes 3 batches, the dataset has 1"):
        strategy.run(train, args=(iterator, 3))
    np.testing.assert_allclose(w.numpy(), v, rtol=1e-5)


def test_two_iterators_and_other_arguments():
    strategy = IPUStrategy()

    @tf.function
    def f(a, scale, b):
        first, second = next(a), next(a)
        return scale * first["x"] + second["x"], b.get_next()["y"]

    a, b = iter(dataset()), iter(dataset(4))
    for turn in range(2):
        total, y = strategy.run(f, args=(a, np.float32(2)), kwargs={"b": b})
        at = 4 * turn
        np.testing.assert_allclose(total, 2 * X[at : at + 2] + X[at + 2 : at + 4])
        np.testing.assert_array_equal(y, Y[at : at + 4])


def test_an_iterator_that_is_not_used_loses_nothing():
    strategy, iterator = IPUStrategy(), iter(dataset())
    strategy.run(tf.function(lambda it, x: x + 1), args=(iterator, np.float32(1)))
    y = strategy.run(tf.function(lambda it: next(it)["y"]), args=(iterator,))
    assert y.shape == (2,)


def test_what_cannot_be():
    strategy = IPUStrategy()
    with pytest.raises(NotImplementedError, match="get_next_as_optional"):
        strategy.run(tf.function(lambda it: it.get_next_as_optional().get_value()), args=(iter(dataset()),))

    @tf.function
    def to_the_end(iterator):
        total = tf.zeros(2, tf.int64)
        for batch in iterator:
            total += batch["y"]
        return total

    with pytest.raises(Exception, match=r"tf\.range"):  # AutoGraph wraps what is raised under it
        strategy.run(to_the_end, args=(iter(dataset()),))
    ragged = tf.data.Dataset.from_tensor_slices(X).batch(8)  # 8, 8, 4

    @tf.function
    def f(iterator):
        return next(iterator)[:2], next(iterator)[:2], next(iterator)[:2]

    with pytest.raises(errors.DataError, match="drop_remainder"):
        strategy.run(f, args=(iter(ragged),))


def test_the_number_of_batches_may_differ_from_execution_to_execution():
    """More than before, fewer than before: each batch is used once, in order."""
    strategy, iterator = IPUStrategy(), iter(dataset())

    @tf.function
    def total(it, steps):
        found = tf.zeros(2, tf.int64)
        for _ in tf.range(steps):
            found += next(it)["y"]
        return found

    at = 0
    for steps in (2, 4, 1, 3):
        ours = strategy.run(total, args=(iterator, steps))
        np.testing.assert_array_equal(ours, Y[at : at + 2 * steps].reshape(steps, 2).sum(0))
        at += 2 * steps


def test_a_loop_that_the_data_ends():
    strategy, iterator = IPUStrategy(), iter(dataset())

    @tf.function
    def until(it, limit):
        y = next(it)["y"]
        count = 1
        while tf.reduce_sum(y) < limit:
            y = next(it)["y"]
            count += 1
        return y, count

    y, count = strategy.run(until, args=(iterator, np.int64(20)))  # 0+1, 2+3, ... 10+11
    assert (y.numpy().tolist(), int(count)) == ([10, 11], 6)
    y, count = strategy.run(until, args=(iterator, np.int64(1)))
    assert (y.numpy().tolist(), int(count)) == ([12, 13], 1)
    y, count = strategy.run(until, args=(iterator, np.int64(30)))
    assert (y.numpy().tolist(), int(count)) == ([16, 17], 2)


def test_functions_that_share_an_iterator():
    strategy, iterator = IPUStrategy(), iter(dataset())
    one = tf.function(lambda it: next(it)["y"])
    two = tf.function(lambda it: next(it)["y"] + next(it)["y"])
    assert strategy.run(one, args=(iterator,)).numpy().tolist() == [0, 1]
    assert strategy.run(two, args=(iterator,)).numpy().tolist() == [2 + 4, 3 + 5]
    assert strategy.run(one, args=(iterator,)).numpy().tolist() == [6, 7]


def test_one_iterator_as_two_arguments_gives_each_batch_once():
    a, b = IPUStrategy().run(
        tf.function(lambda a, b: (next(a)["y"], next(b)["y"])), args=((iterator := iter(dataset())), iterator)
    )
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0, 1], [2, 3])


def test_an_element_in_double_precision_is_named_as_such():
    doubles = iter(tf.data.Dataset.from_tensor_slices(X.astype(np.float64)).batch(2))
    with pytest.raises(TypeError, match="element of an iterator"):
        IPUStrategy().run(tf.function(lambda it: next(it)), args=(doubles,))


def test_a_loop_that_waits_for_more_than_there_is(monkeypatch):
    from ipu_keras.keras import feeding

    monkeypatch.setattr(feeding, "TURNS", 50)
    monkeypatch.setattr(feeding, "LAST_TURNS", 500)
    strategy = IPUStrategy()

    @tf.function
    def until(it):
        y = next(it)["y"]
        while tf.reduce_sum(y) < 1000:
            y = next(it)["y"]
        return y

    with pytest.raises(tf.errors.OutOfRangeError, match="has ended"):
        strategy.run(until, args=(iter(dataset()),))


@pytest.fixture
def two_ipus():
    config = ipu_keras.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    yield
    ipu_keras.config.reset_ipu_configuration()


@pytest.mark.usefixtures("two_ipus")
def test_replicas_take_turns():
    """Replica r of R gets batches r, R + r, 2 R + r, ...: what both sum up is the whole, weighted by place."""
    strategy, seen = IPUStrategy(), tf.Variable(tf.zeros((3, 2)))

    @tf.function
    def take(iterator, scale):
        for step in tf.range(3):
            x = tf.reduce_sum(next(iterator)["x"]) * scale
            both = ipu_keras.ops.cross_replica_ops.cross_replica_sum(x)
            seen.scatter_nd_update([[step, 0], [step, 1]], tf.stack([x, both]))
        return x

    batches = X.reshape(10, 6).sum(1)
    with strategy.scope():
        iterator = iter(dataset())
        last = strategy.run(take, args=(iterator, 2.0))
        # The variables are the last replica's.
        np.testing.assert_allclose(seen.numpy()[:, 0], 2 * batches[[1, 3, 5]], rtol=1e-6)
        np.testing.assert_allclose(seen.numpy()[:, 1], 2 * (batches[0:6:2] + batches[1:6:2]), rtol=1e-6)
        np.testing.assert_allclose(float(last), 2 * batches[5], rtol=1e-6)
        with pytest.raises(tf.errors.OutOfRangeError, match="takes 6 batches, the dataset has 4"):
            strategy.run(take, args=(iterator, 2.0))
        two = tf.function(lambda i: next(i)["x"][0, 0] + next(i)["x"][0, 0])
        assert float(strategy.run(two, args=(iterator,))) == X[14, 0] + X[18, 0]


@pytest.mark.usefixtures("two_ipus")
def test_replicas_that_take_different_numbers_are_refused():
    strategy = IPUStrategy()

    @tf.function
    def take(iterator):
        x = tf.reduce_sum(next(iterator)["x"])
        while x < 40.0:
            x += tf.reduce_sum(next(iterator)["x"])
        return x

    with strategy.scope(), pytest.raises(errors.DataError, match="replicas took 1 and 2 batches of an iterator"):
        strategy.run(take, args=(iter(dataset()),))


@pytest.mark.usefixtures("two_ipus")
def test_a_pipeline_takes_a_queue():
    strategy = IPUStrategy()

    @tf.function
    def run(iterator):
        stages = [lambda x: x * 2.0, lambda x: tf.reduce_sum(x)]
        queue = ipu_keras.ipu_outfeed_queue.IPUOutfeedQueue()
        ipu_keras.pipelining_ops.pipeline(stages, 4, inputs=[next(iterator)["x"]], outfeed_queue=queue)

    with strategy.scope(), pytest.raises(errors.UnsupportedError, match="micro-batches come from an IPUInfeedQueue"):
        strategy.run(run, args=(iter(dataset()),))
