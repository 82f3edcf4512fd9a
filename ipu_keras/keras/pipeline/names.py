"""Stages by name: patterns for the names of layers, for models whose code one does not want to change."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.keras.pipeline import adapter
from ipu_keras.keras.pipeline.assignment import leaves
from ipu_keras.keras.pipeline.build import latest_source
from ipu_keras.keras.pipeline.calls import calls

__all__ = ["assign_by_name"]


def assign_by_name(model: Any, stages: dict[Any, int]) -> None:
    """Gives the layers of a model, and of the models in it, pipeline stages by patterns for their names.

    The first pattern that matches counts. A pattern is matched with the whole name of the layer (``"dense_1"``), or
    with its path in the model (``"backbone/dense_1"``). A model that matches is in that stage as a whole. An operation
    between layers (``x[:, 0]``) that no pattern names is in the stage of what it reads.

    Args:
        model: a model made in the scope; a subclassed one must be built.
        stages: pattern -> stage. Patterns are shell-style, such as ``"transformer_layer_[0-5]"`` or ``"*embedding*"``,
            or compiled regular expressions.

    Raises:
        ConfigError: a layer matches no pattern, a pattern matches nothing, or the stages cannot be in this order; with
            the names. A ValueError.

    Example:
        >>> backbone = keras_hub.models.BertBackbone(...)  # made in the scope, with 4 layers
        >>> assign_by_name(backbone, {
        ...     "transformer_layer_[01]": 1,
        ...     "transformer_layer_[23]": 2,
        ...     "pooled_dense": 2,
        ...     "*": 0,
        ... })
    """
    assignments = model.get_pipeline_stage_assignment()
    used: set[int] = set()
    missing: list[str] = []
    _assign(model, "", assignments, list(stages.items()), used, missing)
    where = f"assign_by_name of model {model.name!r}"
    if missing:
        raise ConfigError(
            f"{where}: no pattern matches {', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}. Add a "
            'pattern for each, or "*" as the last one for the rest.'
        )
    # "*" is for the rest, of which there may be none.
    idle = [p for i, p in enumerate(stages) if i not in used and p != "*"]
    if idle:
        raise ConfigError(
            f"{where}: no layer is left for the pattern(s) {', '.join(_text(p) for p in idle)}. Names are: "
            f"{', '.join(sorted({_name(a) for a in assignments}))}. Earlier patterns come first."
        )
    model.set_pipeline_stage_assignment(assignments)


def _assign(
    model: Any, path: str, assignments: list[Any], patterns: list[tuple[Any, int]], used: set[int], missing: list[str]
) -> None:
    operations = []
    for made, call in zip(assignments, calls(model, again=False)):
        name = _name(made)
        found = next((i for i, (p, _) in enumerate(patterns) if _matches(p, name, path + name)), None)
        if found is not None and patterns[found][0] != "*":
            used.add(found)
            for leaf in leaves([made]):
                leaf.pipeline_stage = patterns[found][1]
        elif made.is_nested_model:
            _assign(call.layer, f"{path}{name}/", made._assignments, patterns, used, missing)
        elif adapter.is_operation(call.layer):
            operations.append((made, call))
        elif found is None:
            missing.append(path + name)
        else:
            made.pipeline_stage = patterns[found][1]
    for made, call in operations:  # in the order of execution, as an operation may read another
        made.pipeline_stage = latest_source(assignments, call)


def _name(made: Any) -> str:
    return str((made.nested_model if made.is_nested_model else made.layer).name)


def _matches(pattern: Any, name: str, path: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return bool(pattern.fullmatch(name) or pattern.fullmatch(path))
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(path, pattern)


def _text(pattern: Any) -> str:
    return repr(pattern.pattern if isinstance(pattern, re.Pattern) else pattern)
