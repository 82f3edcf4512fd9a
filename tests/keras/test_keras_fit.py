"""fit, evaluate, predict and the batch methods against plain Keras with jit_compile=True, from the same state."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy
from tests.keras import helpers
from tests.sweep import in_turns


def dataset(x, y, batch=8, **kwargs):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True)


@pytest.mark.parametrize("spe", in_turns([1, 2, 4], 3, always=[2]))
def test_fit_evaluate_predict(spe):
    inside, outside = helpers.pair(dropout=0.4, steps_per_execution=spe)
    x, y = helpers.make_data(32)
    before = ipu_keras.executions()
    kwargs = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
    a, b = inside.fit(x, y, **kwargs), outside.fit(x, y, **kwargs)
    assert ipu_keras.executions() - before == 2 * 2 * (4 // spe)
    helpers.assert_same_logs(a.history, b.history, rtol=1e-4)
    helpers.assert_same_weights(inside, outside)
    for va, vb in zip(inside.optimizer.variables, outside.optimizer.variables, strict=True):
        np.testing.assert_allclose(va, vb, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(
        inside.evaluate(x, y, batch_size=8, verbose=0), outside.evaluate(x, y, batch_size=8, verbose=0), rtol=1e-4
    )
    p, q = inside.predict(x, batch_size=8, verbose=0), outside.predict(x, batch_size=8, verbose=0)
    assert p.dtype == q.dtype and p.shape == q.shape
    np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-5)


def test_batch_methods():
    inside, outside = helpers.pair()
    x, y = helpers.make_data(8)
    for _ in range(2):
        a, b = inside.train_on_batch(x, y), outside.train_on_batch(x, y)
        assert [type(v) for v in a] == [type(v) for v in b]
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(inside.test_on_batch(x, y), outside.test_on_batch(x, y), rtol=1e-5)
    np.testing.assert_allclose(inside.predict_on_batch(x), outside.predict_on_batch(x), rtol=1e-4, atol=1e-6)
    helpers.assert_same_logs(
        inside.train_on_batch(x, y, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, return_dict=True),
        outside.train_on_batch(x, y, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, return_dict=True),
    )


class Recorder(keras.callbacks.Callback):
    """Notes every hook with its index and the keys of its logs."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_") and not name.startswith(("on_batch",)):
            calls = object.__getattribute__(self, "calls")
            return lambda *args, **kw: calls.append(
                (
                    name,
                    *[sorted(a) if isinstance(a, dict) else a for a in args],
                    *[sorted(v or {}) for v in kw.values()],
                )
            )
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("spe", [1, 2])
def test_callbacks_are_called_as_plain_keras_calls_them(spe):
    x, y = helpers.make_data(32)
    seen = []
    for model in helpers.pair(optimizer="sgd", norm=False, steps_per_execution=spe):
        recorder = Recorder()
        model.fit(
            x,
            y,
            batch_size=8,
            epochs=2,
            verbose=0,
            validation_data=(x[:16], y[:16]),
            callbacks=[recorder],
            initial_epoch=0,
        )
        model.evaluate(x, y, batch_size=8, verbose=0, callbacks=[recorder])
        model.predict(x, batch_size=8, verbose=0, callbacks=[recorder])
        seen.append(recorder.calls)
    assert seen[0] == seen[1]


def test_sample_weight_class_weight_and_split():
    x, y = helpers.make_data(32)
    weight = np.linspace(0.5, 1.5, 32).astype(np.float32)
    for kwargs in (
        dict(sample_weight=weight),
        dict(class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
        dict(validation_split=0.5),
        dict(validation_data=(x, y, weight), validation_freq=2, epochs=2),
    ):
        inside, outside = helpers.pair(optimizer="sgd", norm=False, weighted_metrics=["accuracy"], metrics=None)
        kwargs = dict(batch_size=8, shuffle=False, verbose=0) | kwargs
        helpers.assert_same_logs(inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history, rtol=1e-4)


def test_datasets_and_generators():
    x, y = helpers.make_data(32)

    def batches():
        while True:
            for i in range(0, 32, 8):
                yield x[i : i + 8], y[i : i + 8]

    class Sequence(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

    for source, kwargs in (
        (lambda: dataset(x, y), {}),
        (lambda: dataset(x, y).repeat(), {"steps_per_epoch": 4}),
        (batches, {"steps_per_epoch": 4}),
        (Sequence, {"shuffle": False}),
    ):
        inside, outside = helpers.pair(optimizer="sgd", norm=False, steps_per_execution=2)
        a = inside.fit(source(), epochs=2, verbose=0, **kwargs).history
        b = outside.fit(source(), epochs=2, verbose=0, **kwargs).history
        helpers.assert_same_logs(a, b, rtol=1e-4)
        helpers.assert_same_weights(inside, outside)


def test_model_built_by_its_first_fit_and_metrics_made_lazily():
    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3)])
        helpers.compile_mlp(model, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")])
        return model

    with IPUStrategy().scope():
        inside = make()
    outside = make()
    x, y = helpers.make_data(16)
    kwargs = dict(batch_size=8, shuffle=False, verbose=0, epochs=2)
    helpers.assert_same_logs(inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history)
    helpers.assert_same_weights(inside, outside)


def test_overridden_steps_are_what_runs():
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.seen = keras.metrics.Sum(name="seen")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            self.seen.update_state(tf.ones_like(y))
            return {"mine": loss, "seen": self.seen.result()}

        def predict_step(self, data):
            x = data[0] if isinstance(data, tuple) else data
            return {"twice": 2 * self(x), "sum": tf.reduce_sum(x)}

    def make():
        keras.utils.set_random_seed(2)
        model = Custom()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    with IPUStrategy().scope():
        inside = make()
    outside = make()
    x, y = helpers.make_data(16)[0], np.ones((16, 1), np.float32)
    a = inside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    b = outside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    helpers.assert_same_logs(a, b)
    p, q = inside.predict(x, batch_size=8, verbose=0), outside.predict(x, batch_size=8, verbose=0)
    assert p.keys() == q.keys()
    for key in p:
        np.testing.assert_allclose(p[key], q[key], rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs():
    def make():
        keras.utils.set_random_seed(2)
        a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
        joined = keras.layers.Concatenate()([a, b])
        outputs = {name: keras.layers.Dense(units, name=name)(joined) for name, units in (("p", 2), ("q", 1))}
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile("sgd", {"p": "mse", "q": "mae"}, metrics={"p": ["mae"]}, jit_compile=True)
        return model

    with IPUStrategy().scope():
        inside = make()
    outside = make()
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(16, 3)).astype("f"), "b": rng.normal(size=(16, 2)).astype("f")}
    y = {"p": rng.normal(size=(16, 2)).astype("f"), "q": rng.normal(size=(16, 1)).astype("f")}
    kwargs = dict(batch_size=8, shuffle=False, verbose=0)
    helpers.assert_same_logs(inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history)
    p, q = inside.predict(x, batch_size=8, verbose=0), outside.predict(x, batch_size=8, verbose=0)
    for key in ("p", "q"):
        np.testing.assert_allclose(p[key], q[key], rtol=1e-4, atol=1e-5)


def test_float64_data_becomes_float32():
    inside, outside = helpers.pair()
    x, y = helpers.make_data(16)
    wide = tf.data.Dataset.from_tensor_slices((x.astype(np.float64), y)).batch(8, drop_remainder=True)
    a = inside.fit(wide, verbose=0).history
    b = outside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    helpers.assert_same_logs(a, b)
    inside.train_on_batch(x[:8].astype(np.float64), y[:8])


def test_nan_is_trained_through():
    inside, outside = helpers.pair(optimizer="sgd")
    outside.jit_compile = True  # TensorFlow's own ReLU of NaN is 0, XLA's is NaN
    x, y = helpers.make_data(8)
    x[0, 0] = np.nan
    kwargs = dict(batch_size=8, verbose=0)
    a, b = inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history
    np.testing.assert_equal(np.isnan(a["loss"]), np.isnan(b["loss"]))
    for u, v in zip(inside.get_weights(), outside.get_weights(), strict=True):
        np.testing.assert_array_equal(np.isnan(u), np.isnan(v))


def test_recompile_is_logged_with_its_reason(caplog):
    with IPUStrategy().scope():
        model = helpers.mlp()
    x, y = helpers.make_data(16)
    with caplog.at_level("INFO", "ipu_keras"):
        model.train_on_batch(x[:8], y[:8])
        model.train_on_batch(x[:8], y[:8])
        model.train_on_batch(x, y)
        model.train_on_batch(x[:8], y[:8])
    messages = [r.message for r in caplog.records if r.message.startswith("compiling")]
    assert len(messages) == 2 and "first use" in messages[0]
    assert "tensor 0 was float32[8, 5] and is float32[16, 5]" in messages[1]


def test_compile_again_starts_anew():
    inside, outside = helpers.pair(optimizer="sgd")
    x, y = helpers.make_data(16)
    for model in (inside, outside):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        model.layers[0].trainable = False
        helpers.compile_mlp(model, "sgd")
    kernel = inside.layers[0].kernel.numpy()
    a = inside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    helpers.assert_same_logs(a, outside.fit(x, y, batch_size=8, shuffle=False, verbose=0).history)
    np.testing.assert_array_equal(inside.layers[0].kernel.numpy(), kernel)


def test_loss_scale_optimizer():
    def make():
        return helpers.mlp(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0))

    with IPUStrategy().scope():
        inside = make()
    outside = make()
    x, y = helpers.make_data(16)
    kwargs = dict(batch_size=8, shuffle=False, verbose=0)
    helpers.assert_same_logs(inside.fit(x, y, **kwargs).history, outside.fit(x, y, **kwargs).history)
    helpers.assert_same_weights(inside, outside)


def test_layer_names_of_a_train_step():
    with IPUStrategy().scope():
        model = helpers.mlp(dropout=0.3)
    model.train_on_batch(*helpers.make_data(8))
    names = model.train_function.session.programs[0].traced.names
    name = model.name
    paths = {f"{name}/{layer.name}" for layer in model.layers}
    assert paths | {"loss", "metrics/loss", "metrics/accuracy", "optimizer"} <= set(names.scopes.values())
    owners = dict(names.variables.values())
    first = model.layers[0]
    assert owners[first.kernel.path] == f"{name}/{first.name}"
    slot = next(path for path in owners if path.endswith(f"{first.name}_kernel_momentum"))
    assert owners[slot] == f"{name}/{first.name}"
    assert owners["seed_generator/seed_generator_state"] == f"{name}/dropout" or "dropout" in " ".join(owners.values())
    from ipu_keras.frontend import tfapi

    module = tfapi.parse(model.train_function.session.programs[0].traced.module)
    located = {names.locate(i.metadata.op_name) for c in module.computations for i in c.instructions}
    for layer in model.layers:
        assert (f"{name}/{layer.name}", "forward") in located and (f"{name}/{layer.name}", "backward") in located
