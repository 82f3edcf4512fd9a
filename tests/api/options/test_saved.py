"""Options and stages in files and clones."""

import copy
import re

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.model import IPUModel
from ipu_keras.keras.options import ModelOptions, options_of
from ipu_keras.keras.pipeline import PipelineStage, stage_of, stages
from ipu_keras.keras.saved import restore, state
from ipu_keras.pipelining import PipelineSchedule

Dense = keras.layers.Dense


@keras.saving.register_keras_serializable("saved_options")
class Net(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.a, self.b = Dense(4, name="a"), Dense(4, name="b")

    def call(self, x):
        return self.a(self.b(self.a(x)))


def sequential():
    inner = keras.Sequential([keras.Input((4,)), Dense(4, name="c"), Dense(4, name="d")], name="inner")
    return keras.Sequential([keras.Input((4,)), Dense(4, name="a"), inner], name="s"), [0, 0, 1]


def functional():
    """A shared layer whose nodes are numbered anew in a file, as the first is of another model."""
    inputs = keras.Input((4,))
    shared = Dense(4, name="shared")
    keras.Model(inputs, shared(inputs))
    x = Dense(4, name="b")(shared(inputs))
    return keras.Model(inputs, shared(x), name="f"), [0, 1, 1]


def subclassed():
    model = Net(name="n")
    model.build((None, 4))
    return model, [0, 1, 1]


MAKERS = {"sequential": sequential, "functional": functional, "subclassed": subclassed}


def make(maker, compiled=True):
    with IPUStrategy().scope():
        model, numbers = maker()
        found = model.get_pipeline_stage_assignment()
        leaves = [a for m in found for a in (m.pipeline_stage_assignments if m.is_nested_model else [m])]
        for made, number in zip(leaves, numbers, strict=True):
            made.pipeline_stage = number
        model.set_pipeline_stage_assignment(found)
        model.set_gradient_accumulation_options(3, dtype="float16")
        model.set_pipelining_options(8, [0, 0], True, "running_mean", pipeline_schedule=PipelineSchedule.Interleaved)
        model.set_infeed_queue_options(prefetch_depth=7)
        model.set_outfeed_queue_options(buffer_depth=2)
        model.set_replication_options("MEAN")
        model.set_asynchronous_callbacks(True)
        if compiled:
            model.compile("sgd", "mse", steps_per_execution=8)
    return model


def without_numbers(model):
    """A loaded model's nodes are numbered anew."""
    return [re.sub(r"node index: \d", "", str(a)) for a in model.get_pipeline_stage_assignment()]


def assert_restored(model, original):
    assert isinstance(model, IPUModel) and model is not original
    found, kept = options_of(model), options_of(original)
    for name in (
        "accumulation_steps",
        "pipeline_accumulation_steps",
        "reduction_method",
        "device_mapping",
        "accumulate_outfeed",
        "infeed_kwargs",
        "outfeed_kwargs",
        "metric_reduction",
        "asynchronous_callbacks",
    ):
        assert getattr(found, name) == getattr(kept, name) != getattr(ModelOptions(), name), name
    # these are said not to be saved
    assert found.accumulation_kwargs == {} and found.schedule is PipelineSchedule.Grouped
    assert without_numbers(model) == without_numbers(original)
    assert stages(model) == 2
    own = {id(layer) for layer in model._flatten_layers()}
    assert all(
        id(a.nested_model if a.is_nested_model else a.layer) in own for a in model.get_pipeline_stage_assignment()
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_files(maker, compiled, tmp_path):
    model = make(maker, compiled)
    path = tmp_path / "model.keras"
    model.save(path)
    with IPUStrategy().scope():
        back = keras.saving.load_model(path)
    assert_restored(back, model)
    plain = keras.saving.load_model(path)
    assert type(plain) is model._ipu_base and not hasattr(plain, "set_pipelining_options")
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(plain(x), back(x))
    again = tmp_path / "again.keras"
    plain.save(again)  # a plain model's file is a plain file
    with IPUStrategy().scope():
        assert options_of(keras.saving.load_model(again)) == ModelOptions()


@pytest.mark.parametrize("maker", [sequential, functional], ids=["sequential", "functional"])
def test_clones(maker):
    model = make(maker)
    with IPUStrategy().scope():
        assert_restored(keras.models.clone_model(model), model)
    plain = keras.models.clone_model(model)
    assert type(plain) is model._ipu_base and plain.compiled
    with IPUStrategy().scope():
        assert_restored(copy.deepcopy(model), model)


def test_stages_of_scopes_are_saved_and_a_reset_is_too(tmp_path):
    with IPUStrategy().scope():
        inputs = keras.Input((4,))
        with PipelineStage(0):
            x = Dense(4, name="a")(inputs)
        with PipelineStage(1):
            model = keras.Model(inputs, Dense(4, name="b")(x), name="m")
        model.save(tmp_path / "stages.keras")
        back = keras.saving.load_model(tmp_path / "stages.keras")
        assert stage_of(back) == {"m/a": 0, "m/b": 1}
        model.reset_pipeline_stage_assignment()
        model.save(tmp_path / "reset.keras")
        assert stages(keras.saving.load_model(tmp_path / "reset.keras")) == 0


def test_a_file_of_other_layers(tmp_path):
    model = make(functional)
    model.save(tmp_path / "m.keras")
    with IPUStrategy().scope():
        back = keras.saving.load_model(tmp_path / "m.keras")
        saved = state(model)
        saved["stages"][0]["layer"] = "renamed"
        restore(back, saved)
        with pytest.raises(RuntimeError, match=r"no longer valid.*renamed"):
            stages(back)
        back.reset_pipeline_stage_assignment()
        assert stages(back) == 0
