"""`PipelineStage`: what is constructed and called in it belongs to a stage."""

from __future__ import annotations

import contextlib
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.keras.pipeline import adapter
from ipu_keras.pipelining.errors import StageError

__all__ = ["PipelineStage"]


class PipelineStage:
    """Context in which layers are given to a stage of a pipeline.

    Layers that are **called** in it get the stage for that call. Layers that are **constructed** in it get the stage
    for all their calls that are not made in a stage of their own. A model that is called in it runs in the stage as a
    whole. If one call of a model has a stage, all must.

    Args:
        stage: the number, from 0.

    Raises:
        ConfigError: the number is negative, or no integer; a ValueError.
        StageError: when it is entered, and no scope of an `IPUStrategy` is open, or another stage is; a RuntimeError.

    Example:
        >>> with IPUStrategy().scope():
        ...     inputs = keras.Input((4,))
        ...     with PipelineStage(0):
        ...         x = keras.layers.Dense(8)(inputs)
        ...     with PipelineStage(1):
        ...         x = keras.layers.Dense(1)(x)
        ...     model = keras.Model(inputs, x)
    """

    def __init__(self, stage: int) -> None:
        if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
            raise ConfigError(f"PipelineStage({stage!r}): the number of a stage is an integer, 0 or more.")
        self._stage = stage
        self._open: contextlib.AbstractContextManager[None] | None = None

    def __enter__(self) -> PipelineStage:
        if not adapter.may_stage():
            raise StageError(
                f"PipelineStage({self._stage}) was opened outside the scope of an IPUStrategy. Put it, and the model, "
                "into `with strategy.scope():`."
            )
        outer = adapter.stage_now()
        if outer is not None:
            raise StageError(
                f"PipelineStage({self._stage}) was opened in PipelineStage({outer}). Pipeline stages must not be "
                "nested: close the outer one first."
            )
        self._open = adapter.staged(self._stage)
        self._open.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        opened, self._open = self._open, None
        assert opened is not None
        opened.__exit__(*error)
