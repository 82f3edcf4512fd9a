"""A model's options and stages in its ``.keras`` file and in its clones.

They are an asset of the file, which a model outside the scope does not read: there it is a plain Keras model.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.keras.metric_reduction import ReplicatedMetricReductionMethod
from ipu_keras.keras.options import ModelOptions, changed, options_of
from ipu_keras.keras.pipeline.build import RESET, Saved, assignment_of, keep
from ipu_keras.keras.pipeline.calls import layer_of
from ipu_keras.pipelining import StageError

__all__ = ["Savable", "restore", "state"]

logger = logging.getLogger("ipu_keras")

FILE = "ipu_keras.json"
_PLAIN = (
    "accumulation_steps",
    "pipeline_accumulation_steps",
    "accumulate_outfeed",
    "asynchronous_callbacks",
    "infeed_kwargs",
    "outfeed_kwargs",
)


def state(model: Any) -> dict[str, Any]:
    """What is saved of a model, of plain values; empty when nothing was set.

    Args:
        model: made in the scope.
    """
    options = options_of(model)
    found: dict[str, Any] = {}
    if options != ModelOptions():
        found["options"] = {
            **{name: getattr(options, name) for name in _PLAIN},
            "reduction_method": options.reduction_method.name,
            "device_mapping": None if options.device_mapping is None else list(options.device_mapping),
            "metric_reduction": options.metric_reduction.name,
        }
    try:
        assignments = assignment_of(model)
    except (ConfigError, StageError) as error:
        logger.warning("Model %s is saved without its pipeline stages: %s", model.name, error)
        assignments = None
    if assignments is not None:
        found["stages"] = _stages(assignments)
    elif model.__dict__.get("_ipu_assignment") == RESET:
        found["stages"] = RESET
    return found


def _stages(assignments: list[Any]) -> list[dict[str, Any]]:
    seen: dict[int, int] = {}
    rows = []
    for made in assignments:
        layer = layer_of(made)
        # A loaded model's nodes are numbered anew: what is saved is which of the calls in this model it is.
        number = seen[id(layer)] = seen.get(id(layer), -1) + 1
        row: dict[str, Any] = {"layer": layer.name, "call": number}
        if made.is_nested_model:
            row["calls"] = _stages(made._assignments)
        else:
            row["stage"] = made.pipeline_stage
        rows.append(row)
    return rows


def restore(model: Any, saved: dict[str, Any]) -> None:
    """Gives a model what `state` has said of another.

    Args:
        model: made in the scope.
        saved: of `state`.
    """
    given = saved.get("options")
    if given is not None:
        mapping = given["device_mapping"]
        model.__dict__["_ipu_options"] = replace(
            options_of(model),
            **{name: given[name] for name in _PLAIN},
            reduction_method=GradientAccumulationReductionMethod.parse(given["reduction_method"]),
            device_mapping=None if mapping is None else tuple(mapping),
            metric_reduction=ReplicatedMetricReductionMethod.parse(given["metric_reduction"]),
        )
    kept = saved.get("stages")
    if kept is not None:
        keep(model, kept if kept == RESET else Saved(kept))
    if saved:
        changed(model)


class _CompileConfig(dict[str, Any]):
    """What `get_compile_config` gives, with a model's state beside it for a clone; a file has the dict only."""

    state: dict[str, Any]


class Savable:
    """Mixed into models that are made in the scope: their files and clones have their options and stages."""

    def save_assets(self, dir_path: str) -> None:
        """Writes the options and stages; Keras calls it.

        Args:
            dir_path: the model's directory in the archive.
        """
        if hasattr(super(), "save_assets"):
            super().save_assets(dir_path)  # type: ignore[misc]
        found = state(self)
        if found:
            with open(os.path.join(dir_path, FILE), "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)

    def load_assets(self, dir_path: str | None) -> None:
        """Reads the options and stages; Keras calls it.

        Args:
            dir_path: the model's directory in the archive, None when it has none.
        """
        if hasattr(super(), "load_assets"):
            super().load_assets(dir_path)  # type: ignore[misc]
        path = None if dir_path is None else os.path.join(dir_path, FILE)
        if path is not None and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                restore(self, json.load(file))

    def get_compile_config(self) -> dict[str, Any]:
        """As Keras's; a clone that is compiled with it gets the options and stages, too."""
        config = super().get_compile_config()  # type: ignore[misc]
        if not config:
            return config
        found = _CompileConfig(config)
        found.state = state(self)
        return found

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras's; see `get_compile_config`.

        Args:
            config: of `get_compile_config`, or of a file.
        """
        super().compile_from_config(config)  # type: ignore[misc]
        if isinstance(config, _CompileConfig):
            restore(self, config.state)
