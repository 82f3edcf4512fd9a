"""PipelineStage: which calls get a stage, which construction gives one, and what is refused."""

import threading

import keras
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.pipeline import PipelineStage, adapter, stage_of, stages

Dense = keras.layers.Dense


@pytest.fixture
def scope():
    with IPUStrategy().scope() as strategy:
        yield strategy


def by_name(model):
    return {path.split("/")[-1]: stage for path, stage in stage_of(model).items()}


def test_outside_a_scope():
    with pytest.raises(RuntimeError, match="outside the scope of an IPUStrategy"), PipelineStage(0):
        pass


@pytest.mark.parametrize("stage", [-1, 1.0, True, None, "0"])
def test_numbers_that_are_none(scope, stage):
    with pytest.raises(ValueError, match="0 or more"):
        PipelineStage(stage)


def test_nesting(scope):
    with PipelineStage(0):
        with pytest.raises(RuntimeError, match="must not be nested"), PipelineStage(1):
            pass
        # the outer one goes on as it was
        inside = Dense(1)
    assert adapter.constructed_stage(inside) == 0 and adapter.stage_now() is None


def test_after_an_error_in_it_the_stage_is_closed(scope):
    with pytest.raises(KeyError), PipelineStage(0):
        raise KeyError
    with PipelineStage(1):
        assert adapter.stage_now() == 1


def test_calls_win_over_construction(scope):
    inputs = keras.Input((4,))
    with PipelineStage(0):
        constructed, called = Dense(4, name="constructed"), Dense(4, name="called")
    x = constructed(inputs)
    with PipelineStage(1):
        x = called(x)
    assert by_name(keras.Model(inputs, x)) == {"constructed": 0, "called": 1}
    with pytest.raises(ValueError, match=r"'constructed' in pipeline stage 0 reads .* 'called' in the later stage 1"):
        stages(keras.Model(inputs, constructed(x)))


def test_one_layer_in_two_calls(scope):
    """The stage is of the call: the same layer, constructed in one stage, called in it and in another."""
    inputs = keras.Input((4,))
    with PipelineStage(0):
        shared = Dense(4, name="shared")
    x = shared(inputs)
    with PipelineStage(1):
        x = shared(Dense(4, name="between")(x))
    model = keras.Model(inputs, x)
    found = [(a.layer.name, a.node_index, a.pipeline_stage) for a in model.get_pipeline_stage_assignment()]
    assert found == [("shared", 0, 0), ("between", 0, 1), ("shared", 1, 1)]
    assert stages(model) == 2


def test_one_call_with_a_stage_and_one_without(scope):
    inputs = keras.Input((4,))
    with PipelineStage(0):
        x = Dense(4)(inputs)
    with pytest.raises(ValueError, match=r"have none: forgotten\. All layers of a pipelined model"):
        keras.Model(inputs, Dense(4, name="forgotten")(x))
    with PipelineStage(0):
        layer = Dense(4)
    with pytest.raises(ValueError, match=r"'s'.*have none: forgotten"):
        keras.Sequential([inputs, layer, Dense(4, name="forgotten")], name="s")


def test_sequential_by_construction(scope):
    with PipelineStage(0):
        first = [Dense(4, name="a"), keras.layers.ReLU(name="r")]
    with PipelineStage(1):
        last = Dense(1, name="b")
    built = keras.Sequential([keras.Input((4,)), *first, last])
    assert by_name(built) == {"a": 0, "r": 0, "b": 1}
    with PipelineStage(0):
        first = [Dense(4, name="a"), keras.layers.ReLU(name="r")]
    with PipelineStage(1):
        last = Dense(1, name="b")
    unbuilt = keras.Sequential([*first, last])
    assert by_name(unbuilt) == {"a": 0, "r": 0, "b": 1} and not unbuilt.built


def test_sequential_rules_hold_for_construction_too(scope):
    with PipelineStage(1):
        layer = Dense(4, name="late")
    with pytest.raises(ValueError, match="'late' is in pipeline stage 1; it must be in stage 0"):
        stages(keras.Sequential([layer]))


def test_operations_between_layers_follow_what_they_read(scope):
    inputs = keras.Input((6, 4))
    with PipelineStage(0):
        a = Dense(4, name="a")(inputs)
    with PipelineStage(1):
        b = Dense(4, name="b")(a)
    x = keras.ops.mean(a + b, axis=1)  # in no stage
    with PipelineStage(2):
        x = Dense(1, name="c")(x)
    found = {a.layer.name: a.pipeline_stage for a in keras.Model(inputs, x).get_pipeline_stage_assignment()}
    assert sorted(found.values()) == [0, 1, 1, 1, 2]
    assert {found["a"], found["b"], found["c"]} == {0, 1, 2}


def test_nested_models_have_the_stage_of_their_call_or_their_own(scope):
    def block(name):
        return keras.Sequential([keras.Input((4,)), Dense(4, name="d"), Dense(4, name="e")], name=name)

    inputs = keras.Input((4,))
    with PipelineStage(0):
        own = block("own")
        inner = keras.Input((4,))
        x = Dense(4, name="f")(inner)
    with PipelineStage(1):
        across = keras.Model(inner, Dense(4, name="g")(x), name="across")
    plain = block("plain")
    x = across(own(inputs))
    with PipelineStage(2):
        x = plain(x)
    model = keras.Model(inputs, x, name="m")
    assert stage_of(model) == {
        "m/own/d": 0,
        "m/own/e": 0,
        "m/across/f": 0,
        "m/across/g": 1,
        "m/plain/d": 2,
        "m/plain/e": 2,
    }
    with PipelineStage(0):  # the call is the last word, for all in it
        whole = keras.Model(inputs, across(own(inputs)), name="w")
    assert set(stage_of(whole).values()) == {0} and len(stage_of(whole)) == 4


def test_a_gap(scope):
    inputs = keras.Input((4,))
    with PipelineStage(0):
        x = Dense(4)(inputs)
    with PipelineStage(2):
        x = Dense(4)(x)
    model = keras.Model(inputs, x)
    with pytest.raises(RuntimeError, match="no layer is in stage 1"):
        stages(model)
    with pytest.raises(RuntimeError, match="no layer is in stage 1"):
        stage_of(model)


def test_stages_in_the_call_of_a_subclassed_model(scope):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = Dense(4, name="a"), Dense(4, name="b")

        def call(self, x):
            with PipelineStage(0):
                x = keras.ops.relu(self.a(x))
            with PipelineStage(1):
                return self.a(self.b(x))

    model = Net()
    assert stages(model) == 0  # nobody knows its layers yet
    model.build((None, 4))
    assert stages(model) == 2
    found = [(a.layer.name, a.node_index, a.pipeline_stage) for a in model.get_pipeline_stage_assignment()]
    assert found == [("a", 0, 0), ("b", 0, 1), ("a", 1, 1)]
    assert [inbound.name for inbound in model.get_pipeline_stage_assignment()[1].inbound_layers] == ["a"]


def test_keras_is_as_it_was_and_other_threads_see_nothing(scope):
    members = [
        (adapter.Operation, "__init__"),
        (adapter.Node, "__init__"),
        (adapter.Operation, "__call__"),
        (adapter.Layer, "__call__"),
    ]
    before = [vars(owner)[name] for owner, name in members]
    made = []
    with PipelineStage(1):
        thread = threading.Thread(target=lambda: made.append(Dense(4)))
        thread.start()
        thread.join()
        made.append(Dense(4))
    assert [adapter.constructed_stage(layer) for layer in made] == [None, 1]
    assert [vars(owner)[name] for owner, name in members] == before


def test_without_stages_a_model_has_none(scope):
    model = keras.Sequential([keras.Input((4,)), Dense(1)])
    assert stages(model) == 0 and stage_of(model) == {}
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [None]
