"""`rng`, whose numbers HLO leaves open: right distributions, new numbers each time, the same ones for the same seed."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import errors, hlo
from tests.harness import hlo_of

N = 40_000


def compiled(fn, **options):
    return hlo.compile(hlo_of(fn)[0], options=options or None)


def test_uniform_numbers():
    exe = compiled(lambda: tf.random.uniform((N,), -2.0, 6.0))
    (first,), (second,) = exe.run(), exe.run()
    for x in (first, second):
        assert -2 <= x.min() < -1.99 and 5.99 < x.max() < 6
        # 5 sigma of the mean and of the variance (64/12) of N draws.
        assert abs(x.mean() - 2) < 5 * np.sqrt(64 / 12 / N)
        assert abs(x.var() - 64 / 12) < 5 * (64 / 12) * np.sqrt(0.8 / N)
    assert (first != second).mean() > 0.99
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(N)


def test_normal_numbers():
    exe = compiled(lambda: tf.random.normal((N,), 3.0, 2.0))
    (x,) = exe.run()
    assert abs(x.mean() - 3) < 5 * 2 / np.sqrt(N)
    assert abs(x.std() - 2) < 5 * 2 / np.sqrt(2 * N)
    assert abs((x > 3).mean() - 0.5) < 5 * 0.5 / np.sqrt(N)
    assert abs((np.abs(x - 3) < 2).mean() - 0.6827) < 5 * 0.47 / np.sqrt(N)


@pytest.mark.parametrize("low, high, dtype", [(0, 7, tf.int32), (-(2**31), 2**31 - 1, tf.int32), (-3, 4, tf.int32)])
def test_integers(low, high, dtype):
    exe = compiled(lambda: tf.random.uniform((N,), low, high, dtype))
    (x,) = exe.run()
    assert x.min() >= low and x.max() < high
    width = high - low
    assert abs(x.astype(float).mean() - (low + (width - 1) / 2)) < 5 * width / np.sqrt(12 * N)
    if width < 100:
        counts = np.bincount(x - low, minlength=width)
        assert np.abs(counts - N / width).max() < 5 * np.sqrt(N / width)


def test_the_seed_decides_and_a_new_device_starts_again():
    def draw(seed):
        return compiled(lambda: tf.random.uniform((50,)), seed=seed).run()[0]

    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).all()


def test_two_draws_of_a_step_differ():
    exe = compiled(lambda: tf.stack([tf.random.uniform((50,)), tf.random.uniform((50,))]))
    (x,) = exe.run()
    assert (x[0] != x[1]).all()


def test_inside_a_loop_it_is_refused_by_name():
    def looped():
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + tf.random.uniform((2,))), (0, tf.zeros(2)))[1]

    with pytest.raises(errors.UnsupportedError, match="rng"):
        compiled(looped)
