"""What a compiler and people ask: the number of stages, and the stage of each layer, as it is traced or by its path."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ipu_keras.errors import IPUError
from ipu_keras.frontend.abstract import abstract_variables
from ipu_keras.keras.options import version
from ipu_keras.keras.pipeline import adapter, assignment
from ipu_keras.keras.pipeline.build import assignment_of
from ipu_keras.keras.pipeline.calls import build_on, layer_of
from ipu_keras.keras.pipeline.validate import check_complete
from ipu_keras.pipelining.errors import StageError

__all__ = ["announced", "leaf_layers", "prepare", "stage_of", "stages"]

logger = logging.getLogger("ipu_keras")


def stages(model: Any, *, again: bool = False) -> int:
    """Number of pipeline stages of a model; 0 when it has none.

    Args:
        model: made in the scope.
        again: whether the model's calls are looked at anew. Otherwise what is known of the same assignment counts,
            which costs nothing before each execution.

    Raises:
        ConfigError: some layer calls have a stage and others have none; a ValueError.
        StageError: a number is left out, or the assignment is for other calls than the model has; a RuntimeError.
    """
    key = (version(model), adapter.kind_of(model) != "model" or adapter.is_traceable(model))
    known: tuple[Any, int] | None = model.__dict__.get("_ipu_stages")
    if again or known is None or known[0] != key:
        found = assignment_of(model)
        known = (key, 0 if found is None else check_complete(model, found))
        model.__dict__["_ipu_stages"] = known
    return known[1]


def prepare(model: Any, structure: Any, signature: Sequence[tuple[Any, Any] | None]) -> None:
    """Builds a subclassed model that is not built on the shapes of a batch, so that its stages can be known.

    A model that cannot be called with the first part of a batch is left to its own training step.

    Args:
        model: made in the scope.
        structure: a batch, of which only the nesting is used.
        signature: shape and dtype of each of its tensors, None for what is none.

    Raises:
        StageError, ConfigError: a `PipelineStage` in the model's ``call`` that cannot be opened.
    """
    if adapter.kind_of(model) != "model" or adapter.is_traceable(model):
        return
    batch = adapter.packed(structure, [None if s is None else adapter.tensor_of(*s) for s in signature])
    x = batch[0] if isinstance(batch, tuple) else batch
    try:
        with abstract_variables(not model._ipu_strategy.execute):
            build_on(model, x)
    except IPUError:
        raise
    except Exception as error:
        logger.debug("model %s is not built before its step: %s", model.name, error)
    else:
        model.__dict__["_ipu_inputs"] = ((x,), {})  # with the dtypes, which the shapes that it was built on lack


def _walk(path: str, assignments: list[Any]) -> Iterator[tuple[str, int]]:
    for made in assignments:
        inner = f"{path}/{layer_of(made).name}"
        if made.is_nested_model:
            yield from _walk(inner, made._assignments)
        else:
            yield inner, made.pipeline_stage


def stage_of(model: Any) -> dict[str, int]:
    """The stage of each layer, by its path; empty for a model without stages.

    A path is that of `ipu_keras.frontend.layers.LayerNames`: the names of the models and the layer, joined by ``/``.
    Sublayers of a layer are not in it.

    Args:
        model: the root model.

    Raises:
        ConfigError: some layer calls have a stage and others have none; a ValueError.
        StageError: one layer is called in two stages, so that its path says too little (see `announced`); a number is
            left out; the assignment is for other calls than the model has. A RuntimeError.
    """
    found = assignment_of(model)
    if found is None:
        return {}
    check_complete(model, found)
    result: dict[str, int] = {}
    for path, stage in _walk(model.name, found):
        if result.setdefault(path, stage) != stage:
            raise StageError(
                f"Layer {path!r} is called in pipeline stages {result[path]} and {stage}. Give all of its calls the "
                "same stage, or use a layer for each, which then have weights of their own."
            )
    return result


@contextlib.contextmanager
def announced(model: Any, enter: Callable[[int], AbstractContextManager[Any]]) -> Iterator[None]:
    """While open, each layer call of a model (in this thread) runs within a context for the stage of that very call.

    This tells the calls apart of a layer that is called in several stages, such as tied embeddings.

    Args:
        model: the root model; without stages nothing happens.
        enter: gives the context for a stage.

    Example:
        >>> with announced(model, lambda stage: tf.name_scope(f"STAGE.{stage}.")):
        ...     model(x)
    """
    found = assignment_of(model)
    # Without stages, too, calls are watched: PipelineStage in the `call` of a model may be opened in them.
    with adapter.calls_watched(_Announcer(model, found or [], enter)):
        yield


class _Announcer:
    """Follows the calls of a model's layers, and counts those of the same layer."""

    def __init__(self, model: Any, assignments: list[Any], enter: Callable[[int], AbstractContextManager[Any]]) -> None:
        self._model, self._enter = model, enter
        self._assignments = assignments
        self._frames: list[tuple[Any, list[Any], dict[int, int]]] = []

    def __call__(self, layer: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del args, kwargs
        if self._frames and self._frames[-1][0] is layer:  # a class whose __call__ calls its base's
            return call()
        inner, stage = self._find(layer)
        self._frames.append((layer, inner, defaultdict(int)))
        try:
            if stage is None:
                return call()
            with self._enter(stage):
                return call()
        finally:
            self._frames.pop()

    def _find(self, layer: Any) -> tuple[list[Any], int | None]:
        if layer is self._model:
            return self._assignments, None
        if not self._frames:
            return [], None
        _, assignments, counts = self._frames[-1]
        own = [a for a in assignments if layer_of(a) is layer]
        if not own:
            return [], None
        number = counts[id(layer)]
        counts[id(layer)] += 1
        made = own[min(number, len(own) - 1)]
        if made.is_nested_model:
            return made._assignments, None
        return [], made.pipeline_stage


def leaf_layers(model: Any) -> list[Any]:
    """All layers that a model's assignments are about, nested models taken apart; for rules about layers.

    Args:
        model: the root model.
    """
    return [a.layer for a in assignment.leaves(assignment_of(model) or [])]
