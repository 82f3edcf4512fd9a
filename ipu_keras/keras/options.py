"""Options of a model's executions: gradient accumulation, pipelining, queues, replicas, callbacks; and their rules."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.keras.metric_reduction import ReplicatedMetricReductionMethod
from ipu_keras.pipelining import PipelineSchedule, PipelineTypeError, RecomputationMode

__all__ = ["ModelOptions", "Options", "changed", "options_of", "version"]

_SUM = GradientAccumulationReductionMethod.SUM
_ACCUMULATION_KEYS = ("offload_weight_update_variables", "replicated_optimizer_state_sharding", "dtype", "name")
_PIPELINE_KEYS = (
    "gradient_accumulation_dtype",
    "gradient_accumulation_for_captured_grads",
    "pipeline_schedule",
    "recomputation_mode",
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
    "weight_update_poplar_options",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "replicated_weight_sharding",
    "offload_weights",
    "continuous_weight_updates",
    "accumulate_outfeed_dtype",
    "name",
)
_AUTOMATIC = "it is set from the model, its data and its stages"
_INCOMPATIBLE = "it does not go together with Keras's own handling of losses and outputs"
_PIPELINE_REJECTED = {
    "gradient_accumulation_count": "use the argument gradient_accumulation_steps_per_replica",
    "experimental_normalize_gradients": "it is gone; use gradient_accumulation_reduction_method='mean'",
    "reduction_method": "use the argument gradient_accumulation_reduction_method",
    **dict.fromkeys(
        (
            "computational_stages",
            "repeat_count",
            "inputs",
            "infeed_queue",
            "outfeed_queue",
            "optimizer_function",
        ),
        _AUTOMATIC,
    ),
    **dict.fromkeys(("outfeed_loss", "outfeed_mask", "batch_serialization_iterations"), _INCOMPATIBLE),
}
_ACCUMULATION_REJECTED = {
    "opt": "it is the optimizer that the model is compiled with",
    "num_mini_batches": "use the argument gradient_accumulation_steps_per_replica",
    "experimental_normalize_gradients": "it is gone; use gradient_accumulation_reduction_method='mean'",
    "reduction_method": "use the argument gradient_accumulation_reduction_method",
}
_INFEED_REJECTED = dict.fromkeys(("dataset", "infeed_spec", "element_spec", "_internal_id"), _AUTOMATIC)
_OUTFEED_REJECTED = dict.fromkeys(("outfeed_mode", "device_ordinal"), _AUTOMATIC)


@dataclass(frozen=True)
class ModelOptions:
    """All options of one model, as its ``set_..._options`` methods have left them.

    Attributes:
        accumulation_steps: mini-batches of a weight update of a model without stages, None while not set.
        accumulation_kwargs: for the accumulating optimizer, such as ``dtype``; not saved.
        pipeline_accumulation_steps: the same number for a model with stages.
        reduction_method: of both.
        device_mapping: IPU of each stage, None for the stage's number.
        accumulate_outfeed: whether a pipeline's outputs are summed over a weight update.
        pipeline_kwargs: for the pipeline, such as ``pipeline_schedule``; not saved.
        infeed_kwargs: of the queue of batches.
        outfeed_kwargs: of the queue of results.
        metric_reduction: what the host sees of the replicas' metrics.
        asynchronous_callbacks: whether callbacks hear of every step.
    """

    accumulation_steps: int | None = None
    accumulation_kwargs: dict[str, Any] = field(default_factory=dict)
    pipeline_accumulation_steps: int | None = None
    reduction_method: GradientAccumulationReductionMethod = _SUM
    device_mapping: tuple[int, ...] | None = None
    accumulate_outfeed: bool = False
    pipeline_kwargs: dict[str, Any] = field(default_factory=lambda: {"gradient_accumulation_for_captured_grads": False})
    infeed_kwargs: dict[str, Any] = field(default_factory=dict)
    outfeed_kwargs: dict[str, Any] = field(default_factory=dict)
    metric_reduction: ReplicatedMetricReductionMethod = ReplicatedMetricReductionMethod.NONE
    asynchronous_callbacks: bool = False

    def accumulation(self, pipelined: bool) -> int:
        """Mini-batches of a weight update; 1 where none is set.

        Args:
            pipelined: whether the model has stages.
        """
        return (self.pipeline_accumulation_steps if pipelined else self.accumulation_steps) or 1

    @property
    def schedule(self) -> PipelineSchedule:
        """The pipeline's schedule, Grouped where none is set."""
        return self.pipeline_kwargs.get("pipeline_schedule") or PipelineSchedule.Grouped


def options_of(model: Any) -> ModelOptions:
    """The options of a model.

    Args:
        model: made in the scope.
    """
    found: ModelOptions = model.__dict__.get("_ipu_options") or ModelOptions()
    return found


def version(model: Any) -> int:
    """A number that grows with each change of the options or the stages: functions compiled before are outdated.

    Args:
        model: made in the scope.
    """
    return int(model.__dict__.get("_ipu_options_version", 0))


def changed(model: Any) -> None:
    """Says that what is compiled is outdated.

    Args:
        model: made in the scope.
    """
    model.__dict__["_ipu_options_version"] = version(model) + 1


class Options:
    """Mixed into models that are made in the scope: the ``set_..._options`` methods of `keras.ipu`.

    What they set is a `ModelOptions`, which `options_of` gives. Each call makes the functions outdated that are
    compiled already.
    """

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Sums gradients up over several steps before the weights are updated, in `fit` of a model without stages.

        Each call sets the reduction method and replaces the further arguments of the call before.

        Args:
            gradient_accumulation_steps_per_replica: steps of one weight update; 1 is plain training, None keeps the
                number that is set.
            gradient_accumulation_reduction_method: ``"sum"``, ``"mean"`` or ``"running_mean"``, or a member of
                `GradientAccumulationReductionMethod`. `set_pipelining_options` sets the same one.
            use_v2_gradient_accumulation_optimizer: accepted; there is one way to accumulate.
            **gradient_accumulation_optimizer_kwargs: dtype, offload_weight_update_variables (on unless it is False),
                replicated_optimizer_state_sharding; not saved with the model.

        Raises:
            ConfigError: a number or method that cannot be, or a further argument that is set in another way; a
                ValueError.
            PipelineTypeError: there is no such further argument; a TypeError.

        Example:
            >>> model.compile("sgd", "mse", steps_per_execution=8)
            >>> model.set_gradient_accumulation_options(4, "mean")  # two updates in each execution
        """
        del use_v2_gradient_accumulation_optimizer
        where = f"set_gradient_accumulation_options of model {_name(self)!r}"
        kwargs = _accepted(where, gradient_accumulation_optimizer_kwargs, _ACCUMULATION_REJECTED, _ACCUMULATION_KEYS)
        steps = _steps(where, gradient_accumulation_steps_per_replica)
        _set(
            self,
            reduction_method=GradientAccumulationReductionMethod.parse(gradient_accumulation_reduction_method),
            accumulation_kwargs=kwargs,
            **_given(accumulation_steps=steps),
        )

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """How a model with pipeline stages runs.

        Each call sets the reduction method and replaces the further arguments of the call before; other arguments that
        are None keep what is set.

        Args:
            gradient_accumulation_steps_per_replica: mini-batches of one weight update, which training needs.
            device_mapping: the IPU of each stage; without it, stage k runs on IPU k.
            accumulate_outfeed: whether metrics are averaged over a weight update and leave the device once.
            gradient_accumulation_reduction_method: ``"sum"``, ``"mean"`` or ``"running_mean"``, or a member of
                `GradientAccumulationReductionMethod`.
            **pipelining_kwargs: further arguments of `pipelining_ops.pipeline`, such as ``pipeline_schedule``; not
                saved with the model.

        Raises:
            ConfigError: a number, mapping or method that cannot be, or a further argument that is set in another way;
                a ValueError.
            PipelineTypeError: there is no such further argument, or it has another type; a TypeError.

        Example:
            >>> from ipu_keras.pipelining import PipelineSchedule
            >>> model.set_pipelining_options(8, pipeline_schedule=PipelineSchedule.Interleaved)
        """
        where = f"set_pipelining_options of model {_name(self)!r}"
        kwargs = _accepted(where, pipelining_kwargs, _PIPELINE_REJECTED, _PIPELINE_KEYS)
        _member(where, kwargs, "pipeline_schedule", PipelineSchedule)
        _member(where, kwargs, "recomputation_mode", RecomputationMode)
        kwargs.setdefault("gradient_accumulation_for_captured_grads", False)
        steps = _steps(where, gradient_accumulation_steps_per_replica)
        if device_mapping is not None and not (
            isinstance(device_mapping, list) and all(_is_int(d) and d >= 0 for d in device_mapping)
        ):
            raise ConfigError(
                f"{where}: device_mapping is {device_mapping!r}; it must be a list of integers, the IPU of each stage, "
                "such as [0, 1, 1, 0]."
            )
        _set(
            self,
            reduction_method=GradientAccumulationReductionMethod.parse(gradient_accumulation_reduction_method),
            pipeline_kwargs=kwargs,
            **_given(
                pipeline_accumulation_steps=steps,
                device_mapping=None if device_mapping is None else tuple(device_mapping),
                accumulate_outfeed=None if accumulate_outfeed is None else bool(accumulate_outfeed),
            ),
        )

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Options of the queue that brings batches to the device.

        Args:
            **kwargs: prefetch_depth (1 to 255), optimise_latency, device_ordinal.

        Raises:
            ConfigError: an argument that is set from the data, or a value that cannot be; a ValueError.
            PipelineTypeError: there is no such argument; a TypeError.

        Example:
            >>> model.set_infeed_queue_options(prefetch_depth=5)
        """
        where = f"set_infeed_queue_options of model {_name(self)!r}"
        accepted = ("prefetch_depth", "optimise_latency", "device_ordinal")
        kwargs = _accepted(where, kwargs, _INFEED_REJECTED, accepted)
        depth = kwargs.get("prefetch_depth")
        if depth and not (_is_int(depth) and 1 <= depth <= 255):
            raise ConfigError(f"{where}: prefetch_depth is {depth!r}; it must be an integer from 1 to 255.")
        _set(self, infeed_kwargs=kwargs)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Options of the queue that brings results back.

        Args:
            **kwargs: buffer_depth (1 or more), optimise_latency.

        Raises:
            ConfigError: an argument that is set from the call, or a value that cannot be; a ValueError.
            PipelineTypeError: there is no such argument; a TypeError.

        Example:
            >>> model.set_outfeed_queue_options(buffer_depth=2)
        """
        where = f"set_outfeed_queue_options of model {_name(self)!r}"
        kwargs = _accepted(where, kwargs, _OUTFEED_REJECTED, ("buffer_depth", "optimise_latency"))
        depth = kwargs.get("buffer_depth", 1)
        if not (_is_int(depth) and depth >= 1):
            raise ConfigError(f"{where}: buffer_depth is {depth!r}; it must be an integer of 1 or more.")
        _set(self, outfeed_kwargs=kwargs)

    def set_replication_options(self, replicated_metric_reduction_method: Any = "NONE") -> None:
        """What the host sees of metrics that each replica has of its own; models with stages ignore it.

        Args:
            replicated_metric_reduction_method: ``"NONE"``, ``"LIST"``, ``"SUM"`` or ``"MEAN"``, or a member of
                `ReplicatedMetricReductionMethod`.

        Raises:
            ConfigError: none of these; a ValueError.
        """
        _set(self, metric_reduction=ReplicatedMetricReductionMethod.parse(replicated_metric_reduction_method))

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Whether callbacks hear of every step while an execution runs, instead of once after it.

        Args:
            asynchronous: whether they do.
        """
        _set(self, asynchronous_callbacks=bool(asynchronous))


def _set(model: Any, **values: Any) -> None:
    # Past Keras's attribute tracking, which would wrap dicts and make them a part of the model's state.
    model.__dict__["_ipu_options"] = replace(options_of(model), **values)
    changed(model)


def _name(model: Any) -> str:
    return str(getattr(model, "name", type(model).__name__))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _steps(where: str, steps: Any) -> int | None:
    if steps is None:
        return None
    if not _is_int(steps) or steps < 1:
        raise ConfigError(
            f"{where}: gradient_accumulation_steps_per_replica is {steps!r}; it must be a positive integer, the number "
            "of steps of one weight update (1: an update in each step)."
        )
    return int(steps)


def _accepted(
    where: str, kwargs: dict[str, Any], rejected: dict[str, str], accepted: tuple[str, ...]
) -> dict[str, Any]:
    for name in kwargs:
        if name in rejected:
            raise ConfigError(f"{where}: {name} cannot be set here: {rejected[name]}.")
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(accepted)}."
            raise PipelineTypeError(f"{where} got an unexpected keyword argument {name!r}. {hint}")
    return dict(kwargs)


def _member(where: str, kwargs: dict[str, Any], name: str, kind: type) -> None:
    value = kwargs.get(name)
    if value is not None and not isinstance(value, kind):
        raise PipelineTypeError(
            f"{where}: {name} is {value!r}; it must be a member of {kind.__name__}, such as {next(iter(kind))!r}."  # type: ignore[call-overload]
        )
