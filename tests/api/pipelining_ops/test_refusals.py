"""What pipelines of functions refuse, and how they say it."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import loops
from ipu_keras import pipelining_ops as po
from ipu_keras.eager.backprop import GradientCaptureContext
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from ipu_keras.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, PipelineStageOptions, RecomputationMode
from tests.api.pipelining_ops.nets import RATE, START, X, Y, data, run, same, v1

one = lambda x, y: (x, y)  # noqa: E731
descent = v1.GradientDescentOptimizer(RATE)
optimize = lambda x, y: OptimizerFunctionOutput(descent, tf.reduce_sum(x))  # noqa: E731
stages = [one, one]
queued = lambda **more: {"infeed_queue": data(), "outfeed_queue": IPUOutfeedQueue(), **more}  # noqa: E731
last_queue = lambda: IPUOutfeedQueue(IPUOutfeedMode.LAST)  # noqa: E731
train = lambda **more: queued(optimizer_function=optimize, **more)  # noqa: E731
BAD = {
    "no list": (TypeError, "list or tuple of functions", lambda: po.pipeline(one, 4, **queued())),
    "one stage": (ValueError, "two or more", lambda: po.pipeline([one], 4, **queued())),
    "no function": (TypeError, "which is no function", lambda: po.pipeline([one, 3], 4, **queued())),
    "stages at once": (NotImplementedError, "several functions", lambda: po.pipeline([one, [one]], 4, **queued())),
    "no count": (ValueError, "gradient_accumulation_count", lambda: po.pipeline(stages, **queued())),
    "negative": (ValueError, "gradient_accumulation_count is -4", lambda: po.pipeline(stages, -4, **queued())),
    "too many": (ValueError, "gradient_accumulation_count", lambda: po.pipeline(stages, 2**31, **queued())),
    "uneven": (tf.errors.FailedPreconditionError, "multiple of", lambda: po.pipeline(stages, 3, **queued())),
    "repeat": (ValueError, "repeat_count", lambda: po.pipeline(stages, 4, 0, repeat_count=0, **queued())),
    "infeed": (TypeError, "infeed_queue", lambda: po.pipeline(stages, 4, infeed_queue=X)),
    "outfeed": (TypeError, "outfeed_queue", lambda: po.pipeline(stages, 4, outfeed_queue=data())),
    "no outfeed": (
        ValueError, "no outfeed_queue has been provided", lambda: po.pipeline(stages, 4, infeed_queue=data()),
    ),
    "mapping": (
        ValueError, "Each stage must be mapped", lambda: po.pipeline(stages, 4, device_mapping=[0], **queued()),
    ),
    "mapping type": (TypeError, "device_mapping", lambda: po.pipeline(stages, 4, device_mapping=3, **queued())),
    "mapping value": (ValueError, "device_mapping", lambda: po.pipeline(stages, 4, device_mapping=[0, -1], **queued())),
    "chips": (ValueError, "requires a multiple of", lambda: po.pipeline([one] * 3, 6, **queued())),
    "schedule": (TypeError, "PipelineSchedule", lambda: po.pipeline(stages, 4, pipeline_schedule=0, **queued())),
    "mode": (TypeError, "RecomputationMode", lambda: po.pipeline(stages, 4, recomputation_mode=1, **queued())),
    "mode of another": (
        tf.errors.UnimplementedError, "Interleaved does not recompute", lambda: po.pipeline(
            stages, 4, pipeline_schedule=PipelineSchedule.Interleaved,
            recomputation_mode=RecomputationMode.RecomputeAndBackpropagateInterleaved, **queued(),
        ),
    ),
    "options": (
        TypeError, "forward_.*PipelineStageOptions",
        lambda: po.pipeline(stages, 4, forward_propagation_stages_poplar_options=[{}, {}], **queued()),
    ),
    "number of options": (
        ValueError, "backward_.*1 entries for 2", lambda: po.pipeline(
            stages, 4, backward_propagation_stages_poplar_options=[PipelineStageOptions()], **queued(),
        ),
    ),
    "loss": (ValueError, "outfeed_loss needs", lambda: po.pipeline(stages, 4, outfeed_loss=True, **queued())),
    "mask": (ValueError, "outfeed_mask needs", lambda: po.pipeline(stages, 4, outfeed_mask=[True], **queued())),
    "mask and loss": (
        ValueError, "excludes outfeed_loss",
        lambda: po.pipeline(stages, 4, outfeed_loss=True, outfeed_mask=[True], **train()),
    ),
    "mask length": (ValueError, "has 1 entries", lambda: po.pipeline(stages, 4, outfeed_mask=[True], **train())),
    "sums of the last": (
        ValueError, r"IPUOutfeedMode\.ALL",
        lambda: po.pipeline(stages, 4, accumulate_outfeed=True, **queued(outfeed_queue=last_queue())),
    ),
    "method": (ValueError, "Cannot parse", lambda: po.pipeline(stages, 4, reduction_method="max", **queued())),
    "output": (
        TypeError, "must be an OptimizerFunctionOutput",
        lambda: po.pipeline(stages, 4, **queued(optimizer_function=lambda x, y: x)),
    ),
    "arguments of a stage": (
        TypeError, "stage 1.*missing a required argument: 'z'",
        lambda: po.pipeline([one, lambda x, y, z: x], 4, **queued()),
    ),
    "arguments of the optimizer": (
        TypeError, "optimizer_function gets 2",
        lambda: po.pipeline(stages, 4, **queued(optimizer_function=lambda x: x)),
    ),
    "a dictionary": (
        TypeError, "returns a dictionary", lambda: po.pipeline([lambda x, y: {"x": x}, one], 4, **queued()),
    ),
    "no variable": (ValueError, "depends on no variable", lambda: po.pipeline(stages, 4, outfeed_loss=True, **train())),
    **{
        name: (NotImplementedError, name, lambda name=name, v=v: po.pipeline(stages, 4, **{name: v}, **queued()))
        for name, v in {
            "batch_serialization_iterations": 2, "continuous_weight_updates": True,
            "offload_gradient_accumulation_buffers": True, "replicated_weight_sharding": True, "offload_weights": True,
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    kind, text, call = BAD[case]
    with pytest.raises(kind, match=text):
        run(lambda: call() and None)


def test_tensors_from_outside_a_stage_are_refused():
    infeed, queue = data(), IPUOutfeedQueue()
    variable, constant = tf.Variable(2.0), tf.constant(3.0)

    def with_capture(make):
        outside = make()
        nested = lambda x, y: tf.cond(tf.reduce_sum(y) > 0, lambda: x * outside, lambda: x)  # noqa: E731
        first = lambda x, y: (x * variable * constant, y)  # noqa: E731
        po.pipeline([first, nested], 4, infeed_queue=infeed, outfeed_queue=queue)

    with pytest.raises(ValueError, match=r"Trying to capture the tensor .*stage 1"):
        run(lambda: with_capture(lambda: variable * 2.0))
    kept = []

    def leaking(x, y):
        kept.append(x * 2.0)
        return x, y

    def program():
        po.pipeline([leaking, lambda x, y: x + kept[-1]], 4, infeed_queue=data(), outfeed_queue=queue)

    with pytest.raises(ValueError, match="Trying to capture the tensor"):
        run(program)
    with pytest.raises(ValueError, match="Trying to capture the tensor"):
        run(lambda argument=constant: with_capture(lambda: argument))  # `inputs` are for that
    for steady in (constant, variable):  # an eager tensor is a constant of the program
        infeed, queue = data(), IPUOutfeedQueue()
        run(functools.partial(with_capture, lambda v=steady: v))
        x, y = X[:8].reshape(4, 2, 3), Y[:8].reshape(4, 2, 1)
        scale = np.where(y.sum((1, 2), keepdims=True) > 0, float(steady), 1)
        same(queue.dequeue(), [x * 6 * scale])


def test_a_program_is_one_pipeline():
    forward = lambda: po.pipeline(stages, 4, **queued())  # noqa: E731
    with pytest.raises(NotImplementedError, match="one pipeline; this one has 2"):
        kept = [queued(), queued()]
        run(lambda: [po.pipeline(stages, 4, **k) for k in kept] and None)
    for program in (
        lambda: loops.repeat(2, lambda: forward()),
        lambda: tf.cond(START[0][0, 0] * tf.Variable(1.0) > 0, lambda: [forward(), 1][1], lambda: 0) and None,
    ):
        with pytest.raises(ValueError, match="in a loop or a branch"):
            run(program)


def test_only_on_the_device():
    with pytest.raises(ValueError, match=r"strategy\.run"):
        po.pipeline(stages, 4, **queued())


def test_bad_optimizer_outputs():
    loss, adam, tape = tf.constant(1.0), keras.optimizers.Adam(), tf.GradientTape()
    gradient_descent = v1.GradientDescentOptimizer(0.1)
    for kind, text, call in (
        (TypeError, "must be a Keras optimizer", lambda: OptimizerFunctionOutput("sgd", loss)),
        (TypeError, "must be a tensor", lambda: OptimizerFunctionOutput(adam, 1.0)),
        (ValueError, "for Keras optimizers", lambda: OptimizerFunctionOutput(gradient_descent, loss, variables=[])),
        (ValueError, "for Keras optimizers", lambda: OptimizerFunctionOutput(gradient_descent, loss, tape=tape)),
        (ValueError, "exclude each other", lambda: OptimizerFunctionOutput(adam, loss, variables=[], tape=tape)),
        (ValueError, "not for Keras", lambda: OptimizerFunctionOutput(adam, loss, compute_gradients_args=([],))),
        (ValueError, "not for Keras", lambda: OptimizerFunctionOutput(adam, loss, compute_gradients_kwargs={"a": 1})),
        (
            ValueError,
            "exclude each other",
            lambda: OptimizerFunctionOutput(adam, loss, tape=tape, gradient_capture_context=GradientCaptureContext()),
        ),
        (TypeError, "an IPUOutfeedQueue", lambda: OptimizerFunctionOutput(adam, loss, captured_gradient_outfeed=3)),
        (
            ValueError,
            "needs a gradient_capture_context",
            lambda: OptimizerFunctionOutput(adam, loss, captured_gradient_outfeed=IPUOutfeedQueue()),
        ),
    ):
        with pytest.raises(kind, match=text):
            call()
    for name in ("convolution_options", "matmul_options", "slice_options"):
        with pytest.raises(TypeError, match=name):
            PipelineStageOptions(**{name: [1]})
