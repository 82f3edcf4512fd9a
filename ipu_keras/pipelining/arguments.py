"""Rules of the arguments of `pipelining_ops.pipeline`: each function refuses what cannot be, or gives what is meant.

Exceptions are of classes that AutoGraph passes on as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ipu_keras.errors import ConfigError
from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from ipu_keras.keras.steps import replica_count
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError, NotOnIPUError
from ipu_keras.pipelining import PipelineSchedule, PipelineStageOptions, RecomputationMode

_INT32 = 2**31 - 1


def checked_stages(stages: Any) -> list[Callable[..., Any]]:
    """The stages: two or more functions."""
    if not isinstance(stages, (list, tuple)):
        raise ArgumentTypeError("computational_stages must be a list or tuple of functions.")
    if len(stages) < 2:
        raise ArgumentError(f"A pipeline has two or more computational_stages; there are {len(stages)}.")
    for stage in stages:
        if isinstance(stage, (list, tuple)):
            raise NotOnIPUError(
                "A pipeline stage of several functions that run at once is not there; write one function that "
                "calls them."
            )
        if not callable(stage):
            raise ArgumentTypeError(f"computational_stages holds {stage!r}, which is no function.")
    return list(stages)


def checked_count(count: Any) -> int:
    """The number of micro-batches, known before the program runs."""
    known = tf.get_static_value(count) if tf.is_tensor(count) else count
    if count is not None and known is None:
        raise NotOnIPUError(
            "gradient_accumulation_count is a tensor that is known only when the program runs; give a number."
        )
    if known is None or isinstance(known, bool) or not hasattr(known, "__index__") or not 0 < int(known) <= _INT32:
        raise ArgumentError(
            f"gradient_accumulation_count is {count!r}; it must be a number of micro-batches, from 1 to {_INT32}."
        )
    return int(known)


def checked_repeats(count: Any) -> int:
    """The number of weight updates."""
    if isinstance(count, bool) or not hasattr(count, "__index__") or int(count) < 1:
        raise ArgumentError(f"repeat_count is {count!r}; it must be a number of weight updates, 1 or more.")
    return int(count)


def checked_mapping(mapping: Any, stages: int) -> tuple[int, ...]:
    """The IPU of each stage; empty for stage k on IPU k."""
    if mapping is None:
        return ()
    if not isinstance(mapping, (list, tuple)):
        raise ArgumentTypeError(f"device_mapping is {mapping!r}; it must be a list or tuple of numbers of IPUs.")
    if len(mapping) != stages:
        raise ArgumentError(f"Each stage must be mapped to an IPU: {len(mapping)} entries for {stages} stages.")
    if any(isinstance(device, bool) or not hasattr(device, "__index__") or int(device) < 0 for device in mapping):
        raise ArgumentError(f"device_mapping is {list(mapping)}; it must hold numbers of IPUs, from 0.")
    return tuple(int(device) for device in mapping)


def check_recomputation(schedule: PipelineSchedule, mode: RecomputationMode | None) -> None:
    """Refuses a mode that a schedule has not: api.md 6."""
    mixed, first = RecomputationMode.RecomputeAndBackpropagateInterleaved, RecomputationMode.RecomputeThenBackpropagate
    wrong = {PipelineSchedule.Interleaved: mixed, PipelineSchedule.Sequential: first}.get(schedule)
    if mode is not None and mode is wrong:
        raise tf.errors.UnimplementedError(
            None, None, f"The schedule {schedule.name} does not recompute by {mode.name}; use RecomputationMode.Auto."
        )


def interleaved(schedule: PipelineSchedule, mode: RecomputationMode | None) -> bool:
    """Whether activations are recomputed just before they are wanted: api.md 6."""
    if mode is None or mode is RecomputationMode.Auto:
        return schedule is PipelineSchedule.Sequential
    return mode is RecomputationMode.RecomputeAndBackpropagateInterleaved


def checked_replicas(ipus: int, stages: int, devices: tuple[int, ...]) -> int:
    """How many of the pipeline the device holds."""
    try:
        return replica_count("the pipeline", ipus, stages=stages, device_mapping=devices or None)
    except ConfigError as error:
        raise ArgumentError(str(error)) from None


def checked_method(method: Any) -> GradientAccumulationReductionMethod:
    """How gradients are summed."""
    try:
        return GradientAccumulationReductionMethod.parse(method)
    except ConfigError as error:
        raise ArgumentError(str(error)) from None


def check_member(what: str, value: Any, kind: type) -> None:
    """Refuses a value of another class; None passes."""
    if value is not None and not isinstance(value, kind):
        raise ArgumentTypeError(f"{what} is {value!r}; it must be a {kind.__name__}.")


def check_stage_options(what: str, given: Any, stages: int) -> None:
    """Refuses what is not one PipelineStageOptions for each stage; None passes."""
    if given is None:
        return
    if not isinstance(given, (list, tuple)) or not all(isinstance(o, PipelineStageOptions) for o in given):
        raise ArgumentTypeError(f"{what} must be a list of PipelineStageOptions.")
    if len(given) != stages:
        raise ArgumentError(f"{what} has {len(given)} entries for {stages} stages.")


def refuse(**given: Any) -> None:
    """Refuses arguments that are not there, by name: those whose value is true."""
    asked = [name for name, value in given.items() if value]
    if asked:
        raise NotImplementedError(f"pipelining_ops.pipeline does not have {', '.join(asked)}; leave it at its default.")


def check_queues(infeed: Any, outfeed: Any, optimizer: Any, outfeed_loss: bool, accumulate: bool, mask: Any) -> None:
    """Refuses things without a queue of the right kind, and choices of outputs that exclude each other."""
    check_member("infeed_queue", infeed, IPUInfeedQueue)
    check_member("outfeed_queue", outfeed, IPUOutfeedQueue)
    if outfeed_loss and optimizer is None:
        raise ArgumentError("outfeed_loss needs an optimizer_function, which gives the loss.")
    if mask is not None and (outfeed_loss or optimizer is None):
        raise ArgumentError("outfeed_mask needs an optimizer_function, and excludes outfeed_loss.")
    if accumulate and (outfeed is None or outfeed._mode is not IPUOutfeedMode.ALL):
        raise ArgumentError("accumulate_outfeed needs an outfeed_queue in IPUOutfeedMode.ALL.")
    if outfeed_loss and outfeed is None:
        raise ArgumentError("The loss is to be put into a queue, and no outfeed_queue has been provided.")
