"""Lookups, products in parts, dropout, images, slices, histograms, barriers: against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.errors import IPUError
from ipu_keras.ops import (
    _seeds,
    control_flow_ops,
    embedding_ops,
    functional_ops,
    image_ops,
    math_ops,
    rand_ops,
    slicing_ops,
    statistics_ops,
)
from tests.api.ops.device import gradients, run, same

RNG = np.random.default_rng(9)


def _normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_lookup_and_its_dense_gradient():
    table, ids = _normal(6, 3), np.array([[1, 5, 1], [0, 1, 3]], np.int32)
    result, (gradient,) = gradients(
        lambda t, i: embedding_ops.embedding_lookup(t, i, serialization_factor=3), table, ids
    )
    same(result, table[ids])
    expected = np.zeros((6, 3))
    np.add.at(expected, ids.ravel(), np.cos(np.arange(18.0)).reshape(6, 3))
    same(gradient, expected)
    variable = tf.Variable(table)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(embedding_ops.embedding_lookup(variable, ids))
    assert isinstance(tape.gradient(total, variable), tf.Tensor)  # no IndexedSlices
    for factor in (0, 4):
        with pytest.raises(ValueError, match="serialization_factor"):
            embedding_ops.embedding_lookup(table, ids, serialization_factor=factor)


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
@pytest.mark.parametrize("dimension", ["a_columns", "a_rows_b_columns", "b_rows"])
def test_product_in_parts(dimension, transposed):
    a, b = _normal(2, 4, 6), _normal(2, 6, 10)
    ta, tb = transposed
    size = {"a_columns": 4, "a_rows_b_columns": 6, "b_rows": 10}[dimension]
    given = (np.swapaxes(a, 1, 2) if ta else a, np.swapaxes(b, 1, 2) if tb else b)

    def product(a, b):
        return math_ops.serialized_matmul(a, b, 2, dimension, transpose_a=ta, transpose_b=tb)

    def whole(a, b):
        return tf.matmul(a, b, transpose_a=ta, transpose_b=tb)

    same(gradients(product, *given), gradients(whole, *given, host=True), 1e-4, 1e-5)
    graph = tf.function(product).get_concrete_function(*map(tf.constant, given)).graph
    assert sum(op.type == "BatchMatMulV2" for op in graph.get_operations()) == 2  # it is cut
    with pytest.raises(ValueError, match="divide"):
        math_ops.serialized_matmul(a, b, size + 1, dimension)
    with pytest.raises(ValueError, match="serialization_dimension"):
        math_ops.serialized_matmul(a, b, 1, "rows")


def test_segment_sum():
    data, ids = _normal(5, 2), np.array([0, 0, 2, 2, 2], np.int32)
    result, (gradient,) = gradients(lambda d, i: math_ops.segment_sum(d, i, 4), data, ids)
    expected = np.zeros((4, 2))
    np.add.at(expected, ids, data.astype(np.float64))
    same(result, expected)
    same(gradient, np.cos(np.arange(8.0)).reshape(4, 2)[ids])
    with pytest.raises(ValueError, match="num_segments"):
        math_ops.segment_sum(data, ids, 0)
    with pytest.raises(ValueError, match="segment_ids"):
        math_ops.segment_sum(data, ids[:3], 4)


# --- dropout ------------------------------------------------------------------------------------------------------


def test_dropout_drops_its_share_and_the_gradient_has_the_same_mask():
    x = RNG.uniform(1, 2, (50, 40)).astype(np.float32)
    result, (gradient,) = gradients(lambda x: rand_ops.dropout(x, rate=0.3, seed=[4, 5]), x)
    dropped = result == 0
    assert abs(dropped.mean() - 0.3) < 0.04
    same(result[~dropped], (x.astype(np.float64) / 0.7)[~dropped])
    wave = np.cos(np.arange(2000.0)).reshape(50, 40)
    same(gradient, np.where(dropped, 0, wave / 0.7))


def test_dropout_mask_depends_on_the_seed_alone():
    x = np.ones((8, 16), np.float32)
    one, again, other = (run(lambda x, s=s: rand_ops.dropout(x, seed=s), x) for s in ([1, 2], [1, 2], [1, 3]))
    same(one, again, 0, 0)
    assert (one != other).any()
    twice = run(lambda x: (rand_ops.dropout(x), rand_ops.dropout(x)), x)
    assert (twice[0] != twice[1]).any()
    _seeds.reset(11)
    first = run(rand_ops.dropout, x), run(rand_ops.dropout, x)
    assert (first[0] != first[1]).any()
    _seeds.reset(11)
    same((run(rand_ops.dropout, x), run(rand_ops.dropout, x)), first, 0, 0)


def test_dropout_noise_shape():
    x = np.ones((6, 5, 4), np.float32)
    result = run(lambda x: rand_ops.dropout(x, noise_shape=(None, 1, 4), seed=[1, 2]), x)
    assert (result == result[:, :1]).all() and 0 < (result == 0).mean() < 1
    for shape in ((6, 5), (6, 2, 4)):
        with pytest.raises(ValueError, match="noise_shape"):
            rand_ops.dropout(x, noise_shape=shape)
    for rate in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="rate"):
            rand_ops.dropout(x, rate=rate)
    with pytest.raises(ValueError, match="seed"):
        rand_ops.dropout(x, seed=[1, 2, 3])


# --- images, slices, histograms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_normalise_image(dtype):
    image = RNG.integers(0, 256, (2, 4, 5, 3)).astype(dtype)
    offsets, scales = np.array([0.5, 0.25, 0.75], np.float32), np.array([4.0, 2.0, 8.0], np.float32)
    result = run(lambda image: image_ops.normalise_image(image, offsets, scales, 1 / 256), image)
    expected = (image.astype(np.float64) / 256 - offsets) * scales
    assert result.dtype == (np.float32 if dtype == np.float32 else np.float16)
    same(result, np.pad(expected, [(0, 0)] * 3 + [(0, 1)]), 1e-3, 1e-3)


def test_normalise_image_refuses():
    with pytest.raises(TypeError, match="uint8"):
        image_ops.normalise_image(np.zeros((2, 2, 3), np.int32), [0, 0, 0], [1, 1, 1])
    with pytest.raises(ValueError, match="last dimension"):
        image_ops.normalise_image(np.zeros((2, 2, 4), np.float32), [0, 0, 0], [1, 1, 1])
    with pytest.raises(ValueError, match="channel_scales"):
        image_ops.normalise_image(np.zeros((2, 2, 3), np.float32), [0, 0, 0], [1])


def _sliced(dst, src, counts, sources, places, zero):
    out, used = np.array(dst), np.zeros(len(dst), bool)
    for n, s, d in zip(counts, sources, places, strict=True):
        out[d : d + n], used[d : d + n] = src[s : s + n], True
    out[~used] *= not zero
    return out


@pytest.mark.parametrize("zero", [False, True])
def test_sequence_slices(zero):
    dst, src = _normal(9, 2), _normal(8, 2)
    counts, sources, places = (np.array(v, np.int32) for v in ([3, 0, 2, 2], [5, 1, 0, 2], [1, 0, 3, 7]))
    ours = run(
        lambda d, s, n, so, do: slicing_ops.sequence_slice(d, s, n, so, do, zero), dst, src, counts, sources, places
    )
    same(ours, _sliced(dst, src, counts, sources, places, zero), 0, 0)
    begins = np.cumsum(counts) - counts
    packed = run(lambda d, s, n, do: slicing_ops.sequence_slice_pack(d, s, n, do, zero), dst, src, counts, places)
    same(packed, _sliced(dst, src, counts, begins, places, zero), 0, 0)
    unpacked = run(lambda s, n, so: slicing_ops.sequence_slice_unpack(s, n, so, 8), src, counts, sources)
    same(unpacked, _sliced(np.zeros((8, 2)), src, counts, sources, begins, True), 0, 0)


def test_sequence_slice_gradient_and_shapes():
    dst, src = _normal(5, 2), _normal(4, 2)
    _, (to_dst, to_src) = gradients(lambda d, s: slicing_ops.sequence_slice(d, s, [2], [1], [3], False), dst, src)
    wave = np.cos(np.arange(10.0)).reshape(5, 2)
    same(to_dst, wave * np.array([1, 1, 1, 0, 0])[:, None])
    same(to_src, np.concatenate([np.zeros((1, 2)), wave[3:], np.zeros((1, 2))]))
    for wrong in (
        (dst, _normal(4, 3), [2], [1], [3]),
        (dst[:, 0], src[:, 0], [2], [1], [3]),
        (dst, src, [2], [1, 2], [3]),
    ):
        with pytest.raises(ValueError, match="sequence_slice"):
            slicing_ops.sequence_slice(*wrong, False)


def test_histograms():
    values = np.array([-3, -1, -0.5, 0, 0.5, 1, 2.5, 7], np.float32)
    levels = np.array([-1, 0.5, 2], np.float32)
    counts = run(statistics_ops.histogram, values, levels)
    same(counts, np.float32([1, 3, 2, 2]), 0, 0)  # a level belongs to the bin above it
    absolute = run(lambda v, b: statistics_ops.histogram(v, b, absolute_of_input=True), values, levels)
    same(absolute, np.float32([0, 1, 4, 3]), 0, 0)
    more = run(lambda h, v, b: statistics_ops.histogram_update(h, v[:2], b), counts, values, levels)
    same(more, np.float32([2, 4, 2, 2]), 0, 0)
    same(run(statistics_ops.histogram_normalize, counts), counts / 8)
    same(run(lambda v: statistics_ops.fixed_width_bins(v, 5), values), np.float32([-1, 1, 3, 5]))
    assert run(statistics_ops.histogram, values.astype(np.float16), levels.astype(np.float16)).dtype == np.float32
    with pytest.raises(ValueError, match="one dimension"):
        statistics_ops.histogram(values[None], levels)
    with pytest.raises(TypeError, match="float16 or float32"):
        statistics_ops.histogram(values.astype(np.int32), levels)


# --- marks in the program -----------------------------------------------------------------------------------------


def _slopes(fn, *tensors):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = fn(*tensors)
    return tape.gradient(result, tensors)


def test_barrier_is_the_identity_and_is_in_the_program():
    a, b = _normal(3), _normal(2, 2)

    def through(gradients_too):
        def fn(a, b):
            kept = control_flow_ops.barrier({"a": a, "b": b}, insert_barrier_for_gradients=gradients_too)
            return tf.reduce_sum(kept["a"]) * tf.reduce_sum(kept["b"] ** 2)

        return fn

    expected = gradients(lambda a, b: tf.reduce_sum(a) * tf.reduce_sum(b**2), a, b, host=True)
    for gradients_too, barriers in ((False, 1), (True, 2)):
        fn = through(gradients_too)
        same(gradients(fn, a, b), expected)
        whole = tf.function(functools.partial(_slopes, fn), jit_compile=True)
        text = whole.experimental_get_compiler_ir(tf.constant(a), tf.constant(b))(stage="hlo")
        assert text.count("opt-barrier(") == barriers
    same(control_flow_ops.barrier(a), a)


def test_outlined_function():
    x, scale = _normal(4), _normal(4)

    @functional_ops.outlined_function
    def plain(x, y):
        return tf.tanh(x * scale) + y, {"y": y * 2}

    @functional_ops.outlined_function(name="block", unique_sharding=True)
    def named(x):
        return plain(x, x)[0] + plain(x, 1.0)[1]["y"]

    assert named.__name__ == "block"
    expected = np.tanh(x.astype(np.float64) * scale)
    result, (gradient,) = gradients(named, x)
    same(result, expected + x + 2)
    same(gradient, np.cos(np.arange(4)) * (scale * (1 - expected**2) + 1))
    with pytest.raises(TypeError, match="keyword"):
        plain(x, y=x)
    with pytest.raises(TypeError, match="not a function"):
        functional_ops.outlined_function(3)


@pytest.mark.parametrize("marked", [True, False])
def test_an_outlined_function_is_code_once(marked):
    """Two dense layers and their gradients: the second call of each product has the vertices of the first."""
    layer = functional_ops.outlined_function(lambda x, w: tf.tanh(x @ w)) if marked else lambda x, w: tf.tanh(x @ w)

    def step(x, v, w):
        with tf.GradientTape() as tape:
            tape.watch([v, w])
            loss = tf.reduce_sum(layer(layer(layer(x, v), w), v))
        return tape.gradient(loss, [v, w])

    x, v, w = _normal(4, 8), _normal(8, 8), _normal(8, 8)
    strategy, on_device = IPUStrategy(strict=True), tf.function(step)
    with strategy.scope():
        found = strategy.run(on_device, args=(x, v, w))
    theirs = step(*(tf.constant(a) for a in (x, v, w)))
    same([np.asarray(g) for g in found], [g.numpy() for g in theirs], 1e-4, 1e-5)
    assert strategy.executable(on_device).program.again.any() == marked


def test_a_refusal_keeps_its_class_in_a_traced_function():
    with pytest.raises(IPUError, match="num_segments") as caught:
        run(lambda d: math_ops.segment_sum(d, [0, 0], 0), _normal(2))
    assert isinstance(caught.value, ValueError)
