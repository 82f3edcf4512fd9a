"""The Keras side: the strategy, its scope, the training functions of models made in it; and names of `keras.ipu`."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "PipelineStage": "ipu_keras.keras.pipeline",
    "FunctionalLayerPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "FunctionalNestedModelPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "ModelLayerPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "NestedModelPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "SequentialLayerPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "SequentialNestedModelPipelineStageAssignment": "ipu_keras.keras.pipeline",
    "assign_by_name": "ipu_keras.keras.pipeline",
    "ReplicatedMetricReductionMethod": "ipu_keras.keras.metric_reduction",
}
_MODULES = ("layers", "optimizers", "pipeline")

__all__ = sorted([*_NAMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
