"""Assignment objects and lists: what is given out, what is taken, what is refused, what is printed."""

import keras
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras import pipeline
from ipu_keras.keras.options import version
from ipu_keras.keras.pipeline import PipelineStage, stage_of, stages
from ipu_keras.keras.pipeline.rules import check_call

Dense = keras.layers.Dense


@pytest.fixture(autouse=True)
def scope():
    with IPUStrategy().scope():
        yield


def sequential(nested=False):
    layers = [keras.Input((4,)), Dense(4, name="a"), Dense(4, name="b")]
    if nested:
        layers.append(keras.Sequential([keras.Input((4,)), Dense(4, name="c"), Dense(4, name="d")], name="inner"))
    return keras.Sequential(layers, name="s")


def functional():
    inputs = keras.Input((4,), name="i")
    a, b = Dense(4, name="a")(inputs), Dense(4, name="b")(inputs)
    return keras.Model(inputs, Dense(1, name="c")(keras.layers.Add(name="sum")([a, b])), name="f")


class Net(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.a, self.b, self.inner = Dense(4, name="a"), Dense(4, name="b"), sequential()
        self.twice = True

    def call(self, x):
        x = self.b(keras.ops.relu(self.a(x)))
        return self.inner(self.a(x) if self.twice else x)


def subclassed():
    model = Net(name="n")
    model.build(keras.Input((4,)))
    return model


MAKERS = {"sequential": sequential, "functional": functional, "subclassed": subclassed}


def assign(model, numbers):
    found = model.get_pipeline_stage_assignment()
    for made, number in zip(list(pipeline.assignment.leaves(found)), numbers, strict=True):
        made.pipeline_stage = number
    model.set_pipeline_stage_assignment(found)
    return found


def test_classes_and_attributes():
    one, two = sequential(nested=True).get_pipeline_stage_assignment()[1:]
    assert type(one) is pipeline.SequentialLayerPipelineStageAssignment and not one.is_nested_model
    assert (one.layer.name, one.pipeline_stage) == ("b", None)
    assert type(two) is pipeline.SequentialNestedModelPipelineStageAssignment and two.is_nested_model
    assert two.nested_model.name == "inner" and [a.layer.name for a in two.pipeline_stage_assignments] == ["c", "d"]
    two.pipeline_stage_assignments.clear()  # a copy
    assert len(two.pipeline_stage_assignments) == 2
    *_, total, last = functional().get_pipeline_stage_assignment()
    assert type(total) is pipeline.FunctionalLayerPipelineStageAssignment
    assert [inbound.name for inbound in total.inbound_layers] == ["a", "b"] and total.node_index == 0
    last.pipeline_stage = 3
    assert str(last) == "Layer: c (Dense) node index: 0 pipeline stage: 3"
    a, b, again, inner = subclassed().get_pipeline_stage_assignment()
    assert type(a) is pipeline.ModelLayerPipelineStageAssignment and a.layer is again.layer
    assert (a.node_index, again.node_index) == (0, 1) and [i.name for i in b.inbound_layers] == ["a"]
    assert type(inner) is pipeline.NestedModelPipelineStageAssignment and inner.inbound_layers == [a.layer]
    made = pipeline.FunctionalLayerPipelineStageAssignment(total.layer, 0, 2)
    assert [inbound.name for inbound in made.inbound_layers] == ["a", "b"] and made.pipeline_stage == 2


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_get_set_reset(maker):
    model = maker()
    fresh = model.get_pipeline_stage_assignment()
    assert fresh is not model.get_pipeline_stage_assignment()
    assert all(a.pipeline_stage is None for a in pipeline.assignment.leaves(fresh))
    before = version(model)
    calls = len(list(pipeline.assignment.leaves(fresh)))
    kept = assign(model, [0] * (calls - 1) + [1])
    assert version(model) > before and stages(model) == 2
    found = model.get_pipeline_stage_assignment()
    assert found == kept and found is not kept  # a shallow copy: the same objects
    before = version(model)
    model.reset_pipeline_stage_assignment()
    assert version(model) > before and stages(model) == 0
    assert all(a.pipeline_stage is None for a in pipeline.assignment.leaves(model.get_pipeline_stage_assignment()))


def test_reset_takes_stages_of_scopes_away():
    with PipelineStage(0):
        layer = Dense(4)
    model = keras.Sequential([keras.Input((4,)), layer])
    assert stages(model) == 1
    model.reset_pipeline_stage_assignment()
    assert stages(model) == 0 and stage_of(model) == {}


def test_integers_for_a_sequential_model_are_replaced_in_the_list():
    model = sequential(nested=True)
    given = [0, 0, 1]
    model.set_pipeline_stage_assignment(given)
    assert [a.is_nested_model for a in given] == [False, False, True]
    assert stage_of(model) == {"s/a": 0, "s/b": 0, "s/inner/c": 1, "s/inner/d": 1}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_lists_that_are_refused(maker):
    model = maker()
    good = model.get_pipeline_stage_assignment()
    for a in pipeline.assignment.leaves(good):
        a.pipeline_stage = 0
    foreign = {
        "sequential": pipeline.ModelLayerPipelineStageAssignment(good[0].layer, 0, 0),
        "functional": pipeline.SequentialLayerPipelineStageAssignment(good[0].layer, 0),
        "subclassed": pipeline.NestedModelPipelineStageAssignment(good[0].layer, 0, []),
    }[next(k for k, v in MAKERS.items() if v is maker)]
    for given, message in [
        (tuple(good), "must be a list"),
        (good[:-1], f"there are {len(good) - 1} assignments, and the model has {len(good)} layer calls"),
        ([*good, good[0]], "layer calls"),
        ([foreign, *good[1:]], "it must be a"),
        (["0", *good[1:]], "it must be a"),
        ([good[1], good[0], *good[2:]], "must have the order of execution"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment(given)
    for stage, message in [(None, r"has no pipeline stage \(it is None\)"), (-1, "0 or more"), (True, "0 or more")]:
        good[0].pipeline_stage = stage
        with pytest.raises(ValueError, match=message):
            model.set_pipeline_stage_assignment(good)
    assert stages(model) == 0  # nothing of all that was kept


def test_order_of_stages():
    for numbers, message in [
        ([1, 1, 1, 1], "'a' is in pipeline stage 1; it must be in stage 0"),
        ([0, 2, 2, 2], "'b' is in pipeline stage 2 and 'a' before it in stage 0"),
        ([0, 1, 0, 1], "'c' is in pipeline stage 0 and 'b' before it in stage 1"),
        ([0, 1, 1, 3], "'d' is in pipeline stage 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            assign(sequential(nested=True), numbers)
    for numbers in ([0, 2, 1, 2], [0, 1, 0, 1]):  # a, b, sum, c
        with pytest.raises(ValueError, match=r"'sum' in pipeline stage \d reads the output of layer 'b' in the later"):
            assign(functional(), numbers)
    assign(functional(), [1, 0, 1, 2])  # branches need no order between them
    with pytest.raises(ValueError, match="'b' in pipeline stage 0 reads the output of layer 'a' in the later stage 1"):
        assign(subclassed(), [1, 0, 1, 1, 1])  # past the relu, which is no layer


def test_nested_lists_are_checked_too():
    model = sequential(nested=True)
    a, b, inner = model.get_pipeline_stage_assignment()
    short = pipeline.SequentialNestedModelPipelineStageAssignment(
        inner.nested_model, inner.pipeline_stage_assignments[:1]
    )
    with pytest.raises(ValueError, match="nested model 'inner': there are 1 assignments"):
        model.set_pipeline_stage_assignment([a, b, short])
    assert stages(inner.nested_model) == 0
    assign(model, [0, 0, 0, 1])
    assert stages(model) == 2 and stages(inner.nested_model) == 0  # the root model keeps them


def test_a_subclassed_model_that_is_not_built():
    model = Net()
    for call in (
        model.get_pipeline_stage_assignment,
        lambda: model.set_pipeline_stage_assignment([]),
        model.print_pipeline_stage_assignment_summary,
    ):
        with pytest.raises(RuntimeError, match="is not built"):
            call()


@pytest.mark.parametrize("shape", ["shape", "input", "list", "dict", "data"])
def test_ways_to_build(shape):
    class Ids(keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.head = keras.layers.Embedding(9, 3, name="table"), Dense(2, name="head")

        def call(self, x):
            ids = x if not isinstance(x, (list, dict)) else x["ids"] if isinstance(x, dict) else x[0]
            return self.head(self.table(ids))

    model = Ids()
    ids = keras.Input((5,), dtype="int32")
    if shape == "data":
        model(keras.ops.zeros((2, 5), "int32"))
    else:
        model.build({"shape": (None, 5), "input": ids, "list": [ids], "dict": {"ids": ids}}[shape])
    assert model.built and [tuple(w.shape) for w in model.weights] == [(9, 3), (3, 2), (2,)]
    assert [a.layer.name for a in model.get_pipeline_stage_assignment()] == ["table", "head"]
    assign(model, [0, 1])
    assert list(stage_of(model).values()) == [0, 1]


def test_a_subclassed_model_that_calls_other_layers_than_before():
    model = subclassed()
    assign(model, [0, 0, 0, 1, 1])
    model.twice = False
    with pytest.raises(RuntimeError, match=r"no longer valid.*a, b, a, s"):
        check_call(model, "predict")
    model.twice = True
    assert check_call(model, "predict") == 2
    assert stages(model) == 2


def test_add_and_pop_take_the_stages_away(caplog):
    model = sequential()
    model.set_pipeline_stage_assignment([0, 1])
    before = version(model)
    with caplog.at_level("WARNING", "ipu_keras"):
        model.add(Dense(1))
    assert "add() changes its layers" in caplog.text
    assert stages(model) == 0 and version(model) > before
    model.set_pipeline_stage_assignment([0, 1, 1])
    with caplog.at_level("WARNING", "ipu_keras"):
        assert model.pop().units == 1
    assert "pop() changes its layers" in caplog.text and stages(model) == 0


SEQUENTIAL = """\
Model: "s"
____________________________________________________________
Layer (type)                  Pipeline Stage
============================================================
a (Dense)                     0
____________________________________________________________
b (Dense)                     1
____________________________________________________________
inner (Sequential)
____________________________________________________________
Nested Model: "inner"
____________________________________________________________
Layer (type)                  Pipeline Stage
============================================================
c (Dense)                     1
____________________________________________________________
d (Dense)                     2
============================================================
============================================================"""


def test_summary_of_a_sequential_model(capsys):
    model = sequential(nested=True)
    assign(model, [0, 1, 1, 2])
    model.print_pipeline_stage_assignment_summary()
    assert "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) == SEQUENTIAL


def test_summary_of_a_functional_model():
    lines = []
    functional().print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert all(len(line) == 89 for line in lines[1:])
    head, total = lines[2], next(line for line in lines if line.startswith("sum"))
    assert [head.index(c) for c in ("Layer (type) (node index)", "Input Layers", "Pipeline Stage")] == [0, 35, 71]
    assert total.split() == ["sum", "(Add)", "(0)", "a", "None"]
    assert lines[lines.index(total) + 1].split() == ["b"]
    narrow = []
    functional().print_pipeline_stage_assignment_summary(line_length=40, print_fn=narrow.append)
    assert {len(line) for line in narrow[1:]} == {40}
