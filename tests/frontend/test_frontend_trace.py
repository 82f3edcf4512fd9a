"""Lowering of step functions to HLO, and what their parameters and outputs are said to mean."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.layers import LayerNames, token
from ipu_keras.frontend.scopes import ScopeTracer
from ipu_keras.frontend.trace import OutputRef, trace

SPEC = tf.TensorSpec((4,), tf.float32)


def shapes(module):
    shape = tfapi.parse(module).host_program_shape
    return [list(p.dimensions) for p in shape.parameters]


def test_parameters_are_data_then_captures():
    read, written = tf.Variable(np.ones((2,), np.float32)), tf.Variable(np.ones((3,), np.float32))
    captured = tf.constant(np.arange(5, dtype=np.float32))

    def step(x, labels):
        written.assign_add(tf.ones((3,)) * tf.reduce_sum(read))
        return tf.reduce_sum(x) + tf.reduce_sum(captured), labels

    traced = trace(step, (SPEC, tf.TensorSpec((7,), tf.int64)))
    assert traced.feeds == {0: 0, 1: 1}
    by_shape = {p: s for p, s in enumerate(shapes(traced.module))}
    assert by_shape[0] == [4] and by_shape[1] == [7]
    (index_read,) = [p for p, v in traced.variables.items() if v is read]
    (index_written,) = [p for p, v in traced.variables.items() if v is written]
    assert by_shape[index_read] == [2] and by_shape[index_written] == [3]
    (index_constant,) = traced.constants
    assert by_shape[index_constant] == [5]
    assert traced.updates == {index_written: 2}
    assert traced.state == {index_read: None, index_written: 2, index_constant: None}
    assert traced.outputs == (OutputRef(0), OutputRef(1))


def test_single_output_without_a_tuple():
    traced = trace(lambda x: x * 2, (SPEC,))
    assert traced.outputs == OutputRef(0) and traced.updates == {}


def test_variable_that_is_written_and_never_read():
    v = tf.Variable(0.0)

    def step(x):
        v.assign(x[0])

    traced = trace(step, (SPEC,))
    assert traced.updates == {1: 0} and traced.outputs is None


def test_structure_with_none_and_numbers():
    traced = trace(lambda d: {"n": None, "x": (d["a"], [d["b"]])}, ({"a": SPEC, "b": SPEC, "c": None},))
    assert traced.feeds == {0: 0, 1: 1}
    assert traced.outputs == {"n": None, "x": (OutputRef(0), [OutputRef(1)])}


def test_everything_in_the_way_is_listed():
    def step(x):
        tf.print(x)
        y = tf.numpy_function(lambda a: a, [x], tf.float32)
        return tf.strings.as_string(y)

    with pytest.raises(UnsupportedError) as info:
        trace(step, (SPEC,), name="mine")
    text = "\n".join(info.value.items)
    assert "tf.print" in text and "tf.numpy_function" in text and "string" in text and len(info.value.items) == 3


def test_callbacks_inside_a_nested_function_are_found():
    @tf.function
    def inner(x):
        tf.print(x)
        return x

    with pytest.raises(UnsupportedError, match="printing"):
        trace(
            lambda x: tf.while_loop(lambda i: i < 3, lambda i: i + inner(1), [0])[0] + tf.cast(x[0], tf.int32), (SPEC,)
        )


def test_what_xla_cannot_lower_says_so():
    with pytest.raises(UnsupportedError, match="cannot lower"):
        trace(lambda x: tf.nn.fractional_max_pool(tf.reshape(x, (1, 2, 2, 1)), [1, 1.4, 1.4, 1])[0], (SPEC,))


def test_errors_of_the_step_are_its_own():
    def step(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        trace(step, (SPEC,))


def test_float64_and_unknown_shapes_of_variables():
    wide = tf.Variable(np.ones(3))
    loose = tf.Variable([1.0], shape=tf.TensorShape([None]))
    with pytest.raises(UnsupportedError) as info:
        trace(lambda x: (wide.read_value(), loose.read_value()), (SPEC,))
    assert len(info.value.items) == 2 and "float64" in str(info.value) and "not fully defined" in str(info.value)


def test_scopes_are_found_in_forward_and_gradient():
    tracer = ScopeTracer()
    w = tf.Variable(np.ones((4, 4), np.float32))
    owner = object()

    def step(x):
        with tf.GradientTape() as tape, tracer.layer(object(), "model"), tracer.layer(owner, "dense"):
            y = tf.reduce_sum(tf.square(tf.linalg.matvec(w, x)))
        gradient = tape.gradient(y, w)
        with tracer.part("optimizer"):
            w.assign_sub(gradient * 0.1)
        return y

    traced = trace(step, (SPEC,))
    names = LayerNames(tracer.scopes)
    module = tfapi.parse(traced.module)
    found = {names.locate(i.metadata.op_name) for c in module.computations for i in c.instructions}
    assert {("model/dense", "forward"), ("model/dense", "backward"), ("optimizer", "forward")} <= found
    assert tracer.owners[id(owner)] == "model/dense"


def test_locate():
    names = LayerNames({token(0): "m", token(1): "m/a", token(11): "m/b"})
    assert names.locate("IPU.0./m/IPU.1._3/a/MatMul") == ("m/a", "forward")
    assert names.locate("gradient_tape/IPU.0._1/m/IPU.11./b/MatMul/MatMul_1") == ("m/b", "backward")
    assert names.locate("IPU.0./m/while/body/add") == ("m", "forward")
    for unknown in ("", "AddN", "IPU.7./x", "xIPU.1./y", "XLA_Args"):
        assert names.locate(unknown) is None


def test_counter_counts_runs_through_any_door():
    from ipu_keras import executions, hlo

    step = tf.function(lambda x: x + 1.0, jit_compile=True)
    exe = hlo.compile(step.experimental_get_compiler_ir(SPEC)(stage="hlo_serialized"))
    before = executions()
    exe.run(np.zeros(4, np.float32))
    exe.run(np.zeros(4, np.float32))
    assert executions() == before + 2


def test_private_api_of_this_tensorflow():
    """Fails by name when a TensorFlow release moves what `tfapi` relies on."""
    v = tf.Variable(np.arange(64, dtype=np.float32))
    first, second = tfapi.read_tensor(v.handle, v.dtype), tfapi.read_tensor(v.handle, v.dtype)
    assert tfapi.address(first) == tfapi.address(second), "a read must share the variable's buffer"
    v.assign_add(tf.ones(64))
    assert tfapi.address(tfapi.read_tensor(v.handle, v.dtype)) != tfapi.address(first), (
        "a held buffer must not be reused"
    )
    assert first.numpy()[0] == 0
    tensor = tfapi.tensor_from(np.full(64, 5, np.float32))
    tfapi.assign_tensor(v.handle, tensor)
    assert tfapi.address(tfapi.read_tensor(v.handle, v.dtype)) == tfapi.address(tensor), "an assignment must share"
    assert tfapi.view(tensor).shape == (64,) and tfapi.address(tf.constant(2.0)) == np.float32(2).tobytes()
    f = tf.function(lambda x: v + x, jit_compile=True)
    concrete = f.get_concrete_function(tf.TensorSpec((64,), tf.float32))
    assert tfapi.captures(concrete) == [v] or tfapi.captures(concrete)[0] is v
    assert any(node.op == "ReadVariableOp" for node in tfapi.all_ops(concrete.graph))
    assert tfapi.parse(tfapi.lower(f, [tf.TensorSpec((64,), tf.float32)])).computations
