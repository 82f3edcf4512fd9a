"""How a model's steps are spread over chips: replicas, gradient accumulation, pipeline stages, by its options."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.parallel.spec import Parallel, offloads
from ipu_keras.config import system
from ipu_keras.errors import ConfigError, DataError, UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import LayerNames, stage_token
from ipu_keras.keras import adapter
from ipu_keras.keras.data import Share
from ipu_keras.keras.metric_reduction import ReplicatedMetricReductionMethod as Reduction
from ipu_keras.keras.options import ModelOptions, options_of
from ipu_keras.keras.pipeline.query import announced, stages
from ipu_keras.keras.steps import replica_count
from ipu_keras.pipelining import options_of_stages, rows
from ipu_keras.pipelining.arguments import interleaved

__all__ = ["by_replica", "in_order", "logs_of", "share_of", "shared", "shows_own_logs", "traced_for"]

logger = logging.getLogger("ipu_keras")


def shared(model: Any, kind: str, batches: int | None) -> tuple[Parallel, int]:
    """How an execution of some batches runs.

    Args:
        model: made in the scope.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
        batches: of the execution, over all replicas; None for one iteration.

    Returns:
        the plan, and how many iterations of it the batches are.

    Raises:
        DataError: they are no whole iterations.
    """
    options, count = options_of(model), stages(model)
    train = kind == "train"
    replicas = _replicas(model, count)
    micro = options.accumulation(count > 0) if train else 1
    if count and not train:
        # All steps of an execution go through the pipeline one behind the other.
        micro = max(1, (batches or _least(model)) // replicas)
        if batches is None:
            # Nothing runs: as many as fill the pipeline do for a profile.
            full = rows(options.schedule, count, False, options.device_mapping)
            micro = -(-micro // full) * full
    rest = 0 if batches is None else batches % (micro * replicas)
    if rest:
        raise DataError(
            f"{model.name}.{kind}_step: an execution has {batches} batch(es), and one iteration takes {micro} "
            f"for each of {replicas} replica(s). Give a multiple of {micro * replicas} batches: by fit, evaluate or "
            "predict with steps_per_execution. train_on_batch and the like have one batch, which is no whole weight "
            "update with gradient accumulation, and no round of all replicas."
        )
    kwargs = _kwargs(options, count > 0)
    if train:
        _refuse_placements(model, kwargs)
    spec = Parallel(
        replicas=replicas,
        micro_batches=micro,
        stages=count,
        device_mapping=(options.device_mapping or ()) if count else (),
        schedule=options.schedule if count else Parallel.schedule,
        training=train,
        recompute=count > 0 and train and system.spreading().recompute,
        offload=train and offloads(kwargs.get("offload_weight_update_variables")),
        stash=train and count > 0 and bool(kwargs.get("offload_activations")),
        stage_options=_stage_options(model, count),
        shard=train and bool(kwargs.get("replicated_optimizer_state_sharding")),
        remote_bytes=system.spreading().remote_bytes,
    )
    return spec, 1 if batches is None else batches // (micro * replicas)


_NOT_THERE = (
    "offload_gradient_accumulation_buffers",
    "offload_weights",
    "replicated_weight_sharding",
    "continuous_weight_updates",
)


def _stage_options(model: Any, count: int) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """What the compiler is told of each stage of a model, if it has any."""
    if not count:
        return ()
    given = options_of(model).pipeline_kwargs
    parts = ("forward_propagation_stages", "backward_propagation_stages", "weight_update")
    found, notes = options_of_stages(count, *(given.get(f"{part}_poplar_options") for part in parts))
    for note in notes:
        _say_once(model, note)
    return found


def _refuse_placements(model: Any, kwargs: dict[str, Any]) -> None:
    """What a program cannot have is refused; what changes no number and is not modelled is logged, once a model."""
    asked = [name for name in _NOT_THERE if kwargs.get(name)]
    if asked:
        raise UnsupportedError(
            f"Model {model.name!r}: {', '.join(asked)} cannot be had: only the state of the weight update "
            "(offload_weight_update_variables) and activations that wait (offload_activations) can lie in streaming "
            "memory. Leave them out.",
            asked,
        )
    offload = offloads(kwargs.get("offload_weight_update_variables"))
    if kwargs.get("replicated_optimizer_state_sharding") and not offload:
        _say_once(
            model,
            "accepted, without an effect: replicated_optimizer_state_sharding shares what "
            "offload_weight_update_variables offloads, and that is off.",
        )


def _say_once(model: Any, note: str) -> None:
    said = model.__dict__.setdefault("_ipu_notes_logged", set())
    if note not in said:
        said.add(note)
        logger.warning("Model %s: %s", model.name, note)


def share_of(model: Any, training: bool) -> Share:
    """How a call's batches are shared, for its data rules.

    Args:
        model: made in the scope.
        training: whether the call updates weights.
    """
    options, count = options_of(model), stages(model)
    return Share(
        replicas=_replicas(model, count),
        accumulation=options.accumulation(count > 0) if training else 1,
        training=training,
        stages=count,
        schedule=options.schedule if count else Share.schedule,
        device_mapping=options.device_mapping if count else None,
    )


def _replicas(model: Any, count: int) -> int:
    mapping = options_of(model).device_mapping if count else None
    return replica_count(f"model {model.name!r}", model._ipu_strategy.ipus, stages=count, device_mapping=mapping)


def _least(model: Any) -> int:
    """Batches of an execution, over all replicas, while nothing is known of the data."""
    steps = model.__dict__.get("_ipu_compiled_steps") or model.steps_per_execution
    return int(steps) * _replicas(model, stages(model))


@contextlib.contextmanager
def traced_for(model: Any, parallel: Parallel, names: LayerNames) -> Iterator[Any]:
    """The context in which a step is traced.

    Args:
        model: made in the scope.
        parallel: how the step will run.
        names: filled with the layers' names.
    """
    options = options_of(model)
    kwargs = _kwargs(options, parallel.pipelined)
    gradients = Gradients(
        accumulate=parallel.in_parts and parallel.training,
        method=options.reduction_method.name,
        dtype=kwargs.get("gradient_accumulation_dtype" if parallel.pipelined else "dtype"),
        replicas=parallel.replicas,
        norm_group=_norm_group(model, parallel),
        checkpoints=parallel.recompute and interleaved(parallel.schedule, kwargs.get("recomputation_mode")),
    )
    in_stage = announced(model, lambda stage: tf.name_scope(stage_token(stage)))
    with in_stage, adapter.trace_scopes(names, model, gradients) as tracer:
        yield tracer


def _norm_group(model: Any, parallel: Parallel) -> int:
    group = system.spreading().norm_group
    if parallel.training and parallel.replicas % group:
        raise ConfigError(
            f"norms.experimental.distributed_batch_norm_replica_group_size is {group}; it must divide the number of "
            f"replicas, which is {parallel.replicas} for model {model.name!r}."
        )
    return group if parallel.training else 1


def _kwargs(options: ModelOptions, pipelined: bool) -> dict[str, Any]:
    """Further arguments of the pipeline, or of the accumulating optimizer."""
    return options.pipeline_kwargs if pipelined else options.accumulation_kwargs


def by_replica(arrays: list[Any], replicas: int) -> list[Any]:
    """The stacked batches of an execution with an axis of replicas: batch b is for replica b mod R.

    Args:
        arrays: each with a leading axis of batches.
        replicas: R.
    """
    if replicas == 1:
        return arrays
    return [None if a is None else a.reshape(-1, replicas, *a.shape[1:]) for a in arrays]


def in_order(parallel: Parallel, convert: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    """Predictions in the order of their batches.

    Args:
        parallel: how the step ran.
        convert: what is made of the array with one leading axis of batches.
    """
    if parallel.replicas == 1:
        return convert
    return lambda array: convert(array.reshape(-1, *array.shape[2:]))


def logs_of(model: Any, parallel: Parallel) -> Callable[[np.ndarray], Any]:
    """What the host sees of a result of each step and replica: the last step's, as the model's options say.

    Args:
        model: made in the scope.
        parallel: how the step ran.
    """
    options = options_of(model)
    averaged = options.accumulate_outfeed and parallel.pipelined and parallel.training
    method = options.metric_reduction if not parallel.pipelined else Reduction.NONE

    def logs(array: np.ndarray) -> Any:
        steps = array[-parallel.micro_batches :] if averaged and len(array) >= parallel.micro_batches else array[-1:]
        value = steps.mean(0, dtype=np.float64).astype(array.dtype) if averaged else steps[0]
        if parallel.replicas > 1:
            value = _over_replicas(value, method)
        return tfapi.tensor_from(np.asarray(value, order="C"))

    return logs


def shows_own_logs(model: Any) -> bool:
    """Whether logs are put together from several steps or replicas, and not those of the last one.

    Args:
        model: made in the scope.
    """
    options, count = options_of(model), stages(model)
    if count:
        return options.accumulate_outfeed
    return options.metric_reduction is not Reduction.NONE and _replicas(model, 0) > 1


def _over_replicas(values: np.ndarray, method: Reduction) -> np.ndarray:
    if method is Reduction.LIST:
        return values
    if method is Reduction.SUM:
        return np.asarray(values.sum(0, dtype=values.dtype))
    if method is Reduction.MEAN:
        return np.asarray(values.mean(0)).astype(values.dtype)
    return np.asarray(values[-1])
