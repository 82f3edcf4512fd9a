"""Random models in random stages on random chips train as plain Keras does."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest

from tests.parallel import pipelines as pl

SIDE = 4
"""All values are squares, so that each layer takes each."""

ONE = {
    "dense": lambda: keras.layers.Dense(SIDE, activation="tanh"),
    "convolution": lambda: keras.layers.Conv1D(SIDE, 3, padding="same", activation="tanh"),
    "transpose": lambda: keras.layers.Permute((2, 1)),
    "reshape": lambda: keras.layers.Reshape((SIDE // 2, 2, SIDE)),
    "norm": lambda: keras.layers.LayerNormalization(),
    "loop": lambda: keras.layers.LSTM(SIDE, return_sequences=True),
    "attention": lambda: keras.layers.MultiHeadAttention(2, 2),
    "nothing": lambda: keras.layers.Activation("linear"),
}
TWO = {"add": keras.layers.Add, "multiply": keras.layers.Multiply, "subtract": keras.layers.Subtract}
WEIGHTS = [8, 3, 3, 3, 2, 1, 1, 2]


class Made:
    """A model of a seed, and its plan; `build` makes the same model again and again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        r = random.Random(seed)
        schedule, stages = r.choice(["Grouped", "Grouped", "Interleaved", "Sequential"]), r.choice([2, 3, 4])
        mapping = list(range(stages))
        if schedule == "Interleaved" or r.random() < 0.5:
            r.shuffle(mapping)
        else:
            chips = r.randint(1, stages)
            mapping = [*range(chips), *(r.randrange(chips) for _ in range(stages - chips))]
            r.shuffle(mapping)
        replicas = r.choice([1, 1, 2])
        micro = pl.rows(schedule, stages) * r.choice([1, 2])
        self.plan = pl.Plan(
            schedule, stages, micro, replicas, r.choice(["sum", "mean"]), r.choice(["sgd", "momentum"]),
            mapping=tuple(mapping),
        )  # fmt: skip
        self.text: list[str] = []

    def build(self, stages: int, stage: pl.Stage) -> keras.Model:
        r = random.Random(self.seed + 1)
        self.text = []
        inputs = [keras.Input((SIDE, SIDE)) for _ in range(r.choice([1, 2]))]
        values = list(inputs)
        for k in range(stages):
            with stage(k):
                values.append(self._dense(values[-1], k))
                for _ in range(r.randint(1, 3)):
                    values.append(self._layer(r, values, k))
        with stage(stages - 1):
            used = [*inputs[1:], values[-1]]
            last = keras.layers.Dense(SIDE)(used[0] if len(used) == 1 else keras.layers.Add()(used))
        early = r.choice(values[len(inputs) :])
        return keras.Model(
            inputs if len(inputs) > 1 else inputs[0],
            [last, early] if r.random() < 0.4 and early is not values[-1] else last,
            name="m",
        )

    def _dense(self, value, k):
        self.text.append(f"{k}: dense")
        return keras.layers.Dense(SIDE, activation="tanh")(value)

    def _layer(self, r, values, k):
        """A layer on a late value, or on two, the second of any stage before."""
        value = r.choice(values[-2:])
        if r.random() < 0.35:
            name = r.choice(list(TWO))
            self.text.append(f"{k}: {name}")
            return TWO[name]()([value, r.choice(values)])
        (name,) = r.choices(list(ONE), WEIGHTS)
        self.text.append(f"{k}: {name}")
        if name == "attention":
            return ONE[name]()(value, r.choice(values))
        found = ONE[name]()(value)
        return keras.layers.Reshape((SIDE, SIDE))(found) if name == "reshape" else found


@pytest.mark.sweep(turns=40)
@pytest.mark.parametrize("seed", range(200))
def test_random_model(seed):
    made = Made(seed)
    plan = made.plan
    model = pl.in_scope(plan, made.build)
    x = [pl.normal(plan.samples, SIDE, SIDE, seed=n) for n in range(len(model.inputs))]
    y = [pl.normal(plan.samples, SIDE, SIDE, seed=10 + n) for n in range(len(model.outputs))]
    x, y = (a if len(a) > 1 else a[0] for a in (x, y))
    logs = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history
    found = pl.reference(plan, pl.outside(plan, made.build), x, y)
    where = f"{plan}, chips {plan.mapping}: {'; '.join(made.text)}"
    try:
        pl.assert_close(logs["loss"][0], np.float32(found.losses[-1]), 1e-5)
        pl.assert_weights(model, found, 2e-5)
    except AssertionError as error:
        raise AssertionError(where) from error
