"""dataset_benchmark: what it counts is arithmetic, what it measures is bounded by a dataset that waits."""

import json
import time

import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras.dataset_benchmark import dataset_benchmark, infeed_benchmark
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue

WAIT = 0.02


def epochs(result):
    return json.loads(result.numpy()[0].decode("utf-8"))["epochs"]


def pairs(count):
    """(64 bytes, 4 bytes) an element, each of which takes its time."""

    def slow(i):
        time.sleep(WAIT)
        return np.full((2, 8), i, np.float32), np.int32(i)

    def element(i):
        x, y = tf.numpy_function(slow, [i], [tf.float32, tf.int32])
        return tf.ensure_shape(x, (2, 8)), tf.ensure_shape(y, ())

    return tf.data.Dataset.range(count).map(element)


@pytest.mark.parametrize("copied", [True, False])
def test_counts_and_rates(copied):
    started = time.perf_counter()
    found = epochs(dataset_benchmark(pairs(8), 2, 8 / 2, print_stats=False, do_memcpy=copied))
    whole = time.perf_counter() - started
    assert len(found) == 2
    for epoch in found:
        assert (epoch["elements_processed"], epoch["total_bytes_processed"]) == (4, 4 * 68)
        assert 4 * WAIT <= epoch["time_elapsed"] <= whole
        assert epoch["elements_per_second"] == pytest.approx(4 / epoch["time_elapsed"])
        assert epoch["bandwidth"] == pytest.approx(4 * 68 / epoch["time_elapsed"] / 1e9)


def test_of_a_queue_which_keeps_its_place(capsys):
    queue = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.arange(6, dtype=np.float32)))
    assert queue.pull(2)[0].tolist() == [0, 1]
    assert [e["total_bytes_processed"] for e in epochs(ipu.dataset_benchmark.infeed_benchmark(queue, 3, 2))] == [8] * 3
    assert capsys.readouterr().out.count("elements/s") == 3
    assert queue.pull(2)[0].tolist() == [2, 3]


def test_refusals():
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(tf.errors.OutOfRangeError, match="has 3 elements, and 2 epochs take 4"):
        dataset_benchmark(dataset, 2, 2, print_stats=False)
    for wrong in ((0, 1), (1, 0), (1, 0.5)):
        with pytest.raises(ValueError, match="at least 1"):
            dataset_benchmark(dataset, *wrong)
    with pytest.raises(TypeError, match=r"tf.data.Dataset"):
        dataset_benchmark([1], 1, 1)
    with pytest.raises(TypeError, match="IPUInfeedQueue"):
        infeed_benchmark(dataset, 1, 1)
    with pytest.raises(ValueError, match="fixed shapes"):
        dataset_benchmark(dataset.batch(2), 1, 1)
    with pytest.raises(ValueError, match="outside of"):
        tf.function(lambda: dataset_benchmark(dataset, 1, 1))()
