"""What a call of fit, evaluate or predict asks of a model whose gradients accumulate or that has pipeline stages."""

from __future__ import annotations

import logging
from typing import Any

import keras

from ipu_keras.errors import ConfigError, UnsupportedError
from ipu_keras.keras.options import options_of
from ipu_keras.keras.pipeline import adapter
from ipu_keras.keras.pipeline.query import leaf_layers, stages
from ipu_keras.keras.refusals import ModeError
from ipu_keras.pipelining import PipelineStageOptions, PipelineTypeError

__all__ = ["check_call"]

logger = logging.getLogger("ipu_keras")
_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


def check_call(model: Any, call: str) -> int:
    """Checks a model before a call runs.

    Args:
        model: made in the scope.
        call: ``"fit"``, ``"evaluate"`` or ``"predict"``.

    Returns:
        the number of pipeline stages, 0 without.

    Raises:
        ModeError: a function is overridden that a pipeline replaces; a RuntimeError.
        ConfigError: a pipeline is trained whose accumulation is not set, a device_mapping that has not one entry for
            each stage, an optimizer that overrides minimize, options for another number of stages; a ValueError.
        PipelineTypeError: options of stages that are none; a TypeError.
        UnsupportedError: continuous weight updates; a NotImplementedError.
        StageError, ConfigError: of `stages`.
    """
    count = stages(model, again=True)
    options = options_of(model)
    if count:
        _check_overrides(model, call)
        mapping = options.device_mapping
        if mapping is not None and len(mapping) != count:
            raise ConfigError(
                f"Model {model.name!r}: device_mapping {list(mapping)} has {len(mapping)} entries, and the model has "
                f"{count} pipeline stages. Each stage must be mapped to an IPU: set_pipelining_options(device_mapping="
                "...)."
            )
        _check_stage_options(model, options.pipeline_kwargs, count)
    if call != "fit":
        return count
    if not count and options.pipeline_accumulation_steps is not None:
        logger.warning(
            "Model %s has no pipeline stages, so set_pipelining_options has no effect: weights are updated after %d "
            "step(s). Give its layers stages, or use set_gradient_accumulation_options.",
            model.name,
            options.accumulation(False),
        )
    if count and options.pipeline_accumulation_steps is None:
        raise ConfigError(
            f"Model {model.name!r} has {count} pipeline stages, and training it needs gradient accumulation: call "
            "set_pipelining_options(gradient_accumulation_steps_per_replica=...) before fit."
        )
    if count or options.accumulation(False) > 1:
        _check_optimizer(model)
    if count:
        _warn_of_batch_norm(model)
    return count


def _check_overrides(model: Any, call: str) -> None:
    base = model._ipu_base
    step = _STEPS[call]
    if _own(base, step):
        raise ModeError(
            f"The function `{step}` of model {model.name!r} is overridden by its class, and a pipeline is made of the "
            "model's layers, its loss and its optimizer. Take the stages away (reset_pipeline_stage_assignment), or "
            "train with pipelining_ops.pipeline."
        )
    if adapter.kind_of(model) != "model" and _own(base, "call"):
        raise ModeError(
            f"The function `call` of model {model.name!r} is overridden by its class, and the stages are of the layers "
            "of its graph. Subclass keras.Model with a `call` of its own, or take the stages away."
        )


def _check_stage_options(model: Any, kwargs: dict[str, Any], count: int) -> None:
    where = f"Model {model.name!r}, set_pipelining_options"
    for direction in ("forward", "backward"):
        name = f"{direction}_propagation_stages_poplar_options"
        given = kwargs.get(name)
        if given is None:
            continue
        if not isinstance(given, (list, tuple)) or not all(isinstance(o, PipelineStageOptions) for o in given):
            raise PipelineTypeError(f"{where}: {name} is {given!r}; it must be a list of PipelineStageOptions.")
        if len(given) != count:
            raise ConfigError(
                f"{where}: {name} has {len(given)} entries, and the model has {count} pipeline stages. Give one for "
                "each."
            )
    update = kwargs.get("weight_update_poplar_options")
    if update is not None and not isinstance(update, PipelineStageOptions):
        raise PipelineTypeError(
            f"{where}: weight_update_poplar_options is {update!r}; it must be PipelineStageOptions."
        )
    if kwargs.get("continuous_weight_updates"):
        raise UnsupportedError(
            f"{where}: continuous_weight_updates=True is not supported: all mini-batches of a weight update use the "
            "same weights. Leave it out."
        )


def _own(base: type, name: str) -> bool:
    """Whether a class of the user's, and none of Keras's, has this function."""
    owner = next((c for c in base.__mro__ if name in vars(c)), None)
    return owner is not None and not owner.__module__.startswith(("keras.", "keras_hub.", "ipu_keras."))


def _check_optimizer(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and _own(type(optimizer), "minimize"):
        raise ConfigError(
            f"Model {model.name!r}: an optimizer must not override OptimizerV2.minimize, and "
            f"{type(optimizer).__name__} does: with gradient accumulation or pipelining the device applies gradients "
            "once for several steps. Override apply_gradients or update_step instead."
        )


def _warn_of_batch_norm(model: Any) -> None:
    for layer in leaf_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and 0 < layer.momentum < 1 and layer.trainable:
            logger.warning(
                "Model %s: layer %s is a BatchNormalization with momentum %g in a training pipeline: on a real IPU its "
                "moving mean and variance are not updated properly (here they are). A normalization without moving "
                "statistics, such as GroupNormalization, is right on both.",
                model.name,
                layer.name,
                layer.momentum,
            )
