"""What the compiler asks: paths as its labels carry them, and the stage of each call as a step is traced."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.keras import adapter
from ipu_keras.keras.pipeline import PipelineStage, query, stage_of, stages
from ipu_keras.keras.pipeline.query import announced, prepare
from ipu_keras.keras.pipeline.rules import check_call

Dense = keras.layers.Dense


class Composite(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Dense(4, name="inner")

    def call(self, x):
        return self.inner(x)


class Net(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.a, self.b = Composite(name="a"), keras.Sequential([Dense(4, name="c"), Dense(4, name="d")], name="b")

    def call(self, x):
        with PipelineStage(0):
            x = tf.nn.relu(self.a(x))
        with PipelineStage(1):
            x = self.b(x)
            return self.a(x)


def functional():
    inputs = keras.Input((4,))
    with PipelineStage(0):
        tied = Composite(name="tied")
        x = tied(inputs)
    with PipelineStage(1):
        x = keras.Sequential([keras.Input((4,)), Dense(4, name="c"), Dense(4, name="d")], name="block")(x)
        x = x * 2.0
    with PipelineStage(2):
        x = tied(x)
    return keras.Model(inputs, x, name="f")


def subclassed():
    model = Net(name="n")
    model.build((2, 4))
    return model


MAKERS = {"functional": functional, "subclassed": subclassed}


def traced(model):
    """Traces the model's step as the compiler does; gives its paths, and (operation, stage) in order."""
    names = LayerNames()

    @contextlib.contextmanager
    def enter(stage):
        with tf.name_scope(f"STAGE.{stage}."):
            yield

    def step(x):
        with adapter.trace_scopes(names, model), announced(model, enter):
            return model(x)

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((2, 4))).graph
    found = []
    for op in graph.get_operations():
        if op.type in ("MatMul", "Mul", "Relu"):
            numbers = [part.split(".")[1] for part in op.name.split("/") if part.startswith("STAGE.")]
            found.append((op.type, int(numbers[-1]) if numbers else None))
    return set(names.scopes.values()), found


def in_one_stage(model):
    assignments = model.get_pipeline_stage_assignment()
    for made in assignments:
        for leaf in made.pipeline_stage_assignments if made.is_nested_model else [made]:
            leaf.pipeline_stage = 0
    return assignments


@pytest.fixture(params=MAKERS.values(), ids=MAKERS)
def model(request):
    with IPUStrategy().scope():
        return request.param()


def test_paths_are_those_of_the_labels(model):
    labels, _ = traced(model)
    model.set_pipeline_stage_assignment(in_one_stage(model))
    layers = {path for path in stage_of(model) if "/multiply" not in path}
    assert layers <= labels and len(layers) == 3
    assert {label.split("/")[0] for label in labels} == {model.name}


def test_each_call_is_announced_with_its_own_stage(model):
    """Outside the scope, where PipelineStage in `call` is allowed as long as the model is watched."""
    _, found = traced(model)
    if model.name == "f":
        assert found == [("MatMul", 0), ("MatMul", 1), ("MatMul", 1), ("Mul", 1), ("MatMul", 2)]
    else:
        assert found == [("MatMul", 0), ("Relu", None), ("MatMul", 1), ("MatMul", 1), ("MatMul", 1)]


def test_a_layer_in_two_stages_has_no_one_path(model):
    with pytest.raises(RuntimeError, match=r"called in pipeline stages 0 and \d\. Give all of its calls the same"):
        stage_of(model)
    assert stages(model) == {"f": 3, "n": 2}[model.name]


def test_announcing_follows_what_is_set(model):
    model.set_pipeline_stage_assignment(in_one_stage(model))
    assert {stage for _, stage in traced(model)[1]} <= {0, None}
    assert stage_of(model) and set(stage_of(model).values()) == {0}
    model.reset_pipeline_stage_assignment()
    assert {stage for _, stage in traced(model)[1]} == {None} and stage_of(model) == {}


def test_a_model_that_is_not_built_is_traced_on_the_shapes_of_a_batch():
    with IPUStrategy().scope():
        model = Net(name="n")
    batch = (np.ones((2, 4), np.float32), np.ones(2, np.int32))
    signature = [(a.shape, a.dtype) for a in batch]
    assert stages(model) == 0
    prepare(model, batch, signature)
    assert model.built and stages(model) == 2

    class Other(keras.Model):  # its training step calls it in a way of its own
        def call(self, x, noise):
            return x + noise

    with IPUStrategy().scope():
        other = Other()
    prepare(other, batch, signature)
    assert not other.built and stages(other) == 0


def test_the_number_of_stages_is_known_without_a_look_at_the_model(model, monkeypatch):
    """It is asked before each execution."""
    count = stages(model)
    monkeypatch.setattr(query, "assignment_of", lambda model: pytest.fail("looked"))
    assert stages(model) == count
    model.reset_pipeline_stage_assignment()
    monkeypatch.undo()
    assert stages(model) == 0


def test_a_model_without_stages_is_not_run_again_and_again():
    """Its `call` may have effects; it is traced once, and only where somebody uses stages at all."""

    class Counting(keras.Model):
        runs = 0

        def __init__(self):
            super().__init__()
            self.dense = Dense(4)

        def call(self, x):
            type(self).runs += 1
            return self.dense(x)

    with IPUStrategy().scope():
        model = Counting()
        model.build((2, 4))
        with PipelineStage(0):
            pass
    before = Counting.runs
    for _ in range(3):
        assert check_call(model, "predict") == 0
    assert Counting.runs == before  # what its build has seen counts


def test_nothing_is_left_behind_by_a_trace_that_fails(model):
    before = vars(adapter.Layer)["__call__"]
    with pytest.raises(ZeroDivisionError), announced(model, lambda stage: 1 / 0):
        model(np.ones((2, 4), np.float32))
    assert vars(adapter.Layer)["__call__"] is before
    if model.name == "f":
        assert model(np.ones((2, 4), np.float32)).shape == (2, 4)
    else:
        with pytest.raises(RuntimeError, match="outside the scope"):
            model(np.ones((2, 4), np.float32))
