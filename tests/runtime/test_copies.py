"""Exchanges that are larger than the caches go past them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ipu_keras.compiler import compile_module
from tests.harness import hlo_of


def test_an_exchange_larger_than_the_caches():
    """8 MiB in runs of kilobytes, at offsets that are no lines: each element arrives, on one thread and on two."""
    x = np.random.default_rng(1).random((1 << 21) + 5, np.float32)
    rotated = lambda a: tf.concat([a[100_003:], a[:100_003]], 0)  # noqa: E731
    executable = compile_module(hlo_of(rotated, x)[0])
    for threads in (1, 2):
        (result,) = executable.engine(threads=threads).run({0: x[None]})[0]
        np.testing.assert_array_equal(result, np.roll(x, -100_003))
