"""Pipeline stages of Keras models: which call of which layer runs in which stage.

from ipu_keras.keras.pipeline import PipelineStage

with strategy.scope():
    x = inputs = keras.Input((8,))
    with PipelineStage(0):
        x = keras.layers.Dense(16, activation="relu")(x)
    with PipelineStage(1):
        x = keras.layers.Dense(1)(x)
    model = keras.Model(inputs, x)
"""

from __future__ import annotations

from ipu_keras.keras.pipeline.assignment import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from ipu_keras.keras.pipeline.model import Pipelined
from ipu_keras.keras.pipeline.names import assign_by_name
from ipu_keras.keras.pipeline.query import stage_of, stages
from ipu_keras.keras.pipeline.stage import PipelineStage

__all__ = [
    "PipelineStage",
    "assign_by_name",
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment",
    "NestedModelPipelineStageAssignment",
    "SequentialLayerPipelineStageAssignment",
    "SequentialNestedModelPipelineStageAssignment",
    "Pipelined",
    "stage_of",
    "stages",
]
