"""What a list of stage assignments must be, and the errors of those that are not."""

from __future__ import annotations

from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.keras.pipeline import adapter, assignment
from ipu_keras.keras.pipeline.calls import calls, layer_of
from ipu_keras.pipelining.errors import StageError

__all__ = ["check_complete", "check_order", "same_calls", "validated"]


def validated(model: Any, given: Any, expected: list[Any]) -> list[Any]:
    """Checks what `set_pipeline_stage_assignment` was given.

    Args:
        model: the root model.
        given: the argument; integers in it, which Sequential models may have, are replaced by assignments.
        expected: a fresh list of the model.

    Returns:
        a list of the same assignments.

    Raises:
        ConfigError: with the layer; a ValueError.
    """
    where = f"set_pipeline_stage_assignment of model {model.name!r}"
    if not isinstance(given, list):
        raise ConfigError(
            f"{where}: {type(given).__name__} was given; it must be a list, as get_pipeline_stage_assignment gives it."
        )
    _check_length(where, given, expected)
    if adapter.kind_of(model) == "sequential":
        _from_integers(given, expected)
    _check_calls(where, given, expected)
    for a in assignment.leaves(given):
        stage = a.pipeline_stage
        if stage is None:
            raise ConfigError(
                f"{where}: layer {a.layer.name!r} has no pipeline stage (it is None). All calls must have one."
            )
        if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
            raise ConfigError(f"{where}: layer {a.layer.name!r} has stage {stage!r}; it must be an integer, 0 or more.")
    check_order(model, given)
    return list(given)


def _check_length(where: str, given: list[Any], expected: list[Any]) -> None:
    if len(given) != len(expected):
        raise ConfigError(
            f"{where}: there are {len(given)} assignments, and the model has {len(expected)} layer calls: "
            f"{', '.join(layer_of(e).name for e in expected[:10])}{', ...' if len(expected) > 10 else ''}. There must "
            "be one for each, as get_pipeline_stage_assignment gives them."
        )


def _from_integers(given: list[Any], expected: list[Any]) -> None:
    """The caller's list is changed, as in the IPU API, so that it can be handed on."""
    for place, (stage, made) in enumerate(zip(given, expected)):
        if isinstance(stage, int) and not isinstance(stage, bool):
            for leaf in assignment.leaves([made]):
                leaf.pipeline_stage = stage
            given[place] = made


def _check_calls(where: str, given: list[Any], expected: list[Any]) -> None:
    for place, (one, other) in enumerate(zip(given, expected)):
        layer = layer_of(other)
        if not isinstance(one, (assignment.LayerAssignment, assignment.NestedAssignment)) or not _same_kind(one, other):
            raise ConfigError(
                f"{where}: assignment {place} is a {type(one).__name__}; for {layer.name!r} it must be a "
                f"{type(other).__name__}."
            )
        if layer_of(one) is not layer or one._node_index != other._node_index:
            raise ConfigError(
                f"{where}: assignment {place} is for {_call_text(one)}, and call {place} of the model is of "
                f"{_call_text(other)}. The list must have the order of execution, as get_pipeline_stage_assignment "
                "gives it."
            )
        if isinstance(one, assignment.NestedAssignment):
            inner = f"{where}, nested model {layer.name!r}"
            _check_length(inner, one._assignments, other._assignments)
            _check_calls(inner, one._assignments, other._assignments)


def _same_kind(one: Any, other: Any) -> bool:
    if one.is_nested_model != other.is_nested_model:
        return False
    indexed = assignment._Indexed
    return isinstance(one, indexed) == isinstance(other, indexed)


def _call_text(made: Any) -> str:
    return f"{layer_of(made).name!r} (node index {made._node_index})"


def same_calls(kept: list[Any], expected: list[Any]) -> bool:
    """Whether a list is for the calls that a model has now.

    Args:
        kept: assignments.
        expected: a fresh list.
    """
    return len(kept) == len(expected) and all(
        layer_of(one) is layer_of(other)
        and one._node_index == other._node_index
        and (not one.is_nested_model or same_calls(one._assignments, other._assignments))
        for one, other in zip(kept, expected)
    )


def check_order(model: Any, assignments: list[Any]) -> None:
    """Refuses stages that data would have to go back through.

    Args:
        model: the root model.
        assignments: complete ones.

    Raises:
        ConfigError: names the layers; a ValueError.
    """
    if adapter.kind_of(model) == "sequential":
        _check_sequential(model, assignments)
    else:
        _check_sources(model, assignments)


def _check_sequential(model: Any, assignments: list[Any]) -> None:
    before: assignment.LayerAssignment | None = None
    for a in assignment.leaves(assignments):
        stage = a.pipeline_stage
        if before is None:
            if stage != 0:
                raise ConfigError(
                    f"Model {model.name!r}: its first layer {a.layer.name!r} is in pipeline stage {stage}; it must be "
                    "in stage 0."
                )
        else:
            last = before.pipeline_stage
            assert last is not None
            if stage not in (last, last + 1):
                raise ConfigError(
                    f"Model {model.name!r}: layer {a.layer.name!r} is in pipeline stage {stage} and "
                    f"{before.layer.name!r} before it in stage {last}. In a Sequential model a layer must be in the "
                    f"same stage as the one before it or in the next one: {last} or {last + 1}."
                )
        before = a


def _check_sources(model: Any, assignments: list[Any]) -> None:
    """Each call may read only what earlier stages, or its own, have made."""
    for made, call in zip(assignments, calls(model, again=False)):
        if made.is_nested_model:
            _check_sources(call.layer, made._assignments)
        starts = list(assignment.leaves([made]))
        for source in call.sources:
            ends = list(assignment.leaves([assignments[source]]))
            # A nested model may span stages: what it gives out is made by its last call, and read by another's first.
            if starts and ends and _stage(ends[-1]) > _stage(starts[0]):
                first, last = starts[0], ends[-1]
                raise ConfigError(
                    f"Model {model.name!r}: layer {first.layer.name!r} in pipeline stage {first.pipeline_stage} reads "
                    f"the output of layer {last.layer.name!r} in the later stage {last.pipeline_stage}. A layer must "
                    "be in the stage of what it reads, or in a later one."
                )


def _stage(a: Any) -> int:
    return -1 if a.pipeline_stage is None else int(a.pipeline_stage)


def check_complete(model: Any, assignments: list[Any]) -> int:
    """Counts the stages.

    Args:
        model: for messages.
        assignments: complete ones.

    Raises:
        StageError: a number below the highest is not used; a RuntimeError.
    """
    used = {_stage(a) for a in assignment.leaves(assignments)}
    missing = sorted(set(range(max(used, default=-1) + 1)) - used)
    if missing:
        raise StageError(
            f"Model {model.name!r}: its pipeline stages go up to {max(used)}, and no layer is in stage "
            f"{', '.join(map(str, missing))}. Stages must be numbered from 0 without a gap."
        )
    return len(used)
