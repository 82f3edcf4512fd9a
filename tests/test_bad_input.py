"""What a person can get wrong at the low-level door: each a clear exception of ours, before anything runs."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import errors, hlo
from ipu_keras.frontend.layers import LayerNames
from tests.harness import assert_close, hlo_of, run_both

ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731


def module():
    return hlo_of(lambda x, y: (x @ y, tf.reduce_sum(x)), ones(4, 3), ones(3, 2))[0]


@pytest.fixture(scope="module")
def exe():
    return hlo.compile(module(), name="the product")


# ---- names ----


@pytest.mark.parametrize(("wrong", "near"), [("gc20", "gc200"), ("GC200X", "gc200"), ("bowe", "bow"), ("c60", "c600")])
def test_unknown_target(wrong, near):
    with pytest.raises(errors.UnknownTargetError, match=f"{wrong!r}.*Did you mean '{near}'") as caught:
        hlo.compile(module(), target=wrong)
    assert isinstance(caught.value, (errors.IPUError, ValueError))


def test_a_target_like_nothing_lists_them_all():
    with pytest.raises(errors.UnknownTargetError) as caught:
        hlo.compile(module(), target="zzzzzz")
    assert all(name in str(caught.value) for name in hlo.TARGETS)


def test_unknown_option():
    with pytest.raises(errors.ConfigError, match=r"'available_memory'.*Did you mean 'available_memory_proportion'"):
        hlo.compile(module(), options={"available_memory": 0.5})


@pytest.mark.parametrize("value", [-0.1, 1.1, "half", None])
def test_an_option_with_a_value_it_cannot_take(value):
    with pytest.raises(errors.ConfigError, match="available_memory_proportion"):
        hlo.compile(module(), options={"available_memory_proportion": value})


@pytest.mark.parametrize("field", ["tiles", "bytes_per_tile", "clock_hz"])
@pytest.mark.parametrize("value", [0, -5, "many"])
def test_a_target_of_nothing(field, value):
    with pytest.raises(errors.ConfigError, match=field):
        hlo.Target(**{field: value})


# ---- modules ----


def test_float64_names_the_tensors():
    def wide(x):
        with tf.name_scope("tower"):
            return tf.sin(tf.cast(x, tf.float64), name="wide_sine")

    with pytest.raises(errors.UnsupportedError, match="f64") as caught:
        hlo.compile(hlo_of(wide, ones(3))[0])
    assert "wide_sine" in str(caught.value)
    assert any("sine" in item and "f64" in item for item in caught.value.items)


def test_a_float64_parameter_is_named():
    with pytest.raises(errors.UnsupportedError, match="f64 of parameter"):
        hlo.compile(hlo_of(lambda x, y: tf.cast(y, tf.float32) + x, ones(3), np.ones(3))[0])


def test_complex_names_the_tensor():
    def turn(x):
        return tf.math.real(tf.tanh(tf.complex(x, x), name="spin"))

    with pytest.raises(errors.UnsupportedError, match="c64") as caught:
        hlo.compile(hlo_of(turn, ones(3))[0])
    assert "spin" in str(caught.value)


@pytest.mark.parametrize(
    "fn, x",
    [(lambda x: tf.complex(x, x, name="spin"), ones(3)), (lambda z: tf.abs(z), ones(3).astype(np.complex64))],
)
def test_complex_numbers_do_not_cross_the_border(fn, x):
    with pytest.raises(errors.UnsupportedError, match=r"c64 of (a result|parameter)"):
        hlo.compile(hlo_of(fn, x)[0])


def test_all_that_is_unsupported_is_listed_at_once_with_layers():
    def many(x):
        with tf.name_scope("IPU.1."):
            a = tf.cast(tf.cast(x, tf.bfloat16, name="short"), tf.float32)
        with tf.name_scope("IPU.2."):
            b = tf.reduce_sum(tf.where(x > 0.5, name="places"))
        with tf.name_scope("IPU.3."):
            c = tf.math.real(tf.tanh(tf.complex(x, x)))
        return a, b, c

    names = LayerNames({"IPU.1.": "net/short", "IPU.2.": "net/places", "IPU.3.": "net/spin"})
    with pytest.raises(errors.UnsupportedError) as caught:
        hlo.compile(hlo_of(many, ones(4, 4))[0], layers=names, name="the net")
    text = str(caught.value)
    assert text.startswith("the net holds")
    for op, layer in (("bf16", "net/short"), ("dynamic shape", "net/places"), ("c64", "net/spin")):
        assert any(op in item and layer in item for item in caught.value.items), (op, text)
    assert all(item in text for item in caught.value.items)
    assert f"{len(caught.value.items)} thing" in text


@pytest.mark.parametrize("data", [b"", b"no module", b"\xff" * 100, bytes(range(256)) * 10])
def test_bytes_that_are_no_module(data):
    with pytest.raises(errors.UnsupportedError, match="not a serialized HloModuleProto"):
        hlo.compile(data)


def test_a_truncated_module():
    # A prefix is refused, unless only names and layouts behind the last computation are missing.
    whole = module()
    refused = 0
    for n in range(1, len(whole), 37):
        try:
            hlo.compile(whole[:n])
        except errors.UnsupportedError:
            refused += 1
    assert refused > len(whole) // 37 * 0.8


def test_instructions_that_are_not_there():
    from tensorflow.compiler.xla.service import hlo_pb2

    broken = hlo_pb2.HloModuleProto.FromString(module())
    for change in ("operand", "root", "entry", "parameter"):
        copy = hlo_pb2.HloModuleProto()
        copy.CopyFrom(broken)
        computation = next(c for c in copy.computations if c.id == copy.entry_computation_id)
        if change == "operand":
            next(i for i in computation.instructions if i.operand_ids).operand_ids[0] = 12345
        elif change == "root":
            computation.root_id = 12345
        elif change == "entry":
            copy.entry_computation_id = 12345
        else:
            del computation.instructions[
                next(n for n, i in enumerate(computation.instructions) if i.opcode == "parameter")
            ]
        with pytest.raises(errors.UnsupportedError, match="not a well-formed HLO module"):
            hlo.compile(copy.SerializeToString())


# ---- arrays ----


def test_wrong_number_of_arrays(exe):
    with pytest.raises(errors.DataError, match="the product takes 2 arrays, 1 were given"):
        exe.run(ones(4, 3))
    with pytest.raises(errors.DataError, match="2 arrays, 3 were given"):
        exe.run(ones(4, 3), ones(3, 2), ones(1))


@pytest.mark.parametrize("shape", [(4, 4), (3, 4), (12,), (4, 3, 1), ()])
def test_wrong_shape(exe, shape):
    with pytest.raises(errors.DataError, match=r"array 0 has shape .*takes \[4, 3\]"):
        exe.run(ones(*shape), ones(3, 2))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.complex64, object, "U3"])
def test_wrong_dtype(exe, dtype):
    with pytest.raises(errors.DataError, match=r"float32|f32"):
        exe.run(ones(4, 3).astype(dtype), ones(3, 2))


def test_the_executable_still_runs_after_refusals(exe):
    with pytest.raises(errors.DataError):
        exe.run(ones(1))
    product, total = exe.run(ones(4, 3), ones(3, 2))
    np.testing.assert_array_equal(product, np.full((4, 2), 3, np.float32))
    assert total == 12


def test_views_and_other_byte_orders_of_the_data(exe):
    x = np.arange(24, dtype=np.float32).reshape(6, 4)[:3].T  # not contiguous
    want = x @ ones(3, 2)
    np.testing.assert_array_equal(exe.run(x, ones(3, 2))[0], want)
    try:
        got = exe.run(x.astype(">f4"), ones(3, 2))[0]
    except errors.DataError:
        return  # refused is as good as read right
    np.testing.assert_array_equal(got, want)


# ---- values ----


def test_nan_and_infinity_in_the_data_go_through_as_in_xla():
    x = np.array([[np.nan, 1, -np.inf], [np.inf, -0.0, 2], [3, np.nan, -1]], np.float32)
    for fn in (
        lambda v: (v + 1, v * 0, tf.maximum(v, 0.5), tf.minimum(v, 0.5), tf.nn.relu(v), tf.abs(v), tf.sign(v)),
        lambda v: (tf.exp(v), tf.math.log(v), tf.sqrt(v), tf.tanh(v), tf.sigmoid(v), tf.math.rsqrt(v), 1 / v),
        lambda v: (v < 1, v >= v, tf.not_equal(v, v), tf.equal(v, v), tf.math.is_finite(v), tf.where(v > 0, v, -v)),
        lambda v: (tf.reduce_sum(v, 0), tf.reduce_mean(v), tf.argmax(v, 1), tf.argmin(v, 0), tf.cumsum(v, 1)),
        lambda v: (v @ v, tf.clip_by_value(v, -1.0, 1.0), tf.sort(v[:1]), tf.reduce_prod(v, 1)),
    ):
        ours, theirs = run_both(fn, x)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b)


def test_the_largest_of_nan_is_nan():
    # HLO's maximum and minimum hand NaN on, and so do NumPy and TensorFlow; XLA on the CPU reduces with its "fast"
    # minimum and maximum, which lose it. Here the definition is the oracle.
    x = np.array([[np.nan, 1, -np.inf], [3, 2, np.nan], [1, 2, 3]], np.float32)
    exe = hlo.compile(hlo_of(lambda v: (tf.reduce_max(v, 1), tf.reduce_min(v, 0), tf.nn.softmax(v)), x)[0])
    largest, smallest, soft = exe.run(x)
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_array_equal(smallest, x.min(0))
    np.testing.assert_array_equal(np.isnan(soft), [[True] * 3, [True] * 3, [False] * 3])


def test_nan_trains_through():
    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean(tf.nn.relu(x @ w))
        return loss, w - 0.1 * tape.gradient(loss, w)

    x = ones(4, 3)
    x[1, 2] = np.nan
    ours, theirs = run_both(step, x, ones(3, 2))
    assert np.isnan(theirs[0])
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)
