"""Pipelines of functions, for training loops of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ipu_keras.compiler.parallel.spec import Parallel, offloads
from ipu_keras.config import system
from ipu_keras.frontend import collectives, tfapi
from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import stage_token
from ipu_keras.frontend.once import in_loop_or_branch
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedQueue
from ipu_keras.keras import adapter
from ipu_keras.loops import check_arguments
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError
from ipu_keras.pipelining import PipelineSchedule, PipelineStageOptions, RecomputationMode, arguments, options_of_stages
from ipu_keras.pipelining.optimizer_output import OptimizerFunctionOutput

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]

logger = logging.getLogger("ipu_keras")


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
        recomputation_mode: the schedule's own or Auto; changes no result.
        forward_propagation_stages_poplar_options: one PipelineStageOptions a stage, over those of the configuration.
        backward_propagation_stages_poplar_options: the same for the backward stages.
        weight_update_poplar_options: the same for the weight update.
        offload_weight_update_variables: whether what only the weight update uses lies in streaming memory; None is
            automatic: yes.
        replicated_optimizer_state_sharding: whether replicas share what lies there: each streams its part.
        offload_activations: whether activations that wait for their backward stage do so in streaming memory.
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
        gradient_accumulation_for_captured_grads: whether a `captured_gradient_outfeed` gets the sums of captured
            gradients once a weight update, or those of each micro-batch.

    Returns:
        an operation.

    Raises:
        TypeError: an argument of another class, or stages that do not take what the one before gives.
        ValueError: a number that cannot be, arguments that exclude each other, a stage that captures a tensor, or
            outputs without a queue.
        NotImplementedError: an argument that is not there; by name.
        UnimplementedError: the schedule has not this mode of recomputation.
        FailedPreconditionError: the schedule cannot run this number of micro-batches.

    Example:
        >>> @tf.function
        ... def step():
        ...     pipelining_ops.pipeline([first, second], 8, infeed_queue=data, outfeed_queue=losses,
        ...                             optimizer_function=optimize)
        >>> strategy.run(step)
    """
    stages = arguments.checked_stages(computational_stages)
    count = arguments.checked_count(gradient_accumulation_count)
    devices = arguments.checked_mapping(device_mapping, len(stages))
    repeats = arguments.checked_repeats(repeat_count)
    arguments.check_member("pipeline_schedule", pipeline_schedule, PipelineSchedule)
    arguments.check_member("recomputation_mode", recomputation_mode, RecomputationMode)
    schedule = PipelineSchedule.Grouped if pipeline_schedule is None else pipeline_schedule
    arguments.check_recomputation(schedule, recomputation_mode)
    for what, given in (
        ("forward_propagation_stages_poplar_options", forward_propagation_stages_poplar_options),
        ("backward_propagation_stages_poplar_options", backward_propagation_stages_poplar_options),
    ):
        arguments.check_stage_options(what, given, len(stages))
    arguments.check_member("weight_update_poplar_options", weight_update_poplar_options, PipelineStageOptions)
    stage_options, notes = options_of_stages(
        len(stages), forward_propagation_stages_poplar_options, backward_propagation_stages_poplar_options,
        weight_update_poplar_options,
    )  # fmt: skip
    for note in notes:
        logger.warning("pipelining_ops.pipeline: %s", note)
    arguments.refuse(
        batch_serialization_iterations=batch_serialization_iterations != 1,
        continuous_weight_updates=continuous_weight_updates,
        offload_gradient_accumulation_buffers=offload_gradient_accumulation_buffers,
        replicated_weight_sharding=replicated_weight_sharding,
        offload_weights=offload_weights,
    )
    if optimizer_function is not None and not callable(optimizer_function):
        raise ArgumentTypeError(f"optimizer_function is {optimizer_function!r}; it must be a function.")
    arguments.check_queues(
        infeed_queue, outfeed_queue, optimizer_function, outfeed_loss, accumulate_outfeed, outfeed_mask
    )
    method = arguments.checked_method(reduction_method)
    tracer = adapter.current_tracer()
    if tracer is None or not tf.inside_function():
        raise ArgumentError("pipelining_ops.pipeline is for a device program: call the function through strategy.run.")
    if in_loop_or_branch():
        raise ArgumentError(
            "pipelining_ops.pipeline is in a loop or a branch of the program, and it is the whole program: give "
            "repeat_count, or call strategy.run several times."
        )
    replicas = arguments.checked_replicas(tracer.ipus, len(stages), devices)
    training, configured = optimizer_function is not None, system.spreading()
    spec = Parallel(
        replicas=replicas,
        micro_batches=count,
        stages=len(stages),
        device_mapping=devices,
        schedule=schedule,
        training=training,
        recompute=training and configured.recompute,
        offload=training and offloads(offload_weight_update_variables),
        stash=training and bool(offload_activations),
        stage_options=stage_options,
        shard=training and bool(replicated_optimizer_state_sharding),
        remote_bytes=configured.remote_bytes,
    )
    mixed = arguments.interleaved(schedule, recomputation_mode)
    how = Gradients(training, method.name, None, replicas, checkpoints=spec.recompute and mixed)
    outside, tracer.gradients = tracer.gradients, how
    try:
        with tf.name_scope(name or "pipeline"):
            collectives.announce(spec, repeats)
            with tf.GradientTape() if training else contextlib.nullcontext() as tape:
                outputs = _forward(stages, inputs, infeed_queue)
                if optimizer_function is not None:
                    made, loss = _optimized(optimizer_function, outputs, len(stages) - 1)
            chosen = [made.loss] if outfeed_loss else _unmasked(outputs, outfeed_mask)
            if optimizer_function is not None:
                _update(made, loss, tape, how, gradient_accumulation_dtype, gradient_accumulation_for_captured_grads)
            return _give(chosen, outfeed_queue, accumulate_outfeed, accumulate_outfeed_dtype, outfeed_loss)
    finally:
        tracer.gradients = outside


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Marks tensors that are kept where activations are recomputed; gives them back.

    Args:
        tensors: a structure.
        name: accepted.

    Example:
        >>> def first(x):
        ...     return recomputation_checkpoint(tf.tanh(x @ w))
    """
    del name
    return adapter.checkpointed(tensors)


# ---- the parts of a pipeline ----


def _forward(stages: list[Any], inputs: Any, queue: IPUInfeedQueue | None) -> list[Any]:
    """All stages, one behind the other; gives the last one's outputs."""
    given = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if any(isinstance(value, tf.Variable) for value in given):
        warnings.warn(
            "A variable in the inputs of a pipeline is handed over by value: what a stage assigns is lost. Use it in "
            "the stage as it is.",
            stacklevel=4,
        )
    with tf.name_scope(stage_token(0)):
        values = [tf.convert_to_tensor(value) for value in given]
        more, named = queue._arguments() if queue is not None else ((), {})
    values += more
    for number, stage in enumerate(stages):
        what = f"pipeline stage {number} ({getattr(stage, '__name__', type(stage).__name__)})"
        check_arguments(stage, values, named, what, "value(s)")
        graph: Any = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.name_scope(stage_token(number)):
            found = tfapi.with_autograph(stage)(*values, **named)
            outputs = _outputs(found, what)
        _check_captures(graph, before, [*values, *named.values()], what)
        values, named = outputs, {}
    return values


def _outputs(given: Any, what: str) -> list[Any]:
    """What a stage gives, as a list of tensors; operations run anyway."""
    if isinstance(given, Mapping):
        raise ArgumentTypeError(f"{what} returns a dictionary; it must return a tensor, or a list or tuple of them.")
    flat = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    return [tf.convert_to_tensor(value) for value in flat if not isinstance(value, tf.Operation)]


def _check_captures(graph: Any, before: int, values: list[Any], what: str) -> None:
    """A stage works on another micro-batch than the code around it: it uses what it is handed, and variables.

    Args:
        graph: that the stage was traced into.
        before: how many operations it had before.
        values: that the stage is handed, in structures.
        what: the stage, for the message.
    """
    own = {id(operation) for operation in graph.get_operations()[before:]}
    allowed = {id(value) for value in tf.nest.flatten(values)}
    # What another function captures comes in by a placeholder, whichever stage uses it first.
    captured = {id(inside): outside for outside, inside in graph.captures}
    for operation in graph.get_operations()[before:]:
        for tensor in operation.inputs:
            source = captured.get(id(tensor), tensor)
            steady = source.dtype == tf.resource or hasattr(source, "numpy") or tensor.op.type == "Const"
            if steady or id(tensor) in allowed or (id(tensor.op) in own and id(tensor) not in captured):
                continue
            raise ArgumentError(
                f"Trying to capture the tensor {source.name} of shape {source.shape} in {what}: a stage uses its "
                "arguments and variables only. Hand it on from stage to stage."
            )


def _optimized(function: Callable[..., Any], outputs: list[Any], stage: int) -> tuple[OptimizerFunctionOutput, Any]:
    """What an optimizer function gives, and the loss that is differentiated."""
    check_arguments(function, outputs, {}, "optimizer_function", "output(s) of the last stage")
    with tf.name_scope(stage_token(stage)):
        made = tfapi.with_autograph(function)(*outputs)
        if not isinstance(made, OptimizerFunctionOutput):
            raise ArgumentTypeError(f"optimizer_function returns {made!r}; it must be an OptimizerFunctionOutput.")
        scales = made.tape is None and hasattr(made.opt, "scale_loss")
        return made, made.opt.scale_loss(made.loss) if scales else made.loss


def _update(
    made: OptimizerFunctionOutput, loss: Any, tape: Any, how: Gradients, dtype: Any, accumulate_captured: bool
) -> None:
    """Gradients are summed over the micro-batches and the replicas, then applied once."""
    tracer = adapter.current_tracer()
    assert tracer is not None
    is_tf1 = isinstance(made.opt, tf.compat.v1.train.Optimizer)
    if is_tf1:
        pairs = _tf1_gradients(made, tape)
    else:
        tape = made.tape or tape
        found = [adapter.tensorflow_variable(v) for v in made.variables or tape.watched_variables()]
        pairs = list(zip(tape.gradient(loss, found), found, strict=True))
    captured = made.captured
    if made.captured_gradient_outfeed is not None and captured and not accumulate_captured:
        made.captured_gradient_outfeed.enqueue(captured)
    if all(gradient is None for gradient, _ in pairs):
        raise ArgumentError("The loss of the pipeline depends on no variable: no gradient can be applied.")
    # An optimizer that takes the replicas' mean itself gets its own replica's gradients.
    to_apply = dataclasses.replace(how, replicas=1) if getattr(made.opt, "reduces_over_replicas", False) else how
    with tracer.part("optimizer"):
        summed = [
            (dataclasses.replace(to_apply, dtype=dtype(v) if _is_function(dtype) else dtype).reduce(g), v)
            for g, v in pairs
            if g is not None
        ]
        captured = {tag: tf.nest.map_structure(how.reduce, gradients) for tag, gradients in captured.items()}
        if made.captured_gradient_outfeed is not None and captured and accumulate_captured:
            made.captured_gradient_outfeed.enqueue(captured)
        args, kwargs = made.apply_gradients_args or (), dict(made.apply_gradients_kwargs or {})
        if captured and getattr(made.opt, "supports_captured_grads", False):
            kwargs.setdefault("captured_grads", captured)
        with adapter.gradients_are_ready():
            made.opt.apply_gradients(summed if is_tf1 else adapter.own_variables(made.opt, summed), *args, **kwargs)


def _tf1_gradients(made: OptimizerFunctionOutput, tape: Any) -> list[Any]:
    """Gradients and variables as the optimizer computes them; of all variables that the stages use, if it is not said
    which."""
    args, kwargs = made.compute_gradients_args or (), dict(made.compute_gradients_kwargs or {})
    if not args and not kwargs.setdefault("var_list", list(tape.watched_variables())):
        return []
    # As a tape names them, which is how the backward pass is told from the forward pass.
    with tf.name_scope("gradient_tape/"):
        return list(made.opt.compute_gradients(made.loss, *args, **kwargs))


def _is_function(dtype: Any) -> bool:
    return callable(dtype) and not isinstance(dtype, (type, tf.DType))


def _unmasked(values: list[Any], mask: Sequence[bool] | None) -> list[Any]:
    if mask is None:
        return values
    if len(mask) != len(values):
        raise ArgumentError(f"outfeed_mask has {len(mask)} entries, there are {len(values)} outputs.")
    return [value for value, masked in zip(values, mask, strict=True) if not masked]


def _give(values: list[Any], queue: IPUOutfeedQueue | None, accumulate: bool, dtype: Any, is_loss: bool) -> Any:
    if not values:
        return tf.no_op()
    if queue is None:
        raise ArgumentError(
            f"The last stage of the pipeline has {len(values)} output(s), and no outfeed_queue has been provided."
        )
    if accumulate:
        kinds = [dtype(value) if _is_function(dtype) else dtype for value in values]
        values = [collectives.accumulate(value, "SUM", kind) for value, kind in zip(values, kinds, strict=True)]
    return queue.enqueue(values[0] if is_loss and len(values) == 1 else tuple(values))
