"""The set_..._options methods: what they keep, what they replace, what they refuse."""

import subprocess
import sys

import pytest

from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod as Method
from ipu_keras.keras.metric_reduction import ReplicatedMetricReductionMethod as Metrics
from ipu_keras.keras.options import ModelOptions, Options, options_of, version
from ipu_keras.pipelining import PipelineSchedule, PipelineStageOptions, RecomputationMode


class Model(Options):
    name = "m"


@pytest.fixture
def model():
    return Model()


PIPELINE_REJECTED = [
    "gradient_accumulation_count",
    "computational_stages",
    "repeat_count",
    "inputs",
    "infeed_queue",
    "outfeed_queue",
    "optimizer_function",
    "outfeed_loss",
    "outfeed_mask",
    "batch_serialization_iterations",
    "experimental_normalize_gradients",
]
REJECTED = [
    *(("set_pipelining_options", name) for name in PIPELINE_REJECTED),
    *(
        ("set_gradient_accumulation_options", name)
        for name in ("opt", "num_mini_batches", "experimental_normalize_gradients")
    ),
    *(("set_infeed_queue_options", name) for name in ("dataset", "infeed_spec", "element_spec", "_internal_id")),
    *(("set_outfeed_queue_options", name) for name in ("outfeed_mode", "device_ordinal")),
]


@pytest.mark.parametrize("method, name", REJECTED)
def test_arguments_that_are_set_in_another_way(model, method, name):
    with pytest.raises(ValueError, match=f"{method} of model 'm': {name} cannot be set here"):
        getattr(model, method)(**{name: 1})
    assert options_of(model) == ModelOptions() and version(model) == 0


@pytest.mark.parametrize("method", sorted({method for method, _ in REJECTED}))
def test_arguments_that_are_none(model, method):
    with pytest.raises(TypeError, match="unexpected keyword argument 'pipeline_shedule'"):
        getattr(model, method)(pipeline_shedule=1)
    if method == "set_pipelining_options":
        with pytest.raises(TypeError, match="Did you mean 'pipeline_schedule'"):
            model.set_pipelining_options(pipeline_shedule=1)


@pytest.mark.parametrize("method", ["set_gradient_accumulation_options", "set_pipelining_options"])
@pytest.mark.parametrize("steps", [0, -1, 2.0, "2", True])
def test_numbers_of_steps(model, method, steps):
    with pytest.raises(ValueError, match="positive integer"):
        getattr(model, method)(steps)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda m: m.set_pipelining_options(device_mapping=(0, 1)), ValueError, "must be a list of integers"),
        (lambda m: m.set_pipelining_options(device_mapping=[0, "1"]), ValueError, "must be a list of integers"),
        (lambda m: m.set_pipelining_options(device_mapping=[0, -1]), ValueError, "must be a list of integers"),
        (lambda m: m.set_pipelining_options(pipeline_schedule=1), TypeError, "a member of PipelineSchedule"),
        (lambda m: m.set_pipelining_options(recomputation_mode="Auto"), TypeError, "a member of RecomputationMode"),
        (
            lambda m: m.set_pipelining_options(4, gradient_accumulation_reduction_method="avg"),
            ValueError,
            "Cannot parse",
        ),
        (lambda m: m.set_gradient_accumulation_options(4, 1), ValueError, "Cannot parse"),
        (lambda m: m.set_infeed_queue_options(prefetch_depth=256), ValueError, "from 1 to 255"),
        (lambda m: m.set_infeed_queue_options(prefetch_depth=-1), ValueError, "from 1 to 255"),
        (lambda m: m.set_outfeed_queue_options(buffer_depth=0), ValueError, "1 or more"),
        (lambda m: m.set_replication_options("AVG"), ValueError, "Cannot parse"),
        (lambda m: m.set_replication_options(4), ValueError, "Cannot parse"),
        (lambda m: PipelineStageOptions(matmul_options=[1]), TypeError, "matmul_options is .* must be a dict"),
    ],
)
def test_values_that_cannot_be(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)
    assert options_of(model) == ModelOptions()


def test_each_call_sets_the_shared_method_and_replaces_the_further_arguments(model):
    model.set_pipelining_options(
        8, [0, 1], True, "running_mean", pipeline_schedule=PipelineSchedule.Interleaved, offload_activations=True
    )
    model.set_gradient_accumulation_options(4, Method.MEAN, dtype="float16")
    found = options_of(model)
    assert found.reduction_method is Method.MEAN  # of both
    assert (found.accumulation_steps, found.pipeline_accumulation_steps) == (4, 8)
    assert (found.accumulation(False), found.accumulation(True)) == (4, 8)
    assert found.schedule is PipelineSchedule.Interleaved and found.accumulation_kwargs == {"dtype": "float16"}
    model.set_pipelining_options()
    found = options_of(model)
    assert found.reduction_method is Method.SUM and found.schedule is PipelineSchedule.Grouped
    assert found.pipeline_kwargs == {"gradient_accumulation_for_captured_grads": False}
    assert (found.pipeline_accumulation_steps, found.device_mapping, found.accumulate_outfeed) == (8, (0, 1), True)
    assert found.accumulation_kwargs == {"dtype": "float16"}
    model.set_gradient_accumulation_options()
    assert options_of(model).accumulation_kwargs == {} and options_of(model).accumulation_steps == 4
    model.set_pipelining_options(accumulate_outfeed=False, gradient_accumulation_for_captured_grads=True)
    assert options_of(model).accumulate_outfeed is False
    assert options_of(model).pipeline_kwargs == {"gradient_accumulation_for_captured_grads": True}


def test_queues_metrics_and_callbacks(model):
    model.set_infeed_queue_options(prefetch_depth=5, optimise_latency=True)
    model.set_infeed_queue_options(prefetch_depth=0)  # counts as not set
    model.set_outfeed_queue_options(buffer_depth=2)
    model.set_replication_options("list")
    model.set_asynchronous_callbacks(True)
    found = options_of(model)
    assert found.infeed_kwargs == {"prefetch_depth": 0} and found.outfeed_kwargs == {"buffer_depth": 2}
    assert found.metric_reduction is Metrics.LIST and found.asynchronous_callbacks
    model.set_replication_options(Metrics.MEAN)
    assert options_of(model).metric_reduction is Metrics.MEAN
    model.set_replication_options()
    model.set_asynchronous_callbacks()
    assert options_of(model).metric_reduction is Metrics.NONE and not options_of(model).asynchronous_callbacks


def test_each_call_makes_what_is_compiled_outdated(model):
    seen = [version(model)]
    for call in (
        lambda: model.set_gradient_accumulation_options(2),
        lambda: model.set_pipelining_options(2),
        lambda: model.set_infeed_queue_options(),
        lambda: model.set_outfeed_queue_options(),
        lambda: model.set_replication_options(),
        lambda: model.set_asynchronous_callbacks(),
    ):
        call()
        seen.append(version(model))
    assert seen == list(range(7))
    assert version(Model()) == 0 and options_of(Model()) == ModelOptions()  # of this model alone


def test_numbers_of_the_enumerations():
    assert [(m.name, m.value) for m in Method] == [("SUM", 0), ("MEAN", 1), ("RUNNING_MEAN", 2)]
    assert [(m.name, m.value) for m in Metrics] == [("NONE", 1), ("LIST", 2), ("SUM", 3), ("MEAN", 4)]
    assert list(PipelineSchedule) == [0, 1, 2] and PipelineSchedule.Sequential == 2
    assert [m.name for m in PipelineSchedule] == ["Grouped", "Interleaved", "Sequential"]
    assert [m.name for m in RecomputationMode][1:] == [
        "RecomputeThenBackpropagate",
        "RecomputeAndBackpropagateInterleaved",
    ]
    assert Method.parse("Running_Mean") is Method.RUNNING_MEAN and Method.parse(Method.SUM) is Method.SUM


def test_the_words_of_pipelining_import_nothing_heavy():
    code = (
        "import sys, ipu_keras.pipelining, ipu_keras.gradient_accumulation, ipu_keras.keras.metric_reduction, "
        "ipu_keras.keras.options\n"
        "assert not {'tensorflow', 'keras', 'numpy.linalg.lapack'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
