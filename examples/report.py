"""What the examples print about a trained model: does it fit, how fast would the chip be, how slow is the emulation."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import ipu_keras


def profile_of(model: Any, kind: str = "train") -> Any:
    """Cycles and memory of the step that a model made in the scope ran last.

    Args:
        model: after `fit`, `evaluate` or `predict`.
        kind: "train", "test" or "predict".
    """
    return ipu_keras.executable(model, kind).profile()


def step_seconds(models: list[Any], data: Any, steps: int) -> list[float]:
    """Median seconds of `train_on_batch` of each model, in turn; the first call, which may compile, is left out.

    Args:
        models: compiled models.
        data: a dataset of batches.
        steps: how many are timed.
    """
    seconds: list[list[float]] = [[] for _ in models]
    for x, y in itertools.islice(iter(data.repeat()), steps + 1):
        for model, times in zip(models, seconds):
            start = time.perf_counter()
            model.train_on_batch(x, y)
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]


def describe(model: Any, batch: int, what: str, kind: str = "train") -> None:
    """Prints the memory and the estimated speed of a step.

    Args:
        model: after the step ran.
        batch: samples a step.
        what: the samples' name in the plural, such as "images".
        kind: "train", "test" or "predict".
    """
    profile = profile_of(model, kind)
    target = profile.program.header["target"]
    memory = profile.memory
    name = f"{kind.capitalize()} step"
    print(
        f"{name:12}{profile.cycles:,} cycles on the {target['name']}, an estimate: "
        f"{batch / profile.seconds:,.0f} {what}/s\n"
        f"{'':12}fullest tile {memory.max_tile_bytes / 1024:.1f} of {memory.limit / 1024:.0f} KiB, "
        f"all {target['tiles']:,} tiles {memory.total_bytes / 1e6:.1f} MB"
    )


def compare(model: Any, twin: Any, data: Any, steps: int) -> None:
    """Prints a train step's time in the emulation and in plain Keras on this machine, measured in turn.

    Args:
        model: the model made in the scope.
        twin: the same model made outside of it.
        data: a dataset of batches.
        steps: how many are timed of each.
    """
    ours, plain = step_seconds([model, twin], data, steps)
    print(
        f"Emulation   {1e3 * ours:,.1f} ms a train step, {ours / plain:.1f} times plain Keras here "
        f"({1e3 * plain:,.1f} ms; median of {steps})"
    )
