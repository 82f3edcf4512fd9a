"""Queues and loops of functions that `strategy.run` runs: what goes in and comes out, in which order and shape."""

from __future__ import annotations

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, loops
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue, ScopedIPUOutfeedQueue

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)


def run(fn, *args, replicas=1):
    return IPUStrategy(strict=True, ipus=replicas).run(tf.function(fn), tuple(tf.constant(a) for a in args))


def rows():
    return tf.data.Dataset.from_tensor_slices(X)


# ---- outfeed queues ----


def test_all_keeps_each_step_and_last_the_last():
    every, last, scoped = IPUOutfeedQueue(), IPUOutfeedQueue(IPUOutfeedMode.LAST), ScopedIPUOutfeedQueue()

    def step(a, count):
        ops = [every.enqueue({"a": a, "more": (a[0], [count])}), last.enqueue(a), scoped.enqueue([count > 2])]
        return (a * 2.0, count + 1, *ops)

    found = run(lambda a: loops.repeat(4, step, [a, tf.constant(0, tf.int64)]), X[0])
    powers = 2.0 ** np.arange(4)[:, None] * X[0]
    np.testing.assert_array_equal(found[0], 16 * X[0])
    given = every.dequeue()
    np.testing.assert_array_equal(given["a"], powers)
    np.testing.assert_array_equal(given["more"][0], powers[:, 0])
    assert given["more"][1][0].dtype == tf.int64 and given["more"][1][0].numpy().tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(last.dequeue(), powers[-1])
    np.testing.assert_array_equal(last.dequeue(), powers[-1])  # LAST is not emptied
    assert scoped.dequeue()[0].numpy().tolist() == [False, False, False, True]
    empty = every.dequeue()
    assert empty["a"].shape == (0, 3) and empty["more"][1][0].shape == (0,)


def test_iteration_hands_out_step_by_step_and_over_several_runs():
    queue, strategy = IPUOutfeedQueue(), IPUStrategy(strict=True)

    @tf.function
    def program(x):
        for _ in tf.range(3):
            y = x * 2.0
            queue.enqueue((x, y))
            x = x + 1.0
        return y  # made in the loop: AutoGraph tries the body first

    with pytest.raises(ValueError, match="not been enqueued"):
        queue.dequeue()
    with pytest.raises(ValueError, match="not been enqueued"):
        list(queue)
    assert not queue.enqueued
    for start in (0.0, 10.0):
        assert strategy.run(program, (tf.constant(start),)).numpy() == 2 * (start + 2)
    assert queue.enqueued
    first = next(iter(queue))
    assert [float(v) for v in first] == [0, 0]
    np.testing.assert_array_equal(queue.dequeue()[0], [1, 2, 10, 11, 12])  # what nobody took is still there
    strategy.run(program, (tf.constant(5.0),))
    assert sum(y for _, y in queue) == 2 * (5 + 6 + 7)
    assert list(queue) == [] and sum(x for x, _ in queue) == 0
    strategy.run(program, (tf.constant(5.0),))
    assert queue.deleter is None and queue.dequeue()[0].shape == (0,)


def test_replicas_have_an_axis():
    every, last = IPUOutfeedQueue(), IPUOutfeedQueue(IPUOutfeedMode.LAST)
    infeed = IPUInfeedQueue(rows())

    def step(total, x):
        total += tf.reduce_sum(x)
        return total, every.enqueue((x, total)), last.enqueue(total)

    run(lambda: loops.repeat(3, step, [tf.constant(0.0)], infeed), replicas=4)
    x, total = every.dequeue()
    np.testing.assert_array_equal(x, X[:12].reshape(3, 4, 3))  # element e is for replica e mod R
    sums = X[:12].astype(np.float64).reshape(3, 4, 3).sum(2).cumsum(0)
    np.testing.assert_allclose(total, sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last.dequeue(), sums[-1], rtol=1e-5, atol=1e-6)
    assert [leaf.shape for leaf in every.dequeue()] == [(0, 4, 3), (0, 4)]
    run(lambda: loops.repeat(1, step, [tf.constant(0.0)], infeed), replicas=4)
    ((x, _),) = list(every)
    np.testing.assert_array_equal(x, X[12:16])


def test_shapes_may_change_between_runs():
    queue, strategy = IPUOutfeedQueue(), IPUStrategy()
    program = tf.function(lambda x: queue.enqueue(x) and None)
    strategy.run(program, (X[:1],))
    strategy.run(program, (X[:2],))
    with pytest.raises(ValueError, match="several shapes"):
        queue.dequeue()
    assert [element.shape for element in queue] == [(1, 3), (2, 3)]
    strategy.run(program, (X[:1],))
    np.testing.assert_array_equal(queue.dequeue(), X[None, :1])


def test_functions_in_functions_and_once():
    queue, twice = IPUOutfeedQueue(), IPUOutfeedQueue()

    @tf.function
    def inner(x):
        assert not queue.enqueued
        queue.enqueue(x)
        assert queue.enqueued
        return x + 1.0

    def outer(x):
        y = tf.function(lambda v: inner(v))(x)
        twice.enqueue(y)
        with pytest.raises(ValueError, match="can only be enqueued once"):
            twice.enqueue(y)
        return y

    run(outer, 1.0)
    assert queue.dequeue().numpy().tolist() == [1.0]
    # Traced once and called twice: found before it runs, but not by the queue itself.
    weight = tf.Variable(1.0)
    with pytest.raises((ValueError, NotImplementedError), match="can only be enqueued once"):
        run(lambda x: weight.assign(inner(inner(x))), 1.0)
    assert weight.numpy() == 1 and queue.dequeue().shape == (0,)


def test_another_thread_may_ask_before_the_program_runs():
    queue, last, found = IPUOutfeedQueue(), IPUOutfeedQueue(IPUOutfeedMode.LAST), []
    thread = threading.Thread(target=lambda: found.extend([queue.dequeue(), last.dequeue(), list(queue)]))
    thread.start()
    thread.join()
    assert found == [[], [], []]


def test_iterator_and_outfeed():
    queue, strategy = IPUOutfeedQueue(), IPUStrategy()

    @tf.function
    def program(iterator):
        for _ in tf.range(3):
            loss = tf.reduce_sum(next(iterator))
            queue.enqueue(loss)
        return loss

    strategy.run(program, (iter(rows()),))
    np.testing.assert_allclose(queue.dequeue(), X[:3].sum(1), rtol=1e-5)


def test_loops_in_loops_on_two_replicas():
    queue, strategy = IPUOutfeedQueue(), IPUStrategy(strict=True, ipus=2)
    infeed = IPUInfeedQueue(tf.data.Dataset.range(24).map(lambda e: tf.cast(e, tf.float32)))

    def outer(total):
        (total,) = loops.repeat(3, lambda t, e: t + e, [total], infeed)
        return total, queue.enqueue(total)

    program = tf.function(lambda: loops.repeat(2, outer, [tf.constant(0.0)]))
    elements = np.arange(24.0).reshape(2, 2, 3, 2)  # run, turn of the outer loop, of the inner one, replica
    for run_ in range(2):
        found = strategy.run(program)[0].numpy()
        want = elements[run_].sum(1).cumsum(0)
        np.testing.assert_array_equal(queue.dequeue(), want)
        assert found == want[-1, -1]


def test_any_compiled_function():
    queue, strategy = IPUOutfeedQueue(), IPUStrategy()

    @tf.function(jit_compile=True)
    def program(x, times):
        for _ in tf.range(times):
            queue.enqueue({"x": x})
            x *= 2
        return x

    assert strategy.run(program, (tf.constant(3), 2)).numpy() == 12
    concrete = program.get_concrete_function(tf.TensorSpec((), tf.int32), 3)
    assert strategy.run(concrete, (tf.constant(5),)).numpy() == 40
    assert queue.dequeue()["x"].numpy().tolist() == [3, 6, 5, 10, 20]


def test_a_train_step_of_ones_own_in_fit():
    queue = IPUOutfeedQueue()

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, batch):
            loss = tf.reduce_mean(self(batch[0]) ** 2)
            queue.enqueue(loss)
            return {"loss": loss}

    with IPUStrategy().scope():
        model = Model()
        model.compile("sgd", steps_per_execution=2)
    model.fit(X, X[:, 0], batch_size=6, epochs=2, shuffle=False, verbose=0)
    want = (X.astype(np.float64).sum(1) ** 2).reshape(4, 6).mean(1)
    np.testing.assert_allclose(queue.dequeue(), [*want, *want], rtol=1e-5)


# ---- infeed queues ----


def test_infeed_goes_on_where_the_last_run_stopped():
    strategy = IPUStrategy(strict=True)
    queue = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices({"x": X[:7], "n": np.arange(7)}), prefetch_depth=0)
    assert queue.number_of_tuple_elements == 2 and not queue.dequeued

    @tf.function
    def program():
        body = lambda total, x, n: total + x * tf.cast(n, tf.float32)  # noqa: E731
        return loops.repeat(3, body, [tf.zeros(3)], queue)

    want = X[:7].astype(np.float64) * np.arange(7)[:, None]
    for part in (want[:3], want[3:6]):
        (found,) = strategy.run(program)
        np.testing.assert_allclose(found, part.sum(0), rtol=1e-5)
    assert queue.dequeued
    with pytest.raises(tf.errors.OutOfRangeError, match=r"takes 3 elements.*1 left"):
        strategy.run(program)
    one = tf.function(lambda: loops.repeat(1, lambda total, x, n: x, [tf.zeros(3)], queue))
    np.testing.assert_array_equal(strategy.run(one)[0], X[6])  # what was too little is not lost
    assert queue.initializer is None
    np.testing.assert_allclose(strategy.run(program)[0], want[:3].sum(0), rtol=1e-5)


def test_elements_by_position():
    """One tensor, a tuple with a dictionary in it, wide integers."""
    big = 2**40
    data = tf.data.Dataset.from_tensor_slices((np.array([1, big]), {"half": X[:2].astype(np.float16)}))
    queue, out = IPUInfeedQueue(data), IPUOutfeedQueue()

    def body(n, rest):
        return out.enqueue((n, rest["half"]))

    run(lambda: loops.repeat(2, body, infeed_queue=queue))
    n, half = out.dequeue()
    assert n.dtype == tf.int64 and n.numpy().tolist() == [1, big]
    np.testing.assert_array_equal(half, X[:2].astype(np.float16))


def test_one_place_takes_from_an_infeed():
    queue = IPUInfeedQueue(rows().repeat())
    add = lambda total, x: total + x  # noqa: E731
    with pytest.raises(ValueError, match="dequeued once"):
        run(lambda x: loops.repeat(2, add, loops.repeat(2, add, x, queue), queue), X[0])
    other = IPUInfeedQueue(rows().repeat())
    inner = tf.function(lambda x: loops.repeat(2, add, x, other)[0])
    with pytest.raises((ValueError, NotImplementedError), match="once in a program"):
        run(lambda x: inner(inner(x)), X[0])


# ---- loops ----


def test_loops_end_as_python_does():
    tensor = run(lambda n: loops.repeat(n, lambda a, b: (b, a + b), (0, 1)), 10)
    assert [int(v) for v in tensor] == [55, 89]
    found = run(lambda n: loops.while_loop(lambda x, y: x < n, lambda x, y: (x * 2, y + 1), [3, 0]), 100)
    assert [int(v) for v in found] == [192, 6]
    few = run(lambda n: loops.while_loop(lambda x: x < n, lambda x: x * 2, 3, maximum_iterations=2), 100)
    assert [int(v) for v in few] == [12]
    assert int(run(lambda: loops.repeat(0, lambda x: x * 2, 3))[0]) == 3
    weight = tf.Variable(1.0)
    assert run(lambda: loops.repeat(5, lambda: weight.assign_add(2.0, read_value=False))) is None
    assert weight.numpy() == 11

    class Doubling:
        def __call__(self, x):
            if x > 5:  # AutoGraph sees it
                x = x + 100
            return x * 2

    assert int(run(lambda: loops.repeat(3, Doubling(), 2))[0]) == 216
    bound = functools.partial(lambda by, x: x + by, 7)
    assert int(run(lambda: loops.repeat(3, tf.function(bound), 2))[0]) == 23


def _own_error(x):
    return len(5) + x  # a TypeError of the body's own, about an argument


BAD_LOOPS = {
    "too few arguments": (TypeError, "gets 1 value.*missing a required argument", lambda a, b: a),
    "too many arguments": (TypeError, "gets 1 value.*too many positional", lambda: None),
    "own error": (TypeError, "has no len", _own_error),
    "another number": (TypeError, "gives 2 value.*its state has 1", lambda a: (a, a)),
    "another dtype": (TypeError, "float32 and becomes int32", lambda a: tf.cast(a, tf.int32)),
    "another shape": (ValueError, "shape", lambda a: tf.stack([a, a])),
    "operations first": (ValueError, "state first, then operations", lambda a: (tf.no_op(), a)),
    "no function": (TypeError, "must be a function", 5),
}


@pytest.mark.parametrize("case", BAD_LOOPS)
def test_bad_bodies(case):
    kind, text, body = BAD_LOOPS[case]
    with pytest.raises(kind, match=text):
        run(lambda a: loops.repeat(2, body, [a]), 1.0)


def test_bad_arguments():
    queue = IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": X}))
    unknown = IPUOutfeedQueue()

    start = tf.Variable(1.0)

    def some(x):
        return x < 9.0

    def endless(x):
        return x + 1.0, unknown.enqueue(x)

    for kind, text, call in (
        (TypeError, "missing a required argument: 'y'", lambda: loops.repeat(2, lambda y: None, (), queue)),
        (TypeError, "must be an IPUInfeedQueue", lambda: loops.repeat(2, lambda: None, (), rows())),
        (ValueError, "n is -1", lambda: loops.repeat(-1, lambda: None)),
        (ValueError, "n is 2.5", lambda: loops.repeat(2.5, lambda: None)),
        (TypeError, "the condition of a loop", lambda: loops.while_loop(lambda: True, lambda x: x, [1])),
        (NotImplementedError, "known before it runs", lambda: loops.while_loop(some, endless, [start])),
        (ValueError, "no tensor", lambda: IPUOutfeedQueue().enqueue([])),
        (RuntimeError, "in a tf.function", lambda: unknown.dequeue()),
    ):
        with pytest.raises(kind, match=text):
            run(call)


def test_bad_queues():
    ragged = rows().batch(5)
    for kind, text, make in (
        (ValueError, "drop_remainder", lambda: IPUInfeedQueue(ragged)),
        (ValueError, "float64", lambda: IPUInfeedQueue(tf.data.Dataset.from_tensors(np.ones(2)))),
        (ValueError, "string", lambda: IPUInfeedQueue(tf.data.Dataset.from_tensors("a"))),
        (TypeError, "must be a tf.data.Dataset", lambda: IPUInfeedQueue(X)),
        (ValueError, "1 to 255", lambda: IPUInfeedQueue(rows(), prefetch_depth=256)),
        (ValueError, "1 to 255", lambda: IPUInfeedQueue(rows(), prefetch_depth=-1)),
        (ValueError, "obsolete", lambda: IPUInfeedQueue(rows()).get_next()),
        (ValueError, "member of IPUOutfeedMode", lambda: IPUOutfeedQueue("all")),
        (ValueError, "1 or more", lambda: IPUOutfeedQueue(buffer_depth=0)),
        (ValueError, "strategy.run", lambda: IPUOutfeedQueue().enqueue(X)),
        (RuntimeError, "ALL only", lambda: iter(IPUOutfeedQueue(IPUOutfeedMode.LAST))),
    ):
        with pytest.raises(kind, match=text):
            make()
    assert (IPUOutfeedMode.ALL.value, IPUOutfeedMode.LAST.value) == ("all", "get_last")
