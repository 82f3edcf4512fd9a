"""SparseDense on the tiles, against a dense layer with the same zeros; training, saving, pruning, the profile."""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras.keras import layers
from ipu_keras.ops import sparse
from tests.api.layers.device import fit_both, same, step
from tests.precision.half import data, system, weights

RNG = rng = np.random.default_rng(5)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def rebuilt(layer):
    # Through text, as a file has it.
    copy = keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(layer))))
    assert type(copy) is type(layer) and copy.get_config() == layer.get_config()
    return copy


def test_names():
    assert ipu.ops.sparse is sparse and ipu.sparse is sparse and ipu.keras.layers.SparseDense is layers.SparseDense


def test_against_a_dense_layer_with_the_same_zeros():
    pattern = sparse.pattern_from_mask(np.kron(rng.random((3, 2)) < 0.7, np.ones((8, 8))), 8)
    layer = rebuilt(layers.SparseDense(16, pattern=pattern, activation="tanh", bias_initializer="ones"))
    x = normal(2, 5, 24)
    assert layer(x).shape == layer.compute_output_shape(x.shape) == (2, 5, 16)
    dense = keras.layers.Dense(16, activation="tanh")
    dense.build((None, 24))
    dense.kernel.assign(sparse.to_dense(layer.kernel, pattern))
    dense.bias.assign(np.ones(16))
    outputs, (to_x,), (to_kernel, to_bias) = step(layer, layer.weights, x)
    expected, (dense_to_x,), (dense_to_kernel, dense_to_bias) = step(dense, dense.weights, x, host=True)
    same(outputs, expected)
    same(to_x, dense_to_x)
    same(to_kernel, sparse.values_from_dense(dense_to_kernel, pattern))
    same(to_bias, dense_to_bias)
    assert layer.count_params() == pattern.blocks * 64 + 16


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_training_and_saving(tmp_path, policy):
    x, y = normal(16, 32), normal(16, 4)

    def make():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((32,)),
                layers.SparseDense(32, 16, density=0.5, activation="relu", dtype=policy, seed=3),
                layers.SparseDense(16, 4, density=0.25, use_bias=False, kernel_regularizer="l2", dtype=policy),
                layers.SparseDense(4, 1, density=0.5, dtype=policy),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    model = fit_both(make, x, y, tmp_path, *((2e-2, 2e-3) if policy != "float32" else ()))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [a.pattern for a in loaded.layers] == [a.pattern for a in model.layers]
    # Training changes blocks, and nothing but blocks: the tiles ran them as sparse products.
    plans = {plan["op"] for plan in ipu.executable(model).program.header["plans"]}
    assert plans == {"sparse-dot"}


def test_gradients_accumulate_over_micro_batches():
    x, y = normal(32, 32), normal(32, 4)

    def make():
        keras.utils.set_random_seed(1)
        parts = [layers.SparseDense(32, 8, density=0.5, activation="relu"), layers.SparseDense(4, 4, density=0.5)]
        model = keras.Sequential([keras.Input((32,)), *parts])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
        return model

    with ipu.IPUStrategy().scope():
        model = make()
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
        )
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    host = make()
    host.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)  # XLA on the CPU takes what TensorFlow computes
    host.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    same(model.get_weights(), host.get_weights())


def test_pruning_keeps_the_largest_blocks():
    dense = keras.layers.Dense(16, activation="relu", name="wide")
    with pytest.raises(ValueError, match="wide has no weights yet"):
        layers.SparseDense.from_dense(dense, 0.5, 8)
    dense.build((None, 24))
    kernel = np.full((24, 16), 0.01, np.float32) * normal(24, 16)
    kernel[8:16, :8], kernel[16:, 8:], kernel[0, 15] = 1, -1, 0.5
    dense.kernel.assign(kernel)
    dense.bias.assign(normal(16))
    layer = layers.SparseDense.from_dense(dense, 1 / 3, 8)
    assert set(zip(layer.pattern.rows, layer.pattern.columns, strict=True)) == {(1, 0), (2, 1)}
    assert layer.name == "wide" and layer.activation is keras.activations.relu
    kept = np.where(np.abs(kernel) == 1, kernel, 0)
    x = normal(3, 24)
    same(layer(x), np.maximum(x @ kept + np.asarray(dense.bias), 0))
    same(step(rebuilt_with_weights(layer), [], x)[0], layer(x))
    full = layers.SparseDense.from_dense(dense, 1.0, 8)
    same(full(x), dense(x))
    bare = keras.layers.Dense(16, use_bias=False)
    bare.build((None, 24))
    same(layers.SparseDense.from_dense(bare, 1.0, 8)(x), bare(x))


def rebuilt_with_weights(layer):
    copy = rebuilt(layer)
    copy.set_weights(layer.get_weights())
    return copy


def test_profile_says_what_the_layer_costs():
    with ipu.IPUStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                layers.SparseDense(64, 16, density=0.25, name="few"),
                keras.layers.Dense(64, name="all"),
            ]
        )
        model.compile("sgd", "mse")
        model.predict(normal(8, 64), batch_size=8, verbose=0)
    cost = {layer.layer.rpartition("/")[2]: layer for layer in ipu.executable(model, "predict").profile().layers}
    assert cost["few"].flops == 2 * 8 * 64 * 64 / 4 and cost["all"].flops == 2 * 8 * 64 * 64
    weights = {name: cost[name].memory["variable"] for name in cost if name in ("few", "all")}
    assert 64 * 64 <= weights["few"] - 4 * 64 < 64 * 64 * 1.1 and weights["all"] >= 4 * 64 * 64, weights
    assert cost["few"].cycles > 0


def test_what_does_not_fit():
    pattern = sparse.random_pattern((32, 16), 8, 0.5)
    for make, words in [
        (lambda: layers.SparseDense(16), "either density"),
        (lambda: layers.SparseDense(16, density=0.5, pattern=pattern), "either density"),
        (lambda: layers.SparseDense(32, pattern=pattern), "16 columns, and there are 32 units"),
        (lambda: layers.SparseDense(16, pattern=pattern)(tf.ones((2, 24))), "32 rows, and the input has 24 features"),
        (lambda: layers.SparseDense(16, 16, density=0.5)(tf.ones((2, 24))), "do not divide"),
        (lambda: layers.SparseDense(16, 3, density=0.5)(tf.ones((2, 24))), "block_size is 3"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()


@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_and_replicas_train_as_one_chip_does(replicas):
    def trained(stages):
        with system("float32", ipus=replicas * (2 if stages else 1)):
            keras.utils.set_random_seed(3)
            stage = ipu.keras.PipelineStage if stages else lambda _: contextlib.nullcontext()
            inputs = keras.Input((8,))
            with stage(0):
                x = layers.SparseDense(16, block_size=4, density=0.5, activation="tanh")(inputs)
            with stage(1):
                outputs = keras.layers.Dense(1)(layers.SparseDense(16, block_size=8, density=0.5)(x))
            model = keras.Model(inputs, outputs)
            model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=4)
            accumulate = model.set_pipelining_options if stages else model.set_gradient_accumulation_options
            accumulate(gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean")
            x, y = (v.astype(np.float32) for v in data(64))
            model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
            return weights(model)

    for a, b in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
