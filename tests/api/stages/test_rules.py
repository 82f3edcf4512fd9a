"""What a call asks of a model that has stages, or accumulates."""

import keras
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.pipeline import PipelineStage
from ipu_keras.keras.pipeline.rules import check_call
from ipu_keras.pipelining import PipelineStageOptions

OPTIONS = PipelineStageOptions(matmul_options={"availableMemoryProportion": "0.2"})
CALLS = ["fit", "evaluate", "predict"]


@pytest.fixture(autouse=True)
def scope():
    with IPUStrategy().scope():
        yield


def graph(cls, pipelined=True, momentum=None):
    x = inputs = keras.Input((4,))
    layers = [keras.layers.Dense(4)]
    if momentum is not None:
        layers.append(keras.layers.BatchNormalization(momentum=momentum, name="norm"))
    for layer in [*layers, keras.layers.Dense(1)]:
        x = layer(x)
    model = cls(inputs, x, name="m")
    if pipelined:
        for made in (found := model.get_pipeline_stage_assignment()):
            made.pipeline_stage = int(made is found[-1])
        model.set_pipeline_stage_assignment(found)
    return model


def test_a_pipeline_is_not_trained_without_accumulation():
    model = graph(keras.Model)
    with pytest.raises(ValueError, match="training it needs gradient accumulation"):
        check_call(model, "fit")
    assert [check_call(model, call) for call in CALLS[1:]] == [2, 2]
    model.set_gradient_accumulation_options(4)  # of models without stages
    with pytest.raises(ValueError, match="set_pipelining_options"):
        check_call(model, "fit")
    model.set_pipelining_options(4)
    assert check_call(model, "fit") == 2
    assert check_call(graph(keras.Model, pipelined=False), "fit") == 0


def test_each_stage_is_mapped():
    model = graph(keras.Model)
    model.set_pipelining_options(4, device_mapping=[0])
    with pytest.raises(ValueError, match="Each stage must be mapped"):
        check_call(model, "predict")
    model.set_pipelining_options(4, device_mapping=[0, 0])
    assert check_call(model, "predict") == 2


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        ({"forward_propagation_stages_poplar_options": [OPTIONS]}, ValueError, "has 1 entries, .* 2 pipeline stages"),
        ({"backward_propagation_stages_poplar_options": [OPTIONS, {}]}, TypeError, "a list of PipelineStageOptions"),
        ({"forward_propagation_stages_poplar_options": OPTIONS}, TypeError, "a list of PipelineStageOptions"),
        ({"weight_update_poplar_options": {}}, TypeError, "must be PipelineStageOptions"),
        ({"continuous_weight_updates": True}, NotImplementedError, "continuous_weight_updates"),
    ],
)
def test_options_of_stages(kwargs, error, message):
    model = graph(keras.Model)
    model.set_pipelining_options(4, **kwargs)
    with pytest.raises(error, match=message):
        check_call(model, "fit")
    model.set_pipelining_options(
        forward_propagation_stages_poplar_options=[OPTIONS, OPTIONS], weight_update_poplar_options=OPTIONS
    )
    assert check_call(model, "fit") == 2


@pytest.mark.parametrize("name, call", list(zip(["train_step", "test_step", "predict_step"], CALLS)))
def test_steps_of_the_users_own(name, call):
    kind = type("Own", (keras.Model,), {name: lambda self, data: getattr(keras.Model, name)(self, data)})
    model = graph(kind)
    model.set_pipelining_options(4)
    with pytest.raises(RuntimeError, match=rf"The function `{name}` of model 'm' is overridden"):
        check_call(model, call)
    assert [check_call(model, other) for other in CALLS if other != call] == [2, 2]
    assert check_call(graph(kind, pipelined=False), call) == 0


def test_a_call_of_the_users_own():
    class Own(keras.Model):
        def call(self, x):
            return super().call(x)

    with pytest.raises(RuntimeError, match="The function `call` of model 'm' is overridden"):
        check_call(graph(Own), "predict")
    assert check_call(graph(Own, pipelined=False), "predict") == 0

    class Free(keras.Model):  # must have one
        def __init__(self):
            super().__init__()
            with PipelineStage(0):
                self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    model = Free()
    model.build((None, 2))
    assert check_call(model, "predict") == 1


def test_an_optimizer_that_minimizes_by_itself():
    class Own(keras.optimizers.SGD):
        def minimize(self, loss, variables):
            pass

    model = graph(keras.Model, pipelined=False)
    model.compile(Own(), "mse")
    assert check_call(model, "fit") == 0
    model.set_gradient_accumulation_options(2)
    with pytest.raises(ValueError, match=r"must not override OptimizerV2\.minimize"):
        check_call(model, "fit")
    assert check_call(model, "evaluate") == 0
    model = graph(keras.Model)
    model.compile(Own(), "mse")
    model.set_pipelining_options(2)
    with pytest.raises(ValueError, match=r"must not override OptimizerV2\.minimize"):
        check_call(model, "fit")


@pytest.mark.parametrize("momentum, warned", [(0.9, True), (0.0, False), (1.0, False)])
def test_batch_normalization_in_a_training_pipeline(momentum, warned, caplog):
    model = graph(keras.Model, momentum=momentum)
    model.set_pipelining_options(4)
    with caplog.at_level("WARNING", "ipu_keras"):
        check_call(model, "predict")
        assert not caplog.text
        check_call(model, "fit")
    assert ("layer norm is a BatchNormalization" in caplog.text) == warned


def test_running_eagerly():
    with pytest.raises(RuntimeError, match="run_eagerly=True"):
        graph(keras.Model).compile("sgd", "mse", run_eagerly=True)
