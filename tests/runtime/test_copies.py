"""Copies out of the ordinary: larger than the caches, of many dimensions, of less than a word."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.errors import UnsupportedError
from ipu_keras.target import Target
from ipu_runtime.codelets.copy_model import crossing, traffic
from tests.harness import hlo_of


def test_an_exchange_larger_than_the_caches():
    """8 MiB in runs of kilobytes, at offsets that are no lines: each element arrives, on one thread and on two."""
    x = np.random.default_rng(1).random((1 << 21) + 5, np.float32)
    rotated = lambda a: tf.concat([a[100_003:], a[:100_003]], 0)  # noqa: E731
    executable = compile_module(hlo_of(rotated, x)[0])
    for threads in (1, 2):
        (result,) = executable.engine(threads=threads).run({0: x[None]})[0]
        np.testing.assert_array_equal(result, np.roll(x, -100_003))


@pytest.mark.parametrize("tiles", [1, 3])
def test_a_transpose_of_nine_dimensions(tiles):
    """A copy has room for eight: the outermost become copies of their own."""
    x = np.random.default_rng(2).random((2, 3, 2, 2, 1, 2, 2, 2, 2, 2), np.float32)
    turned = lambda a: tf.transpose(a * 2.0, range(9, -1, -1))  # noqa: E731
    executable = compile_module(hlo_of(turned, x)[0], target=Target("few", tiles=tiles, bytes_per_tile=1 << 20))
    (result,) = executable.engine().run({0: x[None]})[0]
    np.testing.assert_array_equal(result, 2 * x.transpose())


def test_a_vertex_of_nine_dimensions_is_refused_by_name():
    x = np.zeros((2,) * 12, np.float32)
    some = lambda a: tf.reduce_sum(a, range(0, 12, 2))  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"more than 8 dimensions.*reduce \(rank 12\) in step"):
        compile_module(hlo_of(some, x)[0], target=Target("one", tiles=1, bytes_per_tile=1 << 20))


@pytest.mark.parametrize(("count", "itemsize", "cycles"), [(2, 2, 0.5), (4, 1, 0.5), (3, 1, 0.375), (3, 2, 3.75)])
def test_pieces_of_a_word_on_a_tile_are_one_run(count, itemsize, cycles):
    """At 8 bytes a cycle (hardware.md 3.8); more than a word in pieces is a rearrangement, 5/4 cycles an element."""
    one = np.ones(1, np.int64)
    how = crossing(np.zeros(1, bool), [count * one], [one], [3 * one], itemsize, 12.0)
    found = traffic(one, one, 0 * one, [3 * one], count * itemsize * one, how, itemsize, 2, 8)
    assert found.after.tolist() == [0, cycles] and found.received.tolist() == [0, 0]
