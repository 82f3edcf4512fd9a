"""Lists of assignments: fresh ones for a model, those that `PipelineStage` scopes have left, and the one in force."""

from __future__ import annotations

import logging
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.keras.pipeline import adapter, assignment
from ipu_keras.keras.pipeline.calls import Call, calls, layer_of
from ipu_keras.keras.pipeline.validate import check_order, same_calls
from ipu_keras.pipelining.errors import StageError

__all__ = ["RESET", "Saved", "assignment_of", "fresh", "keep", "recorded"]

logger = logging.getLogger("ipu_keras")

RESET = "reset"
"""Kept instead of a list by a model whose stages were taken away, whatever its layers carry."""


class Saved(list[dict[str, Any]]):
    """Stages as a file has them, by names, until the model's calls are known and they become assignments."""


_LAYERS: dict[str, Any] = {
    "functional": assignment.FunctionalLayerPipelineStageAssignment,
    "model": assignment.ModelLayerPipelineStageAssignment,
}
_NESTED: dict[str, Any] = {
    "functional": assignment.FunctionalNestedModelPipelineStageAssignment,
    "model": assignment.NestedModelPipelineStageAssignment,
}


def fresh(model: Any, *, again: bool = True) -> list[Any]:
    """An assignment without a stage for each call in a model.

    Args:
        model: of any kind.
        again: whether a subclassed model is traced anew.
    """
    kind = adapter.kind_of(model)
    assert kind is not None
    found: list[Any] = []
    for call in calls(model, again=again):
        nested = adapter.kind_of(call.layer) is not None
        inner = fresh(call.layer, again=False) if nested else []
        made: Any
        if kind == "sequential":
            made = (
                assignment.SequentialNestedModelPipelineStageAssignment(call.layer, inner)
                if nested
                else assignment.SequentialLayerPipelineStageAssignment(call.layer)
            )
        else:
            made = _NESTED[kind](call.layer, call.index, inner) if nested else _LAYERS[kind](call.layer, call.index)
        made._node_index, made._inbound = call.index, call.inbound
        found.append(made)
    return found


def recorded(model: Any, *, ordered: bool = True) -> list[Any] | None:
    """The assignments that `PipelineStage` scopes have left; None when there are none.

    Args:
        model: of any kind.
        ordered: whether their order is checked, which only that of a root model can be.

    Raises:
        ConfigError: some calls have a stage and others have none, or their order is impossible; a ValueError.
    """
    if not adapter.ever_staged():
        return None
    found = fresh(model, again=False)
    _fill(model, found, None, None)
    if all(a.pipeline_stage is None for a in assignment.leaves(found)):
        return None
    if adapter.kind_of(model) == "model":  # it may call other layers than when it was traced
        found = fresh(model)
        _fill(model, found, None, None)
    all_calls = list(assignment.leaves(found))
    _infer_operations(model, found)
    without = [a.layer.name for a in all_calls if a.pipeline_stage is None]
    if without:
        raise ConfigError(
            f"Model {model.name!r}: some of its layers have a pipeline stage, and these have none: "
            f"{', '.join(without[:10])}{', ...' if len(without) > 10 else ''}. All layers of a pipelined model must "
            "have one: call (or construct) them in a PipelineStage, too, or use set_pipeline_stage_assignment."
        )
    if ordered:
        check_order(model, found)
    return found


def _fill(model: Any, assignments: list[Any], called: int | None, constructed: int | None) -> None:
    for made, call in zip(assignments, calls(model, again=False)):
        own = called if called is not None else call.stage
        built = adapter.constructed_stage(call.layer)
        built = constructed if built is None else built
        if made.is_nested_model:
            _fill(call.layer, made._assignments, own, built)
        else:
            made.pipeline_stage = built if own is None else own


def _infer_operations(model: Any, assignments: list[Any]) -> None:
    """An operation between layers (``x[:, 0]``, ``x + y``) is no layer: without a stage it has that of its inputs."""
    all_calls = calls(model, again=False)
    for made, call in zip(assignments, all_calls):
        if made.is_nested_model:
            _infer_operations(call.layer, made._assignments)
        elif made.pipeline_stage is None and adapter.is_operation(made.layer):
            made.pipeline_stage = latest_source(assignments, call)


def latest_source(assignments: list[Any], call: Call) -> int | None:
    """The latest stage whose outputs a call reads, the first stage for one that reads only the model's inputs.

    Args:
        assignments: of the model.
        call: one of its calls.
    """
    stages = [a.pipeline_stage for s in call.sources for a in assignment.leaves([assignments[s]])]
    if any(stage is None for stage in stages):
        return None
    return max((stage for stage in stages if stage is not None), default=0)


def keep(model: Any, assignments: Any) -> None:
    """Keeps a model's assignments, past Keras's tracking of attributes.

    Args:
        model: the root model.
        assignments: a list, `Saved`, `RESET`, or None for what `PipelineStage` scopes have left.
    """
    model.__dict__["_ipu_assignment"] = assignments


def assignment_of(model: Any) -> list[Any] | None:
    """The assignments in force; None for a model without stages.

    Args:
        model: the root model.

    Raises:
        ConfigError: see `recorded`.
        StageError: a subclassed model calls other layers than when its stages were assigned.
    """
    kept = model.__dict__.get("_ipu_assignment")
    if kept is None:
        return recorded(model) if _may_have_stages(model) else None
    if kept == RESET:
        return None
    if isinstance(kept, Saved):
        if not _may_have_stages(model):
            return None
        kept = _materialize(model, kept)
    if same_calls(kept, fresh(model)):
        found: list[Any] = kept
        return found
    if adapter.kind_of(model) == "sequential":
        logger.warning(
            "Model %s: its layers have changed since its pipeline stages were assigned; it has no stages now.",
            model.name,
        )
        keep(model, RESET)
        return None
    raise _no_longer(model, [layer_of(a).name for a in kept])


def _no_longer(model: Any, names: list[str]) -> StageError:
    return StageError(
        f"Model {model.name!r}: the pipeline stage assignment is no longer valid: it is for the layer calls "
        f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}, and the model calls others now. Take it away "
        "with reset_pipeline_stage_assignment, or assign stages again with set_pipeline_stage_assignment."
    )


def _materialize(model: Any, saved: Saved) -> list[Any]:
    """Assignments of the stages that a file has, which are kept from now on."""
    found = fresh(model)
    if not _take(found, list(saved)):
        raise _no_longer(model, [row["layer"] for row in saved])
    keep(model, found)
    return found


def _take(assignments: list[Any], rows: list[dict[str, Any]]) -> bool:
    """Sets the stages of calls of the same layers, by name and number; False where there are others."""
    by_call = {(row["layer"], row["call"]): row for row in rows}
    numbers: dict[str, int] = {}
    for made in assignments:
        name = layer_of(made).name
        number = numbers[name] = numbers.get(name, -1) + 1
        row = by_call.pop((name, number), None)
        if row is None or made.is_nested_model != ("calls" in row):
            return False
        if not made.is_nested_model:
            made.pipeline_stage = row["stage"]
        elif not _take(made._assignments, row["calls"]):
            return False
    return not by_call


def _may_have_stages(model: Any) -> bool:
    """A subclassed model that is not built has no known calls; it is asked again when it runs."""
    return adapter.kind_of(model) != "model" or adapter.is_traceable(model)
