"""fp16 beside fp32 on the emulated tiles (in the columns of XLA): a train step of one BERT in two ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Figures, figures
from benchmarks.pipelines import bert, compiled, in_turn, sentences

STEPS, BATCH, LENGTH = 4, 8, 64
SIZE = {"vocabulary_size": 1000, "num_layers": 2, "num_heads": 4, "hidden_dim": 256, "intermediate_dim": 1024}
HALF = {"matmul_partials": "half"}


def _beside(executions: int, dtypes: tuple[str, str], options: tuple[dict[str, Any], dict[str, Any]]) -> Figures:
    import ipu_keras as ipu

    x, y = sentences(STEPS * BATCH, LENGTH, 1000)
    models = []
    for dtype, option in zip(dtypes, options, strict=True):
        with ipu.IPUStrategy(target="gc200", options=option).scope():
            models.append(compiled(bert(SIZE, LENGTH, dtype), STEPS))
    times, peaks = in_turn(models, [BATCH, BATCH], x, y, executions)
    found = figures(times[0], times[1], STEPS, ipu.executable(models[0]).profile(), (peaks[0], peaks[1]))
    ratio = statistics.median(a / b for a, b in zip(times[0][1:], times[1][1:], strict=True))
    cycles = [ipu.executable(model).profile().cycles for model in models]
    said = [f"{d} {o or ''}".strip() for d, o in zip(dtypes, options, strict=True)]
    note = f"{said[0]} emulates {ratio:.2f} times as long as {said[1]}; {cycles[0]:,} cycles on the chip, {cycles[1]:,}"
    return {**found, "note": note}


def half(executions: int) -> Figures:
    """fp16 with fp32 partial sums beside fp32."""
    return _beside(executions, ("float16", "float32"), ({}, {}))


def half_partials(executions: int) -> Figures:
    """fp16 with fp16 partial sums beside fp32."""
    return _beside(executions, ("float16", "float32"), (HALF, {}))


def stochastic(executions: int) -> Figures:
    """fp16 with stochastic rounding beside fp16 without."""
    return _beside(executions, ("float16", "float16"), ({"stochastic_rounding": "on"}, {}))


CASES: dict[str, Callable[[int], Figures]] = {"half": half, "half_partials": half_partials, "stochastic": stochastic}
