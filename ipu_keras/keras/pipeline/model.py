"""The methods that models in the scope have for their pipeline stages."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from ipu_keras.keras.options import changed
from ipu_keras.keras.pipeline import adapter
from ipu_keras.keras.pipeline.build import RESET, assignment_of, fresh, keep
from ipu_keras.keras.pipeline.built import Build
from ipu_keras.keras.pipeline.summary import print_summary
from ipu_keras.keras.pipeline.validate import validated

__all__ = ["Pipelined"]

logger = logging.getLogger("ipu_keras")


class Pipelined:
    """Mixed into models that are made in the scope: which layer call runs in which stage of a pipeline.

    Stages come from `PipelineStage` scopes, or from `set_pipeline_stage_assignment` (and `assign_by_name`, which calls
    it), which counts before the scopes. Those of nested models are kept by the model that is trained, not by them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kind = adapter.kind_of_class(cls)
        if kind is None:
            return
        cls.build = Build(cls.build)  # type: ignore[attr-defined]
        if kind == "sequential":
            for name in ("add", "pop"):
                setattr(cls, name, _invalidating(getattr(cls, name)))

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """The assignments of all layer calls, in the order of execution, without input layers.

        Returns:
            a new list; the objects in it are those that are set. Without stages: new ones, with ``pipeline_stage``
            None.

        Raises:
            StageError: a subclassed model that is not built; a RuntimeError.

        Example:
            >>> assignments = model.get_pipeline_stage_assignment()
            >>> for assignment in assignments:
            ...     assignment.pipeline_stage = 0 if assignment.layer.name.startswith("embedding") else 1
            >>> model.set_pipeline_stage_assignment(assignments)
        """
        found = assignment_of(self)
        return fresh(self) if found is None else list(found)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Gives each layer call a stage; what is compiled is compiled anew.

        Args:
            pipeline_stage_assignment: as `get_pipeline_stage_assignment` gives it, with all stages set. For a
                Sequential model integers will do, which are replaced by assignments in this very list.

        Raises:
            ConfigError: it is no list, has not one assignment for each call in their order, has a call without a stage,
                or a layer that reads what a later stage makes; a ValueError.
            StageError: a subclassed model that is not built; a RuntimeError.

        Example:
            >>> model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])  # made in the scope
            >>> model.set_pipeline_stage_assignment([0, 1])
        """
        keep(self, validated(self, pipeline_stage_assignment, fresh(self)))
        changed(self)

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes all stages away: the model runs on one chip, or on several as replicas."""
        keep(self, RESET)
        changed(self)

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Prints a table of the layer calls and their stages.

        Args:
            line_length: characters of a line; None for 60 (Sequential) or 89.
            print_fn: is given each line; None for `print`.

        Raises:
            StageError: a subclassed model that is not built; a RuntimeError.
        """
        print_summary(self, self.get_pipeline_stage_assignment(), line_length, print_fn)


def _invalidating(method: Any) -> Any:
    """`add` and `pop` of a Sequential model: they take stages away that were assigned to the layers before."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.__dict__.get("_ipu_assignment"), list):
            logger.warning(
                "Model %s: %s() changes its layers, so its pipeline stage assignment is gone. Set it again.",
                self.name,
                method.__name__,
            )
            keep(self, None)
        result = method(self, *args, **kwargs)
        changed(self)
        return result

    return wrapped
