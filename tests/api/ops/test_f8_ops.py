"""`ipu.ops.f8_ops` on the tiles and on the host, and what it refuses. The numbers: tests/ops/test_f8.py."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, compare
from ipu_keras.errors import IPUError, UnsupportedError
from ipu_keras.ops import f8_ops
from ipu_keras.ops.f8_ops import Format, QuarterTensor, convert_from_f8, convert_to_f8, create_metadata

rng = np.random.default_rng(3)
KINDS = {Format.F143: ml_dtypes.float8_e4m3fnuz, Format.F152: ml_dtypes.float8_e5m2fnuz}


def run(fn, *args, target="c600"):
    return tf.nest.map_structure(np.asarray, IPUStrategy(target=target).run(tf.function(fn), args))


def quarters(shape, fmt, scale):
    """Whole numbers that a quarter of this format holds, times two to the scale: their codes, and the numbers."""
    numbers = rng.integers(-4, 5, shape).astype(np.float32)
    return (numbers.astype(KINDS[fmt]).view(np.uint8), create_metadata(fmt, scale)), numbers * 2.0**scale


def test_metadata():
    # Bit 7 for 1.4.3, the scale as six bits with a sign.
    assert [create_metadata(f, s) for f, s in ((Format.F143, 0), (Format.F152, 0), (Format.F143, -1), (1, 31))] == [
        0b1000_0000, 0, 0b1011_1111, 0b0001_1111,
    ]  # fmt: skip
    assert (Format.F143, Format.F152) == (0, 1)


def test_there_and_back_on_tiles_and_host():
    # The cases of the original's own test: these survive.
    for fmt in Format:
        for scale in (-1, 0, 1):
            for dtype in ("float16", "float32", "int32"):
                numbers = np.array([-0.75, 1, 2, -4] if dtype != "int32" else [-1, 1, 2, -4], dtype)

                def there_and_back(x, m, dtype=dtype):
                    return convert_from_f8(convert_to_f8(x, m), dtype)

                metadata = np.array(create_metadata(fmt, scale), np.uint8)
                for found in (run(there_and_back, numbers, metadata), there_and_back(tf.constant(numbers), metadata)):
                    assert np.asarray(found).dtype == dtype
                    np.testing.assert_array_equal(found, numbers)


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("scale", [-32, -5, 0, 31])
def test_the_host_casts_as_ml_dtypes_does(fmt, scale):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        exact = (halves.astype(np.float32) * np.float32(2.0**-scale)).astype(KINDS[fmt]).view(np.uint8)
        large = (exact == 0x80) & np.isfinite(halves)
        back = (np.arange(256, dtype=np.uint8).view(KINDS[fmt]).astype(np.float64) * 2.0**scale).astype(np.float16)
    exact = np.where(large, np.where(halves < 0, 0xFF, 0x7F), exact)
    metadata = create_metadata(fmt, scale)
    np.testing.assert_array_equal(convert_to_f8(tf.constant(halves), metadata).data, exact)
    found = convert_from_f8((np.arange(256, dtype=np.uint8), metadata)).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.arange(256) == 0x80)
    np.testing.assert_array_equal(np.delete(found, 0x80), np.delete(back, 0x80))


@pytest.mark.parametrize(
    ("left", "right"), [((6, 40), (40, 5)), ((3, 6, 40), (3, 40, 5)), ((1, 6, 40), (40, 5)), ((6, 40), (1, 40, 5))]
)
def test_matmul(left, right):
    (a, a_meta), x = quarters(left, Format.F143, -1)
    (b, b_meta), y = quarters(right, Format.F152, 2)

    def fn(a, b):
        return f8_ops.f8_matmul(QuarterTensor(a, a_meta), QuarterTensor(b, b_meta))

    exact = (x @ y).reshape((6, 5) if len(left) == 2 else (left[0], 6, 5))
    for found in (run(fn, a, b), fn(tf.constant(a), tf.constant(b))):
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, exact)  # small whole numbers: exact in fp16


def test_data_alone_is_152_without_scale():
    (a, _), x = quarters((4, 8), Format.F152, 0)
    (b, _), y = quarters((8, 3), Format.F152, 0)
    np.testing.assert_array_equal(run(f8_ops.f8_matmul, a, b), x @ y)


CONVOLUTIONS = [
    (f8_ops.f8_conv_1d, tf.nn.conv1d, (2, 9, 6), (3, 6, 4), 2, "SAME", {}),
    (f8_ops.f8_conv_1d, tf.nn.conv1d, (2, 9, 6), (3, 6, 4), (1, 2, 1), "VALID", {"dilations": 1}),
    (f8_ops.f8_conv_2d, tf.nn.conv2d, (2, 7, 6, 5), (3, 2, 5, 4), [1, 2, 1, 1], "SAME", {}),
    (f8_ops.f8_conv_2d, tf.nn.conv2d, (2, 7, 6, 5), (3, 2, 5, 4), 1, [[0, 0], [2, 1], [0, 3], [0, 0]], {}),
    (f8_ops.f8_conv_2d, tf.nn.conv2d, (1, 8, 9, 4), (2, 3, 4, 4), 1, "VALID", {"dilations": [1, 2, 3, 1]}),
    (f8_ops.f8_conv_3d, tf.nn.conv3d, (1, 4, 5, 6, 3), (2, 3, 2, 3, 4), [1, 1, 2, 1, 1], "SAME", {}),
]


@pytest.mark.parametrize(("ours", "theirs", "ins", "taps", "strides", "padding", "more"), CONVOLUTIONS)
@pytest.mark.parametrize("channels_first", [False, True])
def test_convolution(ours, theirs, ins, taps, strides, padding, more, channels_first):
    (a, a_meta), x = quarters(ins, Format.F143, -1)
    (b, b_meta), y = quarters(taps, Format.F143, 0)
    exact = theirs(x, y, strides, padding, **more).numpy()
    nd = len(ins) - 2
    more = dict(more)
    if channels_first:
        # The arguments in the order of the data.
        def turn(v):
            return [v[0], v[-1], *v[1:-1]] if isinstance(v, (list, tuple)) and len(v) == nd + 2 else v

        strides, padding, more = turn(strides), turn(padding), {k: turn(v) for k, v in more.items()}
        a, exact = np.moveaxis(a, -1, 1).copy(), np.moveaxis(exact, -1, 1)
        more["data_format"] = f"NC{'DHW'[3 - nd :]}" if nd > 1 else "NCW"

    def fn(a, b):
        return ours(QuarterTensor(a, a_meta), QuarterTensor(b, b_meta), strides, padding, **more)

    for found in (run(fn, a, b), fn(tf.constant(a), tf.constant(b))):
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, exact)


def test_no_gradient_passes_a_cast():
    def gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            codes = convert_to_f8(x, create_metadata(Format.F143))
            y = tf.reduce_sum(tf.cast(f8_ops.f8_matmul(codes, codes), tf.float32)) * w
        to_x, to_w = tape.gradient(y, [x, w])
        assert to_x is None
        return to_w

    # Of four products of two: the gradient of what comes after.
    assert run(gradients, np.ones((2, 2), np.float32), np.float32(3)) == 8
    assert gradients(tf.ones((2, 2)), tf.constant(3.0)) == 8


def test_quarter_tensor():
    one = QuarterTensor(np.array([1, 2], np.uint8), 128)
    data, metadata = one
    assert (list(data.numpy()), metadata, one.dtype, tuple(one.shape), len(one), int(one[1])) == (
        [1, 2], 128, tf.uint8, (2,), 2, 2,
    )  # fmt: skip
    two = QuarterTensor(np.array([1, 3], np.uint8), 128)
    assert one != two
    two.assign(one.numpy())
    assert one == two and one != QuarterTensor(np.array([1, 2], np.uint8), 0)


X, W = np.zeros((1, 5, 5, 4), np.uint8), np.zeros((3, 3, 4, 2), np.uint8)
REFUSED = [
    (lambda: create_metadata(2), ValueError, "the format is 2"),
    (lambda: create_metadata(Format.F143, 32), ValueError, "from -32 to 31"),
    (lambda: create_metadata(Format.F143, -33), ValueError, "from -32 to 31"),
    (lambda: create_metadata(Format.F143, 1.0), ValueError, "a whole number"),
    (lambda: QuarterTensor(tf.zeros(2), 0), TypeError, "it must be uint8"),
    (lambda: f8_ops.f8_matmul(tf.zeros((2, 2), tf.float16), W[0, 0]), TypeError, "float16"),
    (lambda: f8_ops.f8_matmul(W[0, 0], W[0, 0]), ValueError, r"\(4, 2\)"),
    (lambda: f8_ops.f8_matmul(X, W), ValueError, "groups in front"),
    (lambda: f8_ops.f8_matmul(W[0], np.zeros((2, 2, 3), np.uint8)), ValueError, "3 groups on the left and 2"),
    (lambda: f8_ops.f8_conv_2d(X, W, 1, "SOME"), ValueError, "'SOME'"),
    (lambda: f8_ops.f8_conv_2d(X, W, [2, 1, 1, 1], "SAME"), ValueError, "batch and channels must be 1"),
    (lambda: f8_ops.f8_conv_2d(X, W, [1, 1, 1], "SAME"), ValueError, "strides are"),
    (lambda: f8_ops.f8_conv_2d(X, W, 0, "SAME"), ValueError, "strides are 0"),
    (lambda: f8_ops.f8_conv_2d(X, W, 1, [[1, 0], [0, 0], [0, 0], [0, 0]]), ValueError, "cannot be padded"),
    (lambda: f8_ops.f8_conv_2d(X, W[..., :3, :], 1, "SAME"), ValueError, "do not fit each other"),
    (lambda: f8_ops.f8_conv_2d(X, W[0], 1, "SAME"), ValueError, "4 dimensions"),
    (lambda: f8_ops.f8_conv_1d(X[0], W[0], 1, "SAME", data_format="NHWC"), ValueError, "'NWC' or 'NCW'"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED)
def test_refused(call, kind, text):
    with pytest.raises(kind, match=text) as refused:
        call()
    assert isinstance(refused.value, IPUError)


def test_compare_refuses_what_xla_has_not():
    with pytest.raises(UnsupportedError, match="convert_to_f8"):
        compare(lambda x: convert_to_f8(x, 128).data, np.ones(4, np.float16), target="c600")


def test_other_chips_refuse():
    def fn(x):
        return convert_to_f8(x, create_metadata(Format.F143)).data

    with pytest.raises(UnsupportedError, match="'bow' has no 8-bit floats; take c600"):
        run(fn, np.ones(4, np.float16), target="bow")


def test_scalars_and_metadata_that_is_no_byte():
    one = f8_ops.convert_to_f8(tf.constant(1.5), f8_ops.create_metadata(f8_ops.Format.F143))
    assert float(f8_ops.convert_from_f8(one)) == 1.5
    with pytest.raises(ValueError, match="it is a byte"):
        f8_ops.convert_to_f8(tf.constant([1.5]), 300)
