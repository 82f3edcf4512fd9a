"""`compare` finds the operation that is wrong, names its layer, and saves it; with nothing wrong it finds nothing."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import errors
from ipu_keras.compiler.lower import elementwise
from ipu_runtime.opcodes import OPS

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(5, "tanh", name="first"), keras.layers.Dense(4, name="second"), keras.layers.Softmax()]
    return keras.Sequential([keras.Input((6,)), *layers], name="net")


@pytest.fixture
def broken(monkeypatch):
    """Tiles that compute a sine where a hyperbolic tangent is wanted."""
    monkeypatch.setitem(elementwise.OPS, "tanh", OPS["sine"])


def test_nothing_wrong():
    result = ipu_keras.compare(model(), X)
    assert result.equal and result.first is None and result.worst <= 1
    assert result.checked >= 5
    assert "agree" in str(result)


def test_the_first_operation_that_differs_is_found_and_saved(broken, tmp_path):
    path = tmp_path / "difference.npz"
    result = ipu_keras.compare(model(), X, path=path)
    assert not result.equal
    assert result.first.kind == "Tanh" and result.first.layer == "net/first"
    assert result.first.shape == (4, 5)
    # It is the operation itself, not what came before it.
    assert result.first.alone == pytest.approx(result.first.error, rel=1e-3)
    assert np.sin(np.arctanh(result.first.theirs)) == pytest.approx(result.first.ours, abs=1e-4)
    assert "Tanh" in str(result) and "net/first" in str(result) and str(path) in str(result)
    assert path.stat().st_size < 20_000
    again = ipu_keras.rerun(path)
    assert again.first.kind == "Tanh"
    assert again.first.error == pytest.approx(result.first.alone)


def test_a_saved_difference_is_gone_when_the_cause_is(tmp_path, monkeypatch):
    path = tmp_path / "difference.npz"
    with monkeypatch.context() as patch:
        patch.setitem(elementwise.OPS, "tanh", OPS["sine"])
        assert ipu_keras.compare(model(), X, path=path).path == str(path)
    assert ipu_keras.rerun(path).worst < 1e-6


def test_functions_of_several_arguments(broken):
    def f(a, b):
        return tf.reduce_sum(tf.tanh(a @ tf.transpose(b)), 0), a * 2

    assert ipu_keras.compare(f, (X, X)).first.kind == "Tanh"
    assert ipu_keras.compare(tf.function(f), (X, X)).first.kind == "Tanh"
    assert ipu_keras.compare(lambda a: tf.nn.relu(a), X).equal


def test_a_nan_on_one_side_is_a_difference(monkeypatch):
    monkeypatch.setitem(elementwise.OPS, "exponential", OPS["log"])
    first = ipu_keras.compare(lambda x: tf.exp(x) + 1, -np.abs(X) - 1).first
    assert first.kind == "Exp" and first.error == np.inf and np.isnan(first.ours)


def test_what_cannot_run_is_listed_by_layer():
    class Short(keras.layers.Layer):
        def call(self, x):
            return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)

    net = keras.Sequential([keras.Input((6,)), Short(name="short")], name="net")
    with pytest.raises(errors.UnsupportedError, match=r"bf16.*net/short"):
        ipu_keras.compare(net, X)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04 not a zip"])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(errors.DataError, match=r"other\.npz"):
        ipu_keras.rerun(path)


def test_python_control_flow_of_a_tf_function(broken):
    @tf.function
    def f(x):
        for _ in tf.range(2):
            x = x * 0.5
        if tf.reduce_sum(x) > 1e9:
            x = -x
        return tf.tanh(x)

    assert ipu_keras.compare(f, X).first.kind == "Tanh"


def test_variables_keep_their_values():
    v = tf.Variable(1.0)
    assert ipu_keras.compare(lambda x: v.assign_add(tf.reduce_sum(x)) * 2, X).equal
    assert v.numpy() == 1


def test_comparisons_that_would_say_nothing():
    with pytest.raises(errors.DataError, match="stateless"):
        ipu_keras.compare(lambda x: x + tf.random.normal((4, 6)), X)
    with pytest.raises(errors.DataError, match="no operation"):
        ipu_keras.compare(lambda x: x, X)


def test_a_damaged_file_is_refused(broken, tmp_path):
    path = tmp_path / "difference.npz"
    ipu_keras.compare(model(), X, path=path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(errors.IPUError):  # or the byte did not matter
            ipu_keras.rerun(path)
    np.save(tmp_path / "array.npy", X)
    with pytest.raises(errors.DataError):
        ipu_keras.rerun(tmp_path / "array.npy")
