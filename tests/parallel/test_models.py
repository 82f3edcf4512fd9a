"""All kinds of models in a pipeline against plain Keras; those with random numbers or moving statistics against the
same model that accumulates gradients without stages."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from ipu_keras import executable
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.keras.pipeline import assign_by_name
from tests.parallel import pipelines as pl
from tests.sweep import in_turns

LENGTH = 4


def check(plan, build, x, y, weight=None, loss="mse"):
    """Trains a model in a pipeline and as plain Keras does."""
    model = pl.in_scope(plan, build, loss)
    logs = model.fit(x, y, sample_weight=weight, batch_size=plan.batch, shuffle=False, verbose=0).history
    found = pl.reference(plan, pl.outside(plan, build, loss), x, y, weight)
    pl.assert_close(logs["loss"][0], np.float32(found.losses[-1]), 1e-5)
    pl.assert_weights(model, found, 1e-4 if plan.optimizer == "adam" else 1e-5)
    return model


def data(plan):
    return pl.normal(plan.samples, pl.FEATURES), pl.normal(plan.samples, pl.CLASSES, seed=1)


def sequential(stages, stage):
    widths = [5, 4, pl.CLASSES]
    model = keras.Sequential([keras.Input((pl.FEATURES,)), *(keras.layers.Dense(n, activation="tanh") for n in widths)])
    if stage is not pl.no_stage:
        model.set_pipeline_stage_assignment([min(k, stages - 1) for k in range(len(widths))])
    return model


@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 2, 4, 2), pl.Plan("Interleaved", 3, 6, 1, "mean")], ids=str)
def test_sequential(plan):
    check(plan, sequential, *data(plan))


@pytest.mark.parametrize("built", [True, False])
def test_subclassed(built):
    class Model(keras.Model):
        def __init__(self, stage):
            super().__init__(name="m")
            self.stage = stage
            self.first, self.last = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(pl.CLASSES)

        def call(self, x):
            with self.stage(0):
                x = self.first(x)
            with self.stage(1):
                return self.last(x)

    def build(stages, stage):
        model = Model(stage)
        if stage is pl.no_stage:
            model(np.zeros((1, pl.FEATURES), np.float32))
        elif built:
            model.build((None, pl.FEATURES))
        return model

    plan = pl.Plan("Interleaved", 2, 4, 2)
    if built:
        check(plan, build, *data(plan))
        return
    # What is not built draws its weights in fit: only the stages are looked at.
    model = pl.in_scope(plan, build)
    x, y = data(plan)
    model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0)
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [0, 1]
    assert all(np.isfinite(w).all() for w in model.get_weights())


def two_by_two(stages, stage):
    """The second input is wanted in the last stage only, the first output made in the first."""
    a, b = keras.Input((pl.FEATURES,), name="a"), keras.Input((3,), name="b")
    with stage(0):
        x = keras.layers.Dense(4, activation="tanh")(a)
        early = keras.layers.Dense(2, name="early")(x)
    with stage(1):
        y = keras.layers.Dense(4, activation="tanh")(x)
    with stage(2):
        late = keras.layers.Dense(pl.CLASSES, name="late")(keras.layers.Concatenate()([x, y, b]))
    return keras.Model({"a": a, "b": b}, {"early": early, "late": late}, name="m")


@pytest.mark.parametrize("schedule", ["Grouped", "Interleaved", "Sequential"])
def test_two_inputs_and_two_outputs(schedule):
    plan = pl.Plan(schedule, 3, 6)
    x = {"a": pl.normal(plan.samples, pl.FEATURES), "b": pl.normal(plan.samples, 3, seed=1)}
    y = {"early": pl.normal(plan.samples, 2, seed=2), "late": pl.normal(plan.samples, pl.CLASSES, seed=3)}
    check(plan, two_by_two, x, y, loss={"early": "mse", "late": "mae"})


@pytest.mark.parametrize("how", ["whole", "inside"])
def test_nested(how):
    """A model as a layer: in a stage as a whole, or over two stages."""

    def build(stages, stage):
        inner_stage = stage if how == "inside" else pl.no_stage
        x = first = keras.Input((5,))
        for k in range(2):
            with inner_stage(k):
                x = keras.layers.Dense(5, activation="tanh")(x)
        inner = keras.Model(first, x, name="inner")
        inputs = keras.Input((pl.FEATURES,))
        with stage(0):
            x = keras.layers.Dense(5)(inputs)
        if how == "inside":
            x = inner(x)
        else:
            with stage(0):
                x = inner(x)
        with stage(1):
            x = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, x, name="m")

    plan = pl.Plan("Grouped", 2, 4)
    check(plan, build, *data(plan))


@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 2, 8), pl.Plan("Sequential", 3, 3, 2, "mean")], ids=str)
def test_sample_weights(plan):
    weight = np.random.default_rng(5).uniform(0.2, 3, plan.samples).astype(np.float32)
    check(plan, pl.mlp, *data(plan), weight)


@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 2, 4, 2), pl.Plan("Interleaved", 2, 2, 1, "mean")], ids=str)
def test_a_layer_called_twice_in_a_stage(plan):
    def build(stages, stage):
        inputs = keras.Input((pl.FEATURES,))
        with stage(0):
            tied = keras.layers.Dense(pl.FEATURES, activation="tanh")
            x = tied(tied(inputs))
        with stage(1):
            x = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, x, name="m")

    check(plan, build, *data(plan))


@pytest.mark.parametrize("schedule", ["Grouped", "Interleaved", "Sequential"])
def test_a_reshaped_value_of_the_stage_before(schedule):
    """A layer on three dimensions reads its input as a matrix: what the backward pass wants is the link's value."""

    def build(stages, stage):
        x = inputs = keras.Input((LENGTH, pl.FEATURES))
        for k in range(stages):
            with stage(k):
                x = keras.layers.Dense(4 + k, activation="tanh")(x)
        return keras.Model(inputs, x, name="m")

    plan = pl.Plan(schedule, 3, 6)
    check(plan, build, pl.normal(plan.samples, LENGTH, pl.FEATURES), pl.normal(plan.samples, LENGTH, 6, seed=1))


def queued(model: keras.Model) -> list[int]:
    """Bytes of one micro-batch in each queue of a model's training program."""
    plan = executable(model, "train").program.header["pipeline"]
    return [queue["bytes"] // queue["depth"] for queue in plan["queues"]]


@pytest.mark.parametrize(
    ("schedule", "method"),
    [("Grouped", "sum"), ("Sequential", "sum"), ("Grouped", "mean"), ("Grouped", "running_mean")],
)
def test_tied_weights_in_two_stages_of_one_chip(schedule, method):
    """An embedding that is also the last projection, with stages 0 and 2 on one chip.

    Each stage adds its gradient of the table to the sum; of a running mean, which one cannot add to twice, the first
    one's waits in a queue.
    """

    def build(stages, stage):
        inputs = keras.Input((LENGTH,), dtype="int32")
        table = keras.layers.ReversibleEmbedding(9, 4, name="table")
        with stage(0):
            x = table(inputs)
        with stage(1):
            x = keras.layers.Dense(4, activation="tanh")(x)
        with stage(2):
            x = table(x, reverse=True)
        return keras.Model(inputs, x, name="m")

    plan = pl.Plan(schedule, 3, 6, method=method, mapping=(0, 1, 0))
    x = np.random.default_rng(0).integers(0, 9, (plan.samples, LENGTH)).astype(np.int32)
    model = check(plan, build, x, pl.normal(plan.samples, LENGTH, 9))
    assert (9 * 4 * 4 in queued(model)) == (method == "running_mean")


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 3, 6), pl.Plan("Interleaved", 2, 4, 2)], ids=str)
def test_a_mask_that_stages_share_travels_as_it_is(plan, dtype):
    """What a stage makes of it, one for each feature, is not handed on: the next one makes its own."""

    def build(stages, stage):
        x = inputs = keras.Input((LENGTH, 8))
        mask = keras.Input((LENGTH,), dtype=dtype)
        for k in range(stages):
            with stage(k):
                one = keras.ops.cast(mask, "float32")[:, :, None]
                x = keras.layers.Dense(8, activation="tanh")(x) * one
        return keras.Model([inputs, mask], x, name="m")

    x = [pl.normal(plan.samples, LENGTH, 8), (pl.normal(plan.samples, LENGTH, seed=2) > 0).astype(dtype)]
    model = check(plan, build, x, pl.normal(plan.samples, LENGTH, 8, seed=1))
    whole = plan.batch * LENGTH * 8 * 4
    assert any(n <= whole // 8 for n in queued(model))
    # The input of a stage and what its activation was: two of the size of an activation wait for each backward stage.
    assert sum(n == whole for n in queued(model)) <= 2 * plan.stages


class Counted(keras.layers.Layer):
    """A product, times how many batches there have been: a state that each micro-batch changes."""

    def build(self, shape):
        self.w = self.add_weight(shape=shape[-1:], initializer="ones", name="w")
        self.n = self.add_weight(shape=(), initializer="ones", trainable=False, name="n")

    def call(self, x):
        y = x * self.w * self.n
        self.n.assign(self.n + 0.125)
        return y


def test_what_is_made_of_a_changing_state_is_not_made_again():
    """The backward stage comes when the state is another: it needs the value that the forward stage had."""

    def build(stages, stage):
        x = inputs = keras.Input((8,))
        with stage(0):
            x = Counted()(keras.layers.Dense(8)(x))
        with stage(1):
            x = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, x, name="m")

    plan = pl.Plan("Grouped", 2, 4)
    x, y = pl.normal(plan.samples, 8), pl.normal(plan.samples, pl.CLASSES, seed=1)
    found = []
    for pipelined in (True, False):
        model = pl.in_scope(plan, build, pipelined=pipelined)
        logs = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history
        found.append((logs["loss"][0], model.get_weights()))
    pl.assert_close(np.float32(found[0][0]), np.float32(found[1][0]), 1e-6)
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        pl.assert_close(ours, theirs, 1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_loop_in_a_stage(kind):
    def build(stages, stage):
        x = inputs = keras.Input((LENGTH, 3))
        with stage(0):
            x = keras.layers.Dense(4)(x)
        with stage(1):
            x = getattr(keras.layers, kind)(4)(x)
        with stage(2):
            x = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, x, name="m")

    plan = pl.Plan("Interleaved", 3, 3)
    check(plan, build, pl.normal(plan.samples, LENGTH, 3), pl.normal(plan.samples, pl.CLASSES, seed=1))


def test_encoder_of_keras_hub():
    """An embedding and two transformer layers, with stages by the names of layers."""
    pytest.importorskip("keras_hub")
    from tests.hub.configurations import BATCH, CONFIGURATIONS

    def build(stages, stage):
        model, _, _ = CONFIGURATIONS["BertTextClassifier"]()
        if stage is not pl.no_stage:
            rest = {"transformer_layer_1": 1, "classifier_dropout": 1, "logits": 1, "pooled_dense": 1}
            assign_by_name(model, rest | {"*": 0})
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        return model

    plan = pl.Plan("Grouped", 2, 4, batch=BATCH, updates=1)
    _, x, y = CONFIGURATIONS["BertTextClassifier"]()
    # All micro-batches are different.
    x = keras.tree.map_structure(lambda a: np.concatenate([np.roll(a, k, -1) for k in range(4)]), x)
    y = np.concatenate([y, y[::-1], np.roll(y, 1), (y + 1) % 3])
    check(plan, build, x, y, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))


# Against accumulation without stages


def random_layer(name):
    return keras.layers.Dropout(0.4, seed=7) if name == "dropout" else keras.layers.BatchNormalization(momentum=0.8)


@pytest.mark.parametrize("name", ["dropout", "norm"])
@pytest.mark.parametrize("plan", [pl.Plan("Grouped", 2, 4), pl.Plan("Interleaved", 3, 3, 2, "mean")], ids=str)
def test_random_numbers_and_moving_statistics(plan, name):
    """Each stage that has such a layer sees the micro-batches in the same order as a model without stages."""

    def build(stages, stage):
        x = inputs = keras.Input((pl.FEATURES,))
        for k in range(stages):
            with stage(k):
                x = random_layer(name)(keras.layers.Dense(4 + k, activation="tanh")(x))
                if k == stages - 1:
                    x = keras.layers.Dense(pl.CLASSES)(x)
        return keras.Model(inputs, x, name="m")

    x, y = data(plan)
    both = [pl.in_scope(plan, build, pipelined=pipelined) for pipelined in (True, False)]
    before = [w.copy() for w in both[1].get_weights()]
    logs = [m.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history["loss"][0] for m in both]
    pl.assert_close(logs[0], logs[1], 1e-5)
    found = pl.Reference(before, both[1].get_weights(), np.zeros(0))
    pl.assert_weights(both[0], found)
    plain = pl.reference(plan, pl.outside(plan, build), x, y)
    # The layers did something: one big batch has other masks, and other statistics.
    assert any(np.abs(a - b).max() > 1e-4 * np.abs(a).max() for a, b in zip(plain.weights, found.weights))


# Replicas and accumulation without stages


@pytest.mark.parametrize("plan", [
    pl.Plan(replicas=4, micro=1, updates=3),
    pl.Plan(replicas=2, micro=3, method="running_mean", optimizer="momentum"),
    pl.Plan(replicas=4, micro=2, method="mean", optimizer="adam", updates=5),
    pl.Plan(replicas=1, micro=5),
], ids=lambda p: f"{p.replicas}-replicas-{p.micro}-{p.method}-{p.optimizer}")  # fmt: skip
@pytest.mark.parametrize("reduction", in_turns(["NONE", "MEAN", "SUM", "LIST"], 3, always=["MEAN"]))
def test_replicas_without_stages(plan, reduction):
    x, y = data(plan)
    model = pl.in_scope(plan, pl.mlp, pipelined=False)
    model.set_replication_options(reduction)
    logs = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history["loss"][0]
    found = pl.reference(plan, pl.outside(plan, pl.mlp), x, y)
    want = {"NONE": found.losses[-1], "MEAN": found.losses.mean(), "SUM": found.losses.sum(), "LIST": found.losses}
    expected = want[reduction] if plan.replicas > 1 else found.losses[0]
    pl.assert_close(np.asarray(logs, np.float32), np.asarray(expected, np.float32), 1e-5)
    pl.assert_weights(model, found, 1e-4 if plan.optimizer == "adam" else 1e-5)


# What the host sees


def test_accumulated_outfeed():
    """The mean of the metric's running values over the last update, not its last value: api.md 1.7."""
    plan = pl.Plan("Grouped", 2, 4, updates=1)
    x, y = data(plan)
    model = pl.in_scope(plan, pl.mlp)
    model.set_pipelining_options(plan.micro, accumulate_outfeed=True)
    found = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history["loss"][0]
    plain = pl.outside(plan, pl.mlp)
    losses = []
    for a, b in zip(np.split(x, plan.micro), np.split(y, plan.micro)):
        losses.append(plain.test_on_batch(a, b))
        plain.reset_metrics()
    running = np.cumsum(losses) / np.arange(1, plan.micro + 1)
    assert abs(running.mean() - running[-1]) > 1e-3
    pl.assert_close(np.float32(found), np.float32(running.mean()), 1e-5)


def test_products_in_serial_pieces():
    """With next to no memory for products, each is a loop in the loop over slots."""
    plan, config = pl.Plan("Grouped", 2, 4, 2), IPUConfig()
    config.auto_select_ipus, config.ipu_model.tiles_per_ipu = 4, 2
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.00015"}
    config.configure_ipu_system()
    try:
        model = check(plan, pl.mlp, *data(plan))
    finally:
        reset_ipu_configuration()
    assert sum("serial" in each for each in executable(model).program.header["plans"]) > 2
