"""Small models in stages, and what plain Keras makes of the same data in one big batch."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ipu_keras import IPUStrategy
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.keras.pipeline import PipelineStage
from ipu_keras.pipelining import PipelineSchedule

FEATURES, CLASSES, BATCH = 6, 3, 2
Stage = Callable[[int], AbstractContextManager[Any]]
Arrays = Any
"""An array, or a list or dict of them."""


@contextlib.contextmanager
def recomputing(ipus: int) -> Iterator[None]:
    """Backward stages work activations out again inside."""
    config = IPUConfig()
    config.auto_select_ipus = ipus
    config.allow_recompute = True
    config.configure_ipu_system()
    try:
        yield
    finally:
        reset_ipu_configuration()


def rows(schedule: str, stages: int, training: bool = True) -> int:
    """Micro-batches in flight: api.md 6."""
    if schedule == "Sequential":
        return 1
    return 2 * stages if schedule == "Grouped" and training else stages


def chips(stages: int, replicas: int = 1) -> int:
    """A replica occupies a power of two of chips: api.md 5.1."""
    occupied = 1
    while occupied < stages:
        occupied *= 2
    return occupied * replicas


def no_stage(number: int) -> AbstractContextManager[Any]:
    """In place of `PipelineStage`, for the same model without stages."""
    del number
    return contextlib.nullcontext()


def mlp(stages: int, stage: Stage) -> keras.Model:
    """A layer in each stage, and a second one in the last."""
    x = inputs = keras.Input((FEATURES,))
    for k in range(stages):
        with stage(k):
            x = keras.layers.Dense(5 + k, activation="tanh")(x)
            if k == stages - 1:
                x = keras.layers.Dense(CLASSES)(x)
    return keras.Model(inputs, x, name="m")


def optimizer(name: str, scale: float = 1.0) -> keras.optimizers.Optimizer:
    """An optimizer for gradients that are `scale` times the mean over all samples of an update."""
    if name == "adam":
        return keras.optimizers.Adam(0.01, epsilon=1e-3 * scale)
    return keras.optimizers.SGD(0.1 / scale, momentum=0.9 if name == "momentum" else 0.0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mapped(data: Arrays, function: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """The same nesting with a function of each array."""
    if isinstance(data, dict):
        return {name: function(a) for name, a in data.items()}
    return [function(a) for a in data] if isinstance(data, list) else function(data)


@dataclass(frozen=True)
class Plan:
    """How a model is trained: a number of weight updates, each over `micro` batches of each replica."""

    schedule: str = "Grouped"
    stages: int = 2
    micro: int = 4
    replicas: int = 1
    method: str = "sum"
    optimizer: str = "sgd"
    updates: int = 2
    batch: int = BATCH
    mapping: tuple[int, ...] | None = None

    @property
    def samples(self) -> int:
        return self.batch * self.micro * self.replicas * self.updates

    @property
    def scale(self) -> int:
        """Gradients are summed over replicas and, by the method SUM, over micro-batches: api.md 1.1."""
        return self.replicas * (self.micro if self.method == "sum" else 1)

    def __str__(self) -> str:
        return (
            f"{self.schedule}-{self.stages}-stages-{self.micro}-{self.method}-{self.replicas}-replicas-{self.optimizer}"
        )


def options(plan: Plan) -> dict[str, Any]:
    """Further arguments of `set_pipelining_options`."""
    found: dict[str, Any] = {"pipeline_schedule": PipelineSchedule[plan.schedule]}
    return found if plan.mapping is None else found | {"device_mapping": list(plan.mapping)}


def in_scope(
    plan: Plan, build: Callable[[int, Stage], keras.Model], loss: Any = "mse", *, pipelined: bool = True,
    executions: int = 1, **of_strategy: Any,
) -> keras.Model:  # fmt: skip
    """A compiled model with a plan's options; without stages it accumulates gradients.

    Args:
        plan: how it is trained.
        build: gives the model, of a number of stages and the context of each.
        loss: of `compile`.
        pipelined: whether it has stages.
        executions: of the updates of an epoch.
        **of_strategy: arguments of the strategy.
    """
    shards = (max(plan.mapping) + 1 if plan.mapping else plan.stages) if pipelined else 1
    strategy = IPUStrategy(strict=True, ipus=chips(shards, plan.replicas), **of_strategy)
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = build(plan.stages, PipelineStage if pipelined else no_stage)
        steps = plan.micro * plan.updates // executions
        model.compile(optimizer(plan.optimizer, plan.scale), loss, steps_per_execution=steps)
        method = {"gradient_accumulation_reduction_method": plan.method}
        if pipelined:
            model.set_pipelining_options(plan.micro, **method, **options(plan))
        else:
            model.set_gradient_accumulation_options(plan.micro, **method)
    return model


def outside(plan: Plan, build: Callable[[int, Stage], keras.Model], loss: Any = "mse") -> keras.Model:
    """The same model of plain Keras, with the plain optimizer."""
    keras.utils.set_random_seed(3)
    model = build(plan.stages, no_stage)
    model.compile(optimizer(plan.optimizer), loss, run_eagerly=True)
    return model


@dataclass
class Reference:
    """What plain Keras finds.

    Attributes:
        initial, weights: before and after.
        losses: of each replica's samples, the mean over the updates.
    """

    initial: list[np.ndarray]
    weights: list[np.ndarray]
    losses: np.ndarray


def reference(plan: Plan, model: keras.Model, x: Arrays, y: Arrays, weight: np.ndarray | None = None) -> Reference:
    """Trains a model of plain Keras on one big batch an update.

    Args:
        plan: says how large the big batch is, and which of its batches are for which replica: b for b mod R.
        model: of `outside`.
        x, y, weight: all data.
    """
    big = plan.batch * plan.micro * plan.replicas
    initial = [w.copy() for w in model.get_weights()]
    losses = []
    for update in range(plan.updates):
        samples = np.arange(big * update, big * (update + 1)).reshape(plan.micro, plan.replicas, plan.batch)

        def take(index: np.ndarray) -> tuple[Arrays, Arrays, Any]:
            chosen = index.ravel()
            parts = [mapped(a, lambda v: v[chosen]) for a in (x, y)]
            return parts[0], parts[1], None if weight is None else weight[chosen]

        if plan.replicas > 1:
            of_replicas = [take(samples[:, r]) for r in range(plan.replicas)]
            losses.append([_loss(model, *part) for part in of_replicas])
        result = model.train_on_batch(*take(samples.swapaxes(0, 1).reshape(-1)), return_dict=True)
        model.reset_metrics()
        if plan.replicas == 1:
            losses.append([result["loss"]])
    return Reference(initial, model.get_weights(), np.mean(np.asarray(losses, np.float64), 0))


def _loss(model: keras.Model, x: Arrays, y: Arrays, weight: np.ndarray | None) -> float:
    """The loss of some samples with the weights as they are."""
    found = model.test_on_batch(x, y, weight, return_dict=True)["loss"]
    model.reset_metrics()
    return float(found)


def assert_close(found: Any, expected: Any, relative: float) -> None:
    """Differences are small against the largest number; a NaN or infinity is a failure on either side.

    What is zero but for rounding (the gradient of a bias that a softmax does not see) may be off by some 5e-9.

    Args:
        found: array.
        expected: array of the same shape and dtype.
        relative: the largest difference allowed, of the largest magnitude expected.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.isfinite(found).all() and np.isfinite(expected).all()
    error, scale = np.abs(found - expected).max(initial=0), np.abs(expected).max(initial=0)
    assert error <= relative * max(scale, 5e-4), f"differs by {error:.3g} of {scale:.3g}"


def assert_weights(model: keras.Model, found: Reference, relative: float = 1e-5) -> None:
    """A model's weights are a reference's, and have moved by far more than the tolerance."""
    ours = model.get_weights()
    assert len(ours) == len(found.weights)
    moved = 0.0
    for a, b, before in zip(ours, found.weights, found.initial, strict=True):
        assert_close(a, b, relative)
        moved = max(moved, float(np.abs(b - before).max(initial=0)) / max(float(np.abs(b).max(initial=0)), 1e-30))
    assert moved > 100 * relative


def pairwise(*levels: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows of the product in which each pair of levels of any two factors is: few of them, always the same.

    Example:
        >>> len(list(pairwise((0, 1), (0, 1), (0, 1)))) <= 6
        True
    """
    product = list(itertools.product(*levels))
    random.Random(1).shuffle(product)

    def pairs(row: tuple[Any, ...]) -> set[Any]:
        return {((i, row[i]), (j, row[j])) for i, j in itertools.combinations(range(len(row)), 2)}

    wanted = set().union(*map(pairs, product))
    while wanted:
        best = max(product, key=lambda row: len(pairs(row) & wanted))
        wanted -= pairs(best)
        yield best


@functools.cache
def plans() -> tuple[list[Plan], list[Plan]]:
    """All plans of the table: those that cover each pair of choices, and the others."""
    schedules, methods = tuple(s.name for s in PipelineSchedule), ("sum", "mean", "running_mean")
    levels = (schedules, (2, 3, 4), (1, 2, 3), methods, (1, 2, 4), ("sgd", "momentum", "adam"))

    def plan(row: tuple[Any, ...]) -> Plan:
        schedule, stages, times, method, replicas, name = row
        micro = rows(schedule, stages) * times + (schedule == "Sequential") * 2  # not only multiples of anything
        return Plan(schedule, stages, micro, replicas, method, name, updates=5 if name == "adam" else 2)

    first = list(pairwise(*levels))
    return [plan(r) for r in first], [plan(r) for r in itertools.product(*levels) if r not in set(first)]
