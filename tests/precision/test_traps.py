"""Overflow of fp16 (infinity, the largest number, NaN), loss scaling that backs off, and traps that say where."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_all_reduce

import ipu_keras as ipu
from ipu_keras.compiler import compile_module
from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.compiler.passes.simplify import simplify
from ipu_keras.graph.ir import Graph, Node
from ipu_runtime.errors import FloatingPointTrap
from tests.harness import hlo_of
from tests.precision.half import data, equal, small, system, weights

LARGEST = np.float16(65504)


def compiled(fn, *arrays, **options):
    return compile_module(hlo_of(fn, *arrays)[0], options=options)


@pytest.mark.parametrize(("overflow", "becomes"), [("inf", np.inf), ("clip", LARGEST), ("nan", np.nan)])
def test_seventy_thousand(overflow, becomes):
    ones = np.ones(70000, np.float16)
    (total,) = compiled(tf.reduce_sum, ones, half_overflow=overflow).run(ones)
    np.testing.assert_array_equal(total, becomes)
    x, w = np.full((1, 64), 40, np.float16), np.full((64, 1), 40, np.float16)
    (product,) = compiled(lambda a, b: a @ b, x, w, half_overflow=overflow, matmul_partials="half").run(x, w)
    np.testing.assert_array_equal(product[0, 0], becomes)


@pytest.mark.parametrize(
    ("number", "left"), [(200, ["constant"]), (300, ["constant", "multiply"]), (np.inf, ["constant"])]
)
def test_the_compiler_leaves_an_overflow_to_the_tiles(number, left):
    """TensorFlow and JAX compute constants themselves: here the graph is made by hand."""
    graph = Graph("product of constants")
    constant = Node("constant", [], [((), "f16")], {"value": np.float16(number)})
    product = Node("multiply", [constant.out, constant.out], [((), "f16")])
    graph.nodes, graph.outputs = [constant, product], [product.out]
    assert [node.op for node in simplify(graph).nodes] == left


def losses_scale(**behaviour):
    """The loss scale after one step with gradients beyond fp16, whether the weights moved, and their values."""
    with system("mixed_float16", **behaviour):
        inner = keras.optimizers.SGD(1e-4)
        model = small(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**20))
        before = weights(model)
        x, y = data(8)
        model.fit(x, y, batch_size=8, verbose=0)
        return float(model.optimizer.dynamic_scale), not equal(before, weights(model))


def test_loss_scaling_backs_off_if_an_overflow_shows():
    assert losses_scale(nanoo=True) == (2.0**19, False)
    # With the chip's default a gradient is cut to 65,504 and nobody notices: as on the chip.
    assert losses_scale() == (2.0**20, True)


TRAPPED = {
    "inv": (lambda x: tf.sqrt(x - 2.0), [3.0, 1.0], "inv"),
    "div0": (lambda x: 1.0 / (x - 1.0), [3.0, 1.0], "div0"),
    "log of zero": (lambda x: tf.math.log(x - 1.0), [3.0, 1.0], "div0"),
    "overflow": (lambda x: x * 3e38, [0.5, 3.0], "oflo"),
    "a sum": (lambda x: tf.reduce_sum(x * 2e38), [1.0, 1.2], "oflo"),
    "a product": (lambda x: tf.linalg.matvec(tf.fill((2, 2), 2e38), x), [1.5, 1.5], "oflo"),
    "comparison": (lambda x: tf.cast(x > 1.0, tf.int32), [0.0, np.nan], "inv"),
}


FINE = {name: [3.0, 4.0] for name in TRAPPED} | {"overflow": [0.5, 1.0], "a sum": [0.5, 0.5], "a product": [0.5, 0.5]}


@pytest.mark.parametrize("name", TRAPPED)
@pytest.mark.parametrize("threads", [None, 1, 2])
def test_what_is_trapped(name, threads):
    fn, values, trap = TRAPPED[name]
    x = np.float32(values)
    engine = compiled(fn, x, traps=["inv", "div0", "oflo"]).engine(threads=threads)
    with pytest.raises(FloatingPointTrap, match="states are those from before") as caught:
        engine.run({0: x[None]})
    assert caught.value.traps == [trap] and isinstance(caught.value, FloatingPointError)
    others = [t for t in ("inv", "div0", "oflo") if t != trap]
    assert len(compiled(fn, x, traps=others).engine(threads=threads).run({0: x[None]})) == 1
    fine = np.float32(FINE[name])
    engine.run({0: fine[None]})  # the engine goes on


def test_infinities_that_are_data_trap_nothing():
    x = np.float32([1, -np.inf, 3])

    def masked_softmax(v):
        e = tf.exp(v - tf.reduce_max(v))
        return e / tf.reduce_sum(e), tf.maximum(v, -np.inf), tf.where(v > 0, v, -np.inf)

    probabilities = compiled(masked_softmax, x, traps=["inv", "div0", "oflo"]).run(x)[0]
    np.testing.assert_allclose(probabilities, np.exp([-2, -np.inf, 0]) / (1 + np.exp(-2)), rtol=1e-5)


@pytest.mark.parametrize("overflow", ["inf", "clip", "nan"])
def test_an_overflow_of_fp16_is_one_however_it_ends(overflow):
    x = np.float16([300, 2])
    exe = compiled(lambda v: v * v, x, traps=["oflo"], half_overflow=overflow)
    with pytest.raises(FloatingPointTrap) as caught:
        exe.run(x)
    assert caught.value.traps == ["oflo"]
    np.testing.assert_array_equal(exe.run(np.float16([200, 2]))[0], np.float16([40000, 4]))


def test_the_layer_is_named_and_nothing_has_changed():
    class Bad(keras.layers.Layer):
        def call(self, x):
            return tf.math.log(x * 0.0)

    with system("float32", div0=True):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(4, name="good"), Bad(name="bad"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=2)
        before = weights(model)
        x, y = (v.astype(np.float32) for v in data(16))
        with pytest.raises(ipu.errors.FloatingPointTrap, match=r"division by zero in .*Log.*layer .*bad") as caught:
            model.fit(x, y, batch_size=4, verbose=0)
        assert caught.value.layer.endswith("bad") and caught.value.traps == ["div0"] and 0 <= caught.value.tile < 1472
        assert equal(before, weights(model)) and int(model.optimizer.iterations) == 0


def test_the_operation_of_a_chain_is_named():
    """Neighbours are one vertex: the one that has done it is named, not the last."""
    x = np.float32([3, 1])
    for fn, name in (
        (lambda v: tf.abs(tf.math.log(v - 1.0, name="culprit")), "culprit"),
        (lambda v: tf.tanh(tf.multiply(v, 2e38, name="culprit")), "culprit"),
        (lambda v: tf.sqrt(v - 2.0, name="culprit") + 1.0, "culprit"),
    ):
        with pytest.raises(FloatingPointTrap, match=name) as caught:
            compiled(fn, x, traps=["inv", "div0", "oflo"]).run(x)
        assert name in caught.value.op


def test_a_trapped_execution_draws_nothing():
    x = np.float16([[1, 1, 1, 1], [300, 1, 1, 1]])
    exe = compiled(lambda v: (v + 0.0003) * v, x[0], traps=["oflo"], stochastic_rounding="on")
    wanted = [exe.engine().run({0: x[:1]})[0] for _ in range(2)]
    np.testing.assert_array_equal(*wanted)
    engine = exe.engine()
    with pytest.raises(FloatingPointTrap):
        engine.run({0: x[1:]})
    np.testing.assert_array_equal(engine.run({0: x[:1]})[0], wanted[0])


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_states_are_put_back(threads):
    """The second turn of an execution overflows: the state is that from before the first."""
    x, total = np.float32([[1, 2], [3e38, 1]]), np.float32([1e38, 5])
    exe = compile_module(hlo_of(lambda s, v: s + v, total, x[0])[0], state={0: 0}, options={"traps": ["oflo"]})
    engine = exe.engine(threads=threads)
    engine.write_state(0, total)
    with pytest.raises(FloatingPointTrap):
        engine.run({1: x}, repeat=2)
    np.testing.assert_array_equal(engine.read_state(0), total)
    engine.run({1: np.float32([[1, 2], [3, 4]])}, repeat=2)
    np.testing.assert_array_equal(engine.read_state(0), np.float32([1e38, 11]))


def test_options_are_checked():
    x = np.float32([1])
    for options, text in (
        ({"traps": "oflo"}, "collection"), ({"traps": ["overflow"]}, "collection"),
        ({"half_overflow": "wrap"}, "'clip'"), ({"stochastic_rounding": "yes"}, "'stable'"),
    ):  # fmt: skip
        with pytest.raises(ipu.errors.ConfigError, match=text):
            compiled(lambda v: v, x, **options)


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_a_sum_over_replicas_that_overflows_names_its_tile(threads):
    """Element 100 of 4,096 lies on a tile of its own; only its sum over the replicas is too large."""
    x = np.ones(4096, np.float16)
    module, _ = hlo_of(lambda v: xla_all_reduce(v, tf.constant([[0, 1]], tf.int32), "Add", "CrossReplica"), x)
    exe = compile_module(module, options={"traps": ["oflo"]}, parallel=Parallel(replicas=2))
    engine = exe.engine(threads=threads)
    tiles = {}
    for element in (0, 4000):
        large = np.stack([x, x])[None]
        large[0, :, element] = 40000
        with pytest.raises(FloatingPointTrap) as caught:
            engine.run({0: large})
        assert caught.value.traps == ["oflo"]
        tiles[element] = caught.value.tile
    assert tiles[0] == 0 < tiles[4000]
