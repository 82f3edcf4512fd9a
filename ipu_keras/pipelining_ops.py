"""Pipelines of functions, for training loops of one's own (api.md 7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import func_graph_from_py_func

from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend import collectives, tfapi
from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import stage_token
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from ipu_keras.keras import adapter
from ipu_keras.keras.steps import replica_count
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError
from ipu_keras.pipelining import PipelineSchedule, PipelineStageOptions, RecomputationMode
from ipu_keras.pipelining.optimizer_output import OptimizerFunctionOutput

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]

_INT32 = 2**31 - 1


@tfapi.without_autograph
def pipeline(
    computational_stages: Sequence[Callable[..., Any]],
    gradient_accumulation_count: int | None = None,
    gradient_accumulation_dtype: Any = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Sequence[Any] | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    weight_update_poplar_options: PipelineStageOptions | None = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
    gradient_accumulation_for_captured_grads: bool = True,
) -> Any:
    """Makes a pipeline of the function that `strategy.run` runs: it is then the whole program.

    Args:
        computational_stages: two or more functions; each gets what the one before gives, the first `inputs` and an
            element of the infeed queue.
        gradient_accumulation_count: micro-batches of a weight update, or without an optimizer of a pass.
        gradient_accumulation_dtype: of the sums of gradients: a dtype, or a function of the variable.
        repeat_count: weight updates of an execution.
        batch_serialization_iterations: only 1.
        inputs: arguments of the first stage that are the same for all micro-batches.
        infeed_queue: its elements are the micro-batches.
        outfeed_queue: takes the last stage's outputs, or the loss.
        optimizer_function: gets the last stage's outputs and returns an OptimizerFunctionOutput: this trains.
        device_mapping: the IPU of each stage; without it, stage k runs on IPU k.
        pipeline_schedule: Grouped if none is given.
        recomputation_mode: accepted; changes no result.
        forward_propagation_stages_poplar_options: one PipelineStageOptions a stage; accepted.
        backward_propagation_stages_poplar_options: one PipelineStageOptions a stage; accepted.
        weight_update_poplar_options: a PipelineStageOptions; accepted.
        offload_weight_update_variables: accepted; changes no result.
        replicated_optimizer_state_sharding: accepted; changes no result.
        offload_activations: only None or False.
        offload_gradient_accumulation_buffers: only None or False.
        replicated_weight_sharding: only None or False.
        offload_weights: only None or False.
        continuous_weight_updates: only False.
        outfeed_loss: put the loss into the queue instead of the outputs.
        accumulate_outfeed: put the outputs' sums over the micro-batches into the queue, once a weight update.
        accumulate_outfeed_dtype: of these sums: a dtype, or a function of the output.
        outfeed_mask: True for outputs that are not put into the queue.
        reduction_method: how gradients are summed.
        name: of the name scope.
        gradient_accumulation_for_captured_grads: accepted.

    Returns:
        an operation.

    Raises:
        ValueError, TypeError, NotImplementedError: arguments that cannot be, see api.md 7; by name.

    Example:
        >>> @tf.function
        ... def step():
        ...     pipelining_ops.pipeline([first, second], 8, infeed_queue=data, outfeed_queue=losses,
        ...                             optimizer_function=optimize)
        >>> strategy.run(step)
    """
    del recomputation_mode, gradient_accumulation_for_captured_grads, offload_weight_update_variables
    del replicated_optimizer_state_sharding
    stages = [tfapi.with_autograph(stage) for stage in _stages(computational_stages)]
    count = _count(gradient_accumulation_count)
    devices = _mapping(device_mapping, len(stages))
    _member("pipeline_schedule", pipeline_schedule, PipelineSchedule)
    for what, given in (
        ("forward_propagation_stages_poplar_options", forward_propagation_stages_poplar_options),
        ("backward_propagation_stages_poplar_options", backward_propagation_stages_poplar_options),
    ):
        _stage_options(what, given, len(stages))
    _member("weight_update_poplar_options", weight_update_poplar_options, PipelineStageOptions)
    _refuse(
        batch_serialization_iterations=batch_serialization_iterations != 1,
        continuous_weight_updates=continuous_weight_updates,
        offload_activations=offload_activations,
        offload_gradient_accumulation_buffers=offload_gradient_accumulation_buffers,
        replicated_weight_sharding=replicated_weight_sharding,
        offload_weights=offload_weights,
    )
    _queues(infeed_queue, outfeed_queue, optimizer_function, outfeed_loss, accumulate_outfeed, outfeed_mask)
    method = GradientAccumulationReductionMethod.parse(reduction_method)
    tracer = adapter.current_tracer()
    if tracer is None:
        raise ArgumentError("pipelining_ops.pipeline is for a device program: call the function through strategy.run.")
    replicas = replica_count("the pipeline", tracer.ipus, stages=len(stages), device_mapping=devices or None)
    spec = Parallel(
        replicas=replicas,
        micro_batches=count,
        stages=len(stages),
        device_mapping=devices,
        schedule=int(pipeline_schedule or PipelineSchedule.Grouped),
        training=optimizer_function is not None,
    )
    with tf.name_scope(name or "pipeline"):
        collectives.announce(spec, int(repeat_count))
        tape = tf.GradientTape() if optimizer_function is not None else None
        if tape is not None:
            tape.__enter__()
        outputs = _forward(stages, inputs, infeed_queue)
        chosen = outputs
        if optimizer_function is not None:
            assert tape is not None
            with tf.name_scope(stage_token(len(stages) - 1)):
                made = tfapi.with_autograph(optimizer_function)(*outputs)
                if not isinstance(made, OptimizerFunctionOutput):
                    raise ArgumentTypeError("optimizer_function must return an OptimizerFunctionOutput.")
                loss = made.loss
            tape.__exit__(None, None, None)
            _update(made, tape, Gradients(True, method.name, gradient_accumulation_dtype, replicas))
            chosen = [loss] if outfeed_loss else outputs
        if outfeed_mask is not None:
            if len(outfeed_mask) != len(chosen):
                raise ArgumentError(f"outfeed_mask has {len(outfeed_mask)} entries, there are {len(chosen)} outputs.")
            chosen = [value for value, masked in zip(chosen, outfeed_mask, strict=True) if not masked]
        return _give(chosen, outfeed_queue, accumulate_outfeed, accumulate_outfeed_dtype, outfeed_loss)


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Marks tensors that are kept where activations are recomputed; gives them back.

    Args:
        tensors: a structure.
        name: accepted.
    """
    del name
    return tensors


# ---- the parts of a pipeline ----


def _forward(stages: list[Any], inputs: Sequence[Any] | None, queue: IPUInfeedQueue | None) -> list[Any]:
    """All stages, one behind the other; gives the last one's outputs."""
    with tf.name_scope(stage_token(0)):
        values = [tf.convert_to_tensor(value) for value in (inputs or [])]
        element = queue._dequeue() if queue is not None else ()
    named = element if isinstance(element, dict) else {}
    values += () if named else (element if isinstance(element, tuple) else (element,))
    for number, stage in enumerate(stages):
        _check_captures(stage, values, named)
        with tf.name_scope(stage_token(number)):
            given = stage(*values, **named)
            named = {}
            flat = [given] if tf.is_tensor(given) else list(given or ())
            values = [tf.convert_to_tensor(value) for value in flat]
    return values


def _check_captures(stage: Callable[..., Any], values: list[Any], named: dict[str, Any]) -> None:
    """A stage works on another micro-batch than the code around it: it may only use what it is handed, and "
    "variables."""
    spec = lambda value: tf.TensorSpec(value.shape, value.dtype)  # noqa: E731
    graph = func_graph_from_py_func(
        getattr(stage, "__name__", "stage"), _quiet(stage), [spec(v) for v in values],
        {key: spec(value) for key, value in named.items()},
    )  # fmt: skip
    outside = [t for t, _ in graph.captures if t.dtype != tf.resource and not hasattr(t, "numpy")]
    if outside:
        raise ArgumentError(
            f"Trying to capture the tensor {outside[0].name} of shape {outside[0].shape} in pipeline stage "
            f"{getattr(stage, '__name__', stage)!r}: a stage uses its arguments and variables only. Hand it on "
            f"from stage "
            "to stage."
        )


def _quiet(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A stage that is only looked at: its outputs do not matter."""

    def looked_at(*args: Any, **kwargs: Any) -> Any:
        return stage(*args, **kwargs)

    looked_at.__name__ = getattr(stage, "__name__", "stage")
    return looked_at


def _update(made: OptimizerFunctionOutput, tape: Any, how: Gradients) -> None:
    """Gradients are summed over the micro-batches and the replicas, then applied once."""
    tracer = adapter.current_tracer()
    assert tracer is not None
    tape = made.tape or tape
    variables = [adapter.tensorflow_variable(v) for v in made.variables or tape.watched_variables()]
    grads = tape.gradient(made.loss, variables)
    with tracer.part("optimizer"):
        summed = [
            (dataclasses.replace(how, dtype=how.dtype(v) if callable(how.dtype) else how.dtype).reduce(g), v)
            for g, v in zip(grads, variables, strict=True)
            if g is not None
        ]
        args, kwargs = made.apply_gradients_args or (), made.apply_gradients_kwargs or {}
        with adapter.gradients_are_ready():
            made.opt.apply_gradients(adapter.own_variables(made.opt, summed), *args, **kwargs)


def _give(values: list[Any], queue: IPUOutfeedQueue | None, accumulate: bool, dtype: Any, is_loss: bool) -> Any:
    if not values:
        return tf.no_op()
    if queue is None:
        raise ArgumentError("The pipeline has outputs, and no outfeed_queue has been provided.")
    if accumulate:
        kind = lambda v: dtype(v) if callable(dtype) else dtype  # noqa: E731
        values = [collectives.accumulate(value, "SUM", kind(value)) for value in values]
    return queue.enqueue(values[0] if is_loss and len(values) == 1 else tuple(values))


# ---- rules ----


def _stages(stages: Any) -> list[Callable[..., Any]]:
    if not isinstance(stages, (list, tuple)):
        raise ArgumentTypeError("computational_stages must be a list or tuple of functions.")
    if len(stages) < 2:
        raise ArgumentError(f"A pipeline has two or more computational_stages; there are {len(stages)}.")
    for stage in stages:
        if isinstance(stage, (list, tuple)):
            raise UnsupportedError(
                "A pipeline stage of several functions that run at once is not there; write one function that "
                "calls them.",
                ["a list of functions as a pipeline stage"],
            )
        if not callable(stage):
            raise ArgumentTypeError(f"computational_stages holds {stage!r}, which is no function.")
    return list(stages)


def _count(count: Any) -> int:
    if count is None or isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= _INT32:
        raise ArgumentError(
            f"gradient_accumulation_count is {count!r}; it must be a number of micro-batches, from 1 to {_INT32}."
        )
    return count


def _mapping(mapping: Any, stages: int) -> tuple[int, ...]:
    if mapping is None:
        return ()
    if not isinstance(mapping, (list, tuple)):
        raise ArgumentTypeError("device_mapping must be a list or tuple of numbers.")
    if len(mapping) != stages:
        raise ArgumentError(f"Each stage must be mapped to an IPU: {len(mapping)} entries for {stages} stages.")
    return tuple(int(device) for device in mapping)


def _member(what: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise ArgumentTypeError(f"{what} is {value!r}; it must be a {kind.__name__}.")


def _stage_options(what: str, given: Any, stages: int) -> None:
    if given is None:
        return
    if not isinstance(given, (list, tuple)) or not all(isinstance(o, PipelineStageOptions) for o in given):
        raise ArgumentTypeError(f"{what} must be a list of PipelineStageOptions.")
    if len(given) != stages:
        raise ArgumentError(f"{what} has {len(given)} entries for {stages} stages.")


def _refuse(**given: Any) -> None:
    asked = [name for name, value in given.items() if value]
    if asked:
        raise NotImplementedError(f"pipelining_ops.pipeline does not have {', '.join(asked)}; leave it at its default.")


def _queues(infeed: Any, outfeed: Any, optimizer: Any, outfeed_loss: bool, accumulate: bool, mask: Any) -> None:
    _member("infeed_queue", infeed, IPUInfeedQueue)
    _member("outfeed_queue", outfeed, IPUOutfeedQueue)
    if outfeed_loss and optimizer is None:
        raise ArgumentError("outfeed_loss needs an optimizer_function, which gives the loss.")
    if mask is not None and (outfeed_loss or optimizer is None):
        raise ArgumentError("outfeed_mask needs an optimizer_function, and excludes outfeed_loss.")
    if accumulate and (outfeed is None or outfeed._mode is not IPUOutfeedMode.ALL):
        raise ArgumentError("accumulate_outfeed needs an outfeed_queue in IPUOutfeedMode.ALL.")
