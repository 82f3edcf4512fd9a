"""Objects that say which call of a layer runs in which stage; lists of them are what a model is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipu_keras.keras.pipeline import adapter

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "LayerAssignment",
    "ModelLayerPipelineStageAssignment",
    "NestedAssignment",
    "NestedModelPipelineStageAssignment",
    "SequentialLayerPipelineStageAssignment",
    "SequentialNestedModelPipelineStageAssignment",
    "leaves",
]


class LayerAssignment:
    """The stage of one call of a layer.

    Args:
        layer: the layer.
        node_index: which of its calls.
        pipeline_stage: the stage, None while it has none.
    """

    is_nested_model = False

    def __init__(self, layer: Any, node_index: int = 0, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self._node_index = node_index
        self._inbound: list[Any] | None = None
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer."""
        return self._layer

    def __str__(self) -> str:
        return f"Layer: {self._layer.name} ({type(self._layer).__name__}) {_stage_text(self.pipeline_stage)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class NestedAssignment:
    """The stages of the layers of a model that another model calls as a layer.

    Args:
        nested_model: the inner model.
        node_index: which of its calls.
        pipeline_stage_assignments: for each call in the inner model, in order.
    """

    is_nested_model = True

    def __init__(self, nested_model: Any, node_index: int, pipeline_stage_assignments: list[Any]) -> None:
        self._nested_model = nested_model
        self._node_index = node_index
        self._inbound: list[Any] | None = None
        self._assignments = list(pipeline_stage_assignments)

    @property
    def nested_model(self) -> Any:
        """The inner model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Any]:
        """A copy of the list of assignments of the inner model's calls; the objects in it are no copies."""
        return list(self._assignments)

    def __str__(self) -> str:
        inner = "\n".join("  " + line for a in self._assignments for line in str(a).splitlines())
        return f"Nested model: {self._nested_model.name} ({type(self._nested_model).__name__})\n{inner}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._nested_model.name}, {len(self._assignments)} calls>"


class _Indexed:
    """What assignments in Functional and subclassed models have besides: a call among several, and what it reads."""

    _node_index: int
    _inbound: list[Any] | None

    @property
    def node_index(self) -> int:
        """Which call of the layer: the index of its node, or the number of the call in a subclassed model."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose outputs the call reads, input layers among them."""
        if self._inbound is not None:
            return list(self._inbound)
        layer: Any = self.nested_model if isinstance(self, NestedAssignment) else self.layer  # type: ignore[attr-defined]
        return adapter.producers(layer, self._node_index)


class SequentialLayerPipelineStageAssignment(LayerAssignment):
    """The stage of a layer of a Sequential model.

    Args:
        layer: the layer.
        pipeline_stage: the stage, None while it has none.
    """

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, 0, pipeline_stage)


class SequentialNestedModelPipelineStageAssignment(NestedAssignment):
    """The stages in a model that is a layer of a Sequential model.

    Args:
        nested_model: the inner model.
        pipeline_stage_assignments: for each call in it, in order.
    """

    def __init__(self, nested_model: Any, pipeline_stage_assignments: list[Any]) -> None:
        super().__init__(nested_model, 0, pipeline_stage_assignments)


class FunctionalLayerPipelineStageAssignment(_Indexed, LayerAssignment):
    """The stage of one call of a layer, or of an operation, in a Functional model.

    Args:
        layer: the layer.
        node_index: index of the call's node among ``layer``'s.
        pipeline_stage: the stage, None while it has none.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, node_index, pipeline_stage)

    def __str__(self) -> str:
        kind = type(self._layer).__name__
        return f"Layer: {self._layer.name} ({kind}) node index: {self._node_index} {_stage_text(self.pipeline_stage)}"


class ModelLayerPipelineStageAssignment(FunctionalLayerPipelineStageAssignment):
    """The stage of one call of a layer in a subclassed model; its ``node_index`` counts the calls of the layer."""


class NestedModelPipelineStageAssignment(_Indexed, NestedAssignment):
    """The stages in a model that a subclassed model calls.

    Args:
        nested_model: the inner model.
        node_index: which of its calls.
        pipeline_stage_assignments: for each call in it, in order.
    """


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages in a model that a Functional model calls."""


def leaves(assignments: list[Any]) -> Iterator[LayerAssignment]:
    """All assignments of single calls, those of nested models in their places.

    Args:
        assignments: of a model.
    """
    for assignment in assignments:
        if isinstance(assignment, NestedAssignment):
            yield from leaves(assignment._assignments)
        else:
            yield assignment


def _stage_text(stage: int | None) -> str:
    return "pipeline stage: None" if stage is None else f"pipeline stage: {stage}"
