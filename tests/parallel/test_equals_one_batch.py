"""A pipeline trains as plain Keras does on one big batch of batch x micro-batches x replicas samples.

The gradient is the sum over replicas, and by the method SUM over micro-batches: the learning rate of SGD is divided by
that factor, Adam's epsilon is multiplied by it. Sources: api.md 1.1, 1.6, 5.2, 6.1.
"""

from __future__ import annotations

import numpy as np
import pytest

from ipu_keras import executable
from tests.parallel import pipelines as pl

FIRST, OTHERS = pl.plans()


def check(plan: pl.Plan, executions: int = 1) -> None:
    x, y = pl.normal(plan.samples, pl.FEATURES), pl.normal(plan.samples, pl.CLASSES, seed=1)
    model = pl.in_scope(plan, pl.mlp, executions=executions)
    logs = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history
    found = pl.reference(plan, pl.outside(plan, pl.mlp), x, y)
    # The host sees the last replica's.
    pl.assert_close(logs["loss"][0], np.float32(found.losses[-1]), 1e-5)
    pl.assert_weights(model, found, 1e-4 if plan.optimizer == "adam" else 1e-5)
    header = executable(model).program.header
    assert header["pipeline"]["schedule"] == plan.schedule and header["pipeline"]["stages"] == plan.stages
    assert (header["micro_batches"], header["replicas"]) == (plan.micro, plan.replicas)


@pytest.mark.sweep(turns=2)
@pytest.mark.parametrize("plan", FIRST, ids=str)
def test_each_pair_of_choices(plan):
    check(plan, executions=plan.updates if plan.micro % 2 else 1)


@pytest.mark.sweep(turns=240)
@pytest.mark.parametrize("plan", OTHERS, ids=str)
def test_all_choices(plan):
    check(plan)
