"""The bits of a result do not depend on the host's threads, nor on how an epoch is divided into executions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.parallel import pipelines as pl
from tests.sweep import in_turns

PLAN = pl.Plan("Grouped", 2, 8, 2, optimizer="adam", updates=3)


@functools.cache
def trained(threads: int, executions: int = 1, plan: pl.Plan = PLAN) -> list[bytes]:
    """Weights, losses and predictions, to the bit."""
    x, y = pl.normal(plan.samples, pl.FEATURES), pl.normal(plan.samples, pl.CLASSES, seed=1)
    model = pl.in_scope(plan, pl.mlp, executions=executions, threads=threads)
    logs = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history["loss"]
    predicted = model.predict(x, batch_size=plan.batch, verbose=0)
    found = [*model.get_weights(), np.asarray(logs), predicted]
    assert all(np.isfinite(a).all() for a in found)
    return [a.tobytes() for a in found]


@pytest.mark.parametrize("schedule", in_turns(["Grouped", "Interleaved", "Sequential"], 3, always=["Grouped"]))
def test_threads(schedule):
    plan = pl.Plan(schedule, 2, 8, 2, "running_mean", "adam", updates=3)
    assert trained(1, plan=plan) == trained(2, plan=plan)


def test_again():
    first = trained(2)
    trained.cache_clear()
    assert trained(2) == first


def test_executions():
    """Three updates in one execution, or in an execution each."""
    assert trained(2, executions=1) == trained(2, executions=3)
