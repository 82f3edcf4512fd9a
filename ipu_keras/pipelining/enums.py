"""The enumerations that pipelines take."""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = ["PipelineSchedule", "RecomputationMode"]


class PipelineSchedule(IntEnum):
    """In which order the stages of a pipeline run; the numbers are the same with all three, up to rounding.

    ``Grouped`` runs all forward stages in one time slot and all backward stages beside them, ``Interleaved`` alternates
    them on each chip and keeps half as many activations, ``Sequential`` runs one stage at a time.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """How activations are recomputed in the backward pass; it acts only with the option ``allow_recompute``.

    ``Auto`` is the mode of the schedule: ``RecomputeThenBackpropagate`` for Grouped and Interleaved,
    ``RecomputeAndBackpropagateInterleaved`` for Sequential.
    """

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2
