"""What every benchmark does: times both sides in turn, and makes the figures of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import memory
from ipu_runtime.program import REPEAT, TIMED

Figures = dict[str, Any]


def supersteps_of(profile: Any) -> int:
    """Supersteps that one iteration runs: compute sets, exchanges and streams, those in a loop once for each trip."""
    kinds = [step.kind for step in profile.steps]
    start = kinds.index(REPEAT) if REPEAT in kinds else 0
    return sum(n for kind, n in zip(kinds[start:], profile.times[start:], strict=True) if kind in TIMED)


def figures(
    ours: list[float],
    xlas: list[float],
    steps_per_execution: int,
    profile: Any,
    peaks: tuple[int | None, int | None],
) -> Figures:
    """The common figures from seconds of executions; the first execution of each list holds the compilation."""
    our_step, xla_step = (statistics.median(t[1:]) / steps_per_execution for t in (ours, xlas))
    our_compile, xla_compile = (max(0.0, t[0] - statistics.median(t[1:])) for t in (ours, xlas))
    supersteps = supersteps_of(profile)
    return {
        "emulated_step_seconds": our_step,
        "xla_step_seconds": xla_step,
        "step_ratio": our_step / xla_step,
        "compile_seconds": our_compile,
        "xla_compile_seconds": xla_compile,
        "compile_ratio": our_compile / xla_compile if xla_compile else None,
        "peak_bytes": peaks[0],
        "xla_peak_bytes": peaks[1],
        "supersteps": supersteps,
        "microseconds_per_superstep": 1e6 * our_step / supersteps,
        "cycles": int(profile.cycles),
        "executions": len(ours) - 1,
        "steps_per_execution": steps_per_execution,
    }


def training(make_model: Callable[..., Any], data: Any, steps_per_execution: int, executions: int) -> Figures:
    """Times the train step of a Keras model in the scope against its twin with jit_compile=True."""
    from ipu_keras import IPUStrategy, executable
    from ipu_keras.cli.demo import execution_times

    with IPUStrategy().scope():
        model = make_model(steps_per_execution=steps_per_execution)
    twin = make_model(steps_per_execution=steps_per_execution, jit_compile=True)
    twin.set_weights(model.get_weights())
    with memory.peak() as our_peak:
        (ours,) = execution_times([model], data, 0)
    with memory.peak() as xla_peak:
        (xlas,) = execution_times([twin], data, 0)
    ours_more, xlas_more = execution_times([model, twin], data, executions)
    return figures(
        [*ours, *ours_more[1:]],
        [*xlas, *xlas_more[1:]],
        steps_per_execution,
        executable(model).profile(),
        (our_peak[0], xla_peak[0]),
    )


def predicting(make_model: Callable[..., Any], x: Any, batch: int, executions: int) -> Figures:
    """Times `predict` of a Keras model in the scope, one execution each, against its twin with jit_compile=True.

    Args:
        make_model: takes arguments of `compile`.
        x: inputs.
        batch: samples a step.
        executions: how many are timed of each side after the first.
    """
    from ipu_keras import IPUStrategy, executable

    steps_per_execution = len(x) // batch
    with IPUStrategy().scope():
        model = make_model(steps_per_execution=steps_per_execution)
    twin = make_model(steps_per_execution=steps_per_execution, jit_compile=True)
    twin.set_weights(model.get_weights())
    times: list[list[float]] = [[], []]
    peaks = []

    def execution(i: int) -> None:
        start = time.perf_counter()
        (model, twin)[i].predict(x, batch_size=batch, verbose=0)
        times[i].append(time.perf_counter() - start)

    for i in range(2):
        with memory.peak() as peak:
            execution(i)
        peaks.append(peak[0])
    for _ in range(executions):
        for i in range(2):
            execution(i)
    profile = executable(model, "predict").profile()
    return figures(times[0], times[1], steps_per_execution, profile, (peaks[0], peaks[1]))
