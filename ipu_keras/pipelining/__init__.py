"""Words of pipelining: schedules, recomputation modes, options of a stage. Nothing here imports TensorFlow.

from ipu_keras.pipelining import PipelineSchedule

model.set_pipelining_options(gradient_accumulation_steps_per_replica=8,
                             pipeline_schedule=PipelineSchedule.Interleaved)
"""

from __future__ import annotations

from ipu_keras.pipelining.enums import PipelineSchedule, RecomputationMode
from ipu_keras.pipelining.errors import PipelineTypeError, StageError, iterations_error
from ipu_keras.pipelining.iterations import check_iterations, offsets, rows
from ipu_keras.pipelining.stage_options import PipelineStageOptions, options_of_stages

__all__ = [
    "PipelineSchedule",
    "RecomputationMode",
    "PipelineStageOptions",
    "PipelineTypeError",
    "StageError",
    "check_iterations",
    "iterations_error",
    "offsets",
    "options_of_stages",
    "rows",
]
