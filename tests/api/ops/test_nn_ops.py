"""Activations, losses and decorators of nn_ops against arithmetic in double precision and against TensorFlow."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.errors import IPUError
from ipu_keras.ops import nn_ops
from tests.api.ops.device import gradients, run, same

RNG = np.random.default_rng(5)
X = np.concatenate([RNG.normal(size=(3, 6)) * 2, [[-3, -2.6, 2.4, 2.6, 0, 1e-3]]]).astype(np.float32)


def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_erf = np.vectorize(math.erf)

ACTIVATIONS = {
    "gelu": (nn_ops.gelu, _gelu_tanh),
    "gelu erf": (lambda x: nn_ops.gelu(x, approximate=False), lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "softmax": (nn_ops.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "stable": (lambda x: nn_ops.softmax(x, stable=True), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "hard_sigmoid": (nn_ops.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "swish": (nn_ops.swish, lambda x: x / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_its_gradient_on_the_tiles(name):
    ours, formula = ACTIVATIONS[name]
    result, (gradient,) = gradients(ours, X)
    wide = X.astype(np.float64)
    same(result, formula(wide).astype(np.float32), 1e-4, 1e-5)
    # Central differences of the formula; only hard_sigmoid has corners, and X keeps away from them.
    wave = np.cos(np.arange(X.size)).reshape(X.shape)
    step, slopes = 1e-5, np.zeros_like(wide)
    for i in np.ndindex(X.shape):
        high, low = wide.copy(), wide.copy()
        high[i] += step
        low[i] -= step
        slopes[i] = ((formula(high) - formula(low)) * wave).sum() / (2 * step)
    same(gradient, slopes, 1e-3, 1e-4)


def test_only_the_stable_softmax_takes_large_values():
    x = np.array([[100.0, 99.0, 0.0]], np.float32)
    assert np.isnan(run(nn_ops.softmax, x)).any()
    weights = np.exp(x.astype(np.float64) - 100)
    same(run(lambda x: nn_ops.softmax(x, stable=True), x), (weights / weights.sum()).astype(np.float32))


def test_multi_conv_keeps_results_and_checks_its_options():
    x, w = RNG.normal(size=(1, 6, 6, 2)).astype(np.float32), RNG.normal(size=(3, 3, 2, 4)).astype(np.float32)

    def two(x, w):
        return tf.nn.conv2d(x, w, 1, "SAME") + tf.nn.conv2d(x, w[::-1], 1, "SAME")

    for decorated in (nn_ops.multi_conv(two), nn_ops.multi_conv(options={"planType": "parallel"})(two)):
        same(run(decorated, x, w), two(x, w), 1e-4, 1e-4)
    for options in ([("planType", "parallel")], "parallel"):
        with pytest.raises(TypeError, match="dict"):
            nn_ops.multi_conv(two, options=options)


# --- sampled losses -----------------------------------------------------------------------------------------------

CLASSES, SAMPLED = 12, 5
WEIGHTS = RNG.normal(size=(CLASSES, 4)).astype(np.float32)
BIASES = RNG.normal(size=CLASSES).astype(np.float32)
HIDDEN = RNG.normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize("true", [1, 2])
@pytest.mark.parametrize("name", ["sampled_softmax_loss", "nce_loss"])
def test_sampled_loss_is_tensorflows_for_the_same_sample(name, true):
    labels = RNG.integers(0, CLASSES, (3, true))
    labels[0, 0] = 4  # sampled too: softmax must not count it twice
    sample = (
        np.array([0, 4, 1, 7, 2], np.int64),
        RNG.uniform(0.1, 1, (3, true)).astype(np.float32),
        RNG.uniform(0.1, 1, SAMPLED).astype(np.float32),
    )

    def loss(module, index):
        def of(weights, biases, hidden):
            return getattr(module, name)(
                weights, biases, tf.constant(labels, index), hidden, SAMPLED, CLASSES, true, sample
            )

        return of

    ours = gradients(loss(nn_ops, tf.int32), WEIGHTS, BIASES, HIDDEN)
    theirs = gradients(loss(tf.nn, tf.int64), WEIGHTS, BIASES, HIDDEN, host=True)
    same(ours, theirs, 1e-4, 1e-5)


def test_samples_are_different_classes_with_the_frequencies_that_are_said():
    from ipu_keras.ops._sampling import log_uniform_candidates

    draws = 4000
    seeds = np.stack([np.arange(draws), np.full(draws, 3)], 1).astype(np.int32)
    draw = tf.function(lambda s: tf.map_fn(lambda seed: log_uniform_candidates(SAMPLED, CLASSES, seed)[0], s))
    drawn = draw(tf.constant(seeds)).numpy()
    assert all(len(set(row)) == SAMPLED for row in drawn) and drawn.min() >= 0 and drawn.max() < CLASSES
    _, expected = log_uniform_candidates(SAMPLED, CLASSES, [1, 2])
    assert math.isclose(expected.sum(), SAMPLED, rel_tol=1e-6) and (np.diff(expected) < 0).all()
    # The counts belong to independent tries; drawing without replacement differs from that by a few hundredths.
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=CLASSES) / draws, expected, atol=0.06)


def test_own_samples_depend_on_the_seed_alone():
    def loss(seed):
        return lambda w, b, h: nn_ops.sampled_softmax_loss(w, b, [[1], [2], [3]], h, SAMPLED, CLASSES, seed=seed)

    one, again, other, free, free_again = (
        run(loss(seed), WEIGHTS, BIASES, HIDDEN) for seed in ([1, 2], [1, 2], [3, 4], None, None)
    )
    same(one, again, 0, 0)
    assert (one != other).any() and (free != free_again).any()
    assert np.isfinite([one, other, free]).all()
    with pytest.raises(ValueError, match="num_sampled"):
        nn_ops.nce_loss(WEIGHTS, BIASES, [[1], [2], [3]], HIDDEN, CLASSES + 1, CLASSES)


# --- CTC ----------------------------------------------------------------------------------------------------------

LABELS = np.array([[1, 1, 2], [3, 2, 0], [2, 0, 0]], np.int32)
LABEL_LENGTH, TIMES = np.array([3, 2, 1], np.int32), np.array([7, 4, 7], np.int32)
LOGITS = RNG.normal(size=(7, 3, 5)).astype(np.float32)


@pytest.mark.parametrize("blank", [0, 4])
def test_ctc_loss_is_tensorflows(blank):
    def ours(logits):
        return nn_ops.ctc_loss_v2(LABELS, logits, LABEL_LENGTH, TIMES, blank)

    def theirs(logits):
        return tf.nn.ctc_loss(LABELS, logits, LABEL_LENGTH, TIMES, blank_index=blank)

    same(gradients(ours, LOGITS), gradients(theirs, LOGITS, host=True), 1e-4, 1e-5)

    def with_log_probs(logits):
        return nn_ops.ctc_loss_with_log_probs(LABELS, tf.nn.log_softmax(logits), LABEL_LENGTH, TIMES, blank)

    same(gradients(with_log_probs, LOGITS, host=True), gradients(theirs, LOGITS, host=True), 1e-4, 1e-5)


def test_ctc_loss_of_labels_that_do_not_fit_and_of_one_time():
    impossible = nn_ops.ctc_loss_v2([[1, 1, 1]], LOGITS[:, :1], [3], [4], 0)  # needs five times
    assert np.isposinf(impossible)
    one = nn_ops.ctc_loss_v2([[2]], LOGITS[:1, :1], [1], [1], 0)
    wide = LOGITS[0, 0].astype(np.float64)
    same(one, np.array([np.log(np.exp(wide).sum()) - wide[2]]), 1e-5)


def test_ctc_refuses():
    with pytest.raises(ValueError, match="float16"):
        nn_ops.ctc_loss_v2(LABELS, LOGITS, LABEL_LENGTH, TIMES, 0, out_dtype=tf.float16)
    with pytest.raises(IPUError, match="blank_index"):
        nn_ops.ctc_loss_v2(LABELS, LOGITS, LABEL_LENGTH, TIMES, 5)
    half = nn_ops.ctc_loss_v2(LABELS, LOGITS.astype(np.float16), LABEL_LENGTH, TIMES, 0, out_dtype=tf.float32)
    assert half.dtype == tf.float32
