"""SGD, Adam and LAMB of the IPU API on the tiles against their formulas in double precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.keras.optimizers import AdamIpuOptimizer, IpuOptimizerBase, LAMBIpuOptimizer, SGDIpuOptimizer
from tests.api.optimizers import formulas
from tests.api.optimizers.formulas import GRADIENTS, START, on_tiles

ADAM = dict(learning_rate=0.1, beta_2=0.99, epsilon=1e-2)
CASES = {
    "sgd": (lambda: SGDIpuOptimizer(0.1), lambda: formulas.sgd()),
    "sgd, lr decays": (lambda: SGDIpuOptimizer(lr=0.1, decay=0.5), lambda: formulas.sgd(decay=0.5)),
    "momentum": (lambda: SGDIpuOptimizer(0.1, 0.8), lambda: formulas.sgd(momentum=0.8)),
    "nesterov": (lambda: SGDIpuOptimizer(0.1, 0.8, True), lambda: formulas.sgd(momentum=0.8, nesterov=True)),
    "clipped": (
        lambda: SGDIpuOptimizer(0.1, clipvalue=0.5),
        lambda: formulas.sgd(grads=np.clip(GRADIENTS, -0.5, 0.5)),
    ),
    "adam": (lambda: AdamIpuOptimizer(**ADAM), lambda: formulas.adam()),
    "adam, biased": (lambda: AdamIpuOptimizer(**ADAM, debiasing=False), lambda: formulas.adam(debiasing=False)),
    "amsgrad": (lambda: AdamIpuOptimizer(**ADAM, amsgrad=True), lambda: formulas.adam(amsgrad=True)),
    "lamb": (lambda: LAMBIpuOptimizer(0.1), lambda: formulas.lamb()),
    "lamb, decay, clip": (
        lambda: LAMBIpuOptimizer(0.1, weight_decay_rate=0.3, weight_norm_clip=1.5),
        lambda: formulas.lamb(decay=0.3, clip=1.5),
    ),
    "lamb, no decay, so no adaptation": (
        lambda: LAMBIpuOptimizer(0.1, weight_decay_rate=0.3, exclude_from_weight_decay=["bias", "^ker"]),
        lambda: formulas.lamb(decay=0.3, decays=False, adapts=False),
    ),
    "lamb, no adaptation alone": (
        lambda: LAMBIpuOptimizer(0.1, weight_decay_rate=0.3, exclude_from_layer_adaptation=["kernel"]),
        lambda: formulas.lamb(decay=0.3, adapts=False),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_on_the_tiles_follow_the_formula(name):
    make, formula = CASES[name]
    np.testing.assert_allclose(on_tiles(make()), formula(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_copy_from_the_configuration_takes_the_same_steps(name):
    first = CASES[name][0]()
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(first))
    assert type(copy) is type(first) and copy.get_config() == first.get_config()

    def steps(optimizer):
        weight = keras.Variable(START, name="kernel")
        for gradient in GRADIENTS:
            optimizer.apply([tf.constant(gradient)], [weight])
        return weight.numpy()

    np.testing.assert_array_equal(steps(first), steps(copy))


def test_amsgrad_and_zero_norms_matter_in_these_cases():
    assert np.abs(formulas.adam(amsgrad=True) - formulas.adam()).max() > 1e-3
    zero = np.zeros_like(START)
    ours = on_tiles(LAMBIpuOptimizer(0.1), start=zero)
    np.testing.assert_allclose(ours, formulas.lamb(start=zero), rtol=2e-4, atol=2e-5)
    still = on_tiles(LAMBIpuOptimizer(0.1), grads=np.zeros_like(GRADIENTS[:1]))
    np.testing.assert_array_equal(still[0], START)


# --- dtypes -------------------------------------------------------------------------------------------------------


def test_state_has_its_own_dtype_and_rounds_to_it():
    half = START.astype(np.float16)
    optimizer = AdamIpuOptimizer(**ADAM, m_dtype="float16", v_dtype=tf.float32, amsgrad=True)
    ours = on_tiles(optimizer, start=half, grads=GRADIENTS.astype(np.float16))
    dtypes = {v.name.rpartition("_")[2]: v.dtype for v in optimizer.variables if v.name.startswith("kernel")}
    assert dtypes == {"m": "float16", "v": "float32", "vhat": "float16"}
    assert ours.dtype == np.float16
    w, m, v, largest = half, np.float16(0), np.float32(0), np.float16(0)
    for t, g in enumerate(GRADIENTS.astype(np.float16).astype(np.float64), start=1):
        new_m, new_v = 0.9 * m.astype(np.float64) + 0.1 * g, 0.99 * v.astype(np.float64) + 0.01 * g * g
        m, v = np.float16(new_m), np.float32(new_v)
        top = np.maximum(largest.astype(np.float64), new_v / (1 - 0.99**t))
        largest = np.float16(top)
        w = np.float16(w.astype(np.float64) - 0.1 * new_m / (1 - 0.9**t) / (np.sqrt(top) + 1e-2))
        np.testing.assert_allclose(ours[t - 1], w, rtol=2e-3, atol=2e-3)


def test_the_arithmetic_is_in_the_precision_that_is_asked_for():
    # The step of 2^-12 is lost in a float16 weight near 1, and in float16 arithmetic alone when the weight is float32.
    start, grads = np.ones((4, 3), np.float32), np.full((3, 4, 3), 2.0**-12, np.float32)
    wide = on_tiles(SGDIpuOptimizer(1.0), start=start, grads=grads)
    np.testing.assert_allclose(wide[-1], 1 - 3 * 2.0**-12, rtol=1e-7)
    narrow = on_tiles(SGDIpuOptimizer(1.0, optimizer_compute_precisions=(tf.float16,)), start=start, grads=grads)
    np.testing.assert_array_equal(narrow[-1], start)
    # The direction in float16, the norms in float32: those of 70,000 weights of 1 do not fit float16.
    many, slopes = np.ones((700, 100), np.float32), np.full((2, 700, 100), 0.5, np.float32)
    norms = LAMBIpuOptimizer(0.1, epsilon=0.25, optimizer_compute_precisions=(tf.float16, tf.float32))
    ours = on_tiles(norms, start=many, grads=slopes)
    np.testing.assert_allclose(ours, formulas.lamb(start=many, grads=slopes, eps=0.25), rtol=2e-2)


def test_refusals():
    for precisions in ((tf.float32,), (tf.float32,) * 3):
        with pytest.raises(ValueError, match="length of 2"):
            LAMBIpuOptimizer(optimizer_compute_precisions=precisions)
    for precisions in ((), (tf.int32,), tf.float32):
        with pytest.raises(ValueError, match="optimizer_compute_precisions"):
            AdamIpuOptimizer(optimizer_compute_precisions=precisions)
    with pytest.raises(TypeError, match="outline_apply_gradients_kwargs"):
        SGDIpuOptimizer(outline_apply_gradients_kwargs={"outline": True})
    SGDIpuOptimizer(outline_apply_gradients=True, outline_apply_gradients_kwargs={"unique_sharding": True})
    weight = keras.Variable(np.ones((4, 2), np.float32))
    sparse = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), tf.constant([4, 2]))
    for kind in (SGDIpuOptimizer, AdamIpuOptimizer, LAMBIpuOptimizer):
        with pytest.raises(NotImplementedError, match="sparse"):
            kind().apply([sparse], [weight])


# --- in models ----------------------------------------------------------------------------------------------------


def test_an_optimizer_of_ones_own():
    class Signs(IpuOptimizerBase):
        def build(self, variables):
            super().build(variables)
            for var in variables:
                self.add_slot(var, "count", dtype="float16")

        def update_step(self, gradient, variable, learning_rate):
            count = self.read_slot(variable, "count", "float32") + 1
            self.assign(self.get_slot(variable, "count"), count)
            self.assign_sub(variable, tf.sign(gradient) * self.decayed(learning_rate) * count)

    optimizer = Signs("signs", learning_rate=0.5)
    ours = on_tiles(optimizer)
    counts = np.arange(1, len(GRADIENTS) + 1).reshape(-1, 1, 1)
    np.testing.assert_allclose(ours, START - 0.5 * np.cumsum(np.sign(GRADIENTS) * counts, 0), rtol=1e-5)
    assert optimizer.get_slot_dtype(keras.Variable(START)) == "float32"


@pytest.mark.parametrize("name", ["momentum", "amsgrad", "lamb, decay, clip"])
def test_fit_and_saving(name, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)

    def make(strategy=None):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
        model.compile(CASES[name][0](), "mse", jit_compile=False if strategy is None else "auto")
        return model

    strategy = IPUStrategy()
    with strategy.scope():
        inside = make(strategy)
    outside = make()
    for model in (inside, outside):
        before = model.get_weights()
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    for a, b in zip(inside.get_weights(), outside.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    inside.save(tmp_path / "m.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "m.keras")
    for model in (inside, loaded):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(inside.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
