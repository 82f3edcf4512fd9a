"""Rows 1 to 3 of docs/calibration.md: dense matrix products, and what any plan of them would cost."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.plan.product import Plan, Product, plans
from ipu_keras.target import TARGETS, Target
from tools.calibration_models import Cost, function_cost

CHIP = TARGETS["gc200"]
SIZES = {"f16": 2, "f32": 4}
NAMES = {"f16": tf.float16, "f32": tf.float32}


class Dense(NamedTuple):
    """A product [m, k] x [k, n] and its published rate in TFLOP/s."""

    row: int
    m: int
    k: int
    n: int
    dtype: str
    published: float

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.m * self.k * self.n

    def cycles(self, tflops: float) -> float:
        """Cycles of the chip at a rate."""
        return 2 * self.macs / tflops / 1e12 * CHIP.clock_hz

    def tflops(self, cycles: float) -> float:
        """The rate at a number of cycles."""
        return 2 * self.macs / cycles * CHIP.clock_hz / 1e12

    def cost(self) -> Cost:
        """Both operands on the tiles, as the first product wants them; the result stays there, too."""
        dtype = NAMES[self.dtype]
        specs = [tf.TensorSpec((self.m, self.k), dtype), tf.TensorSpec((self.k, self.n), dtype)]
        return function_cost(lambda a, b: a @ b, specs, {0: None, 1: None}, CHIP, matmul_partials="half")


DENSE = (
    Dense(1, 1024, 1024, 64, "f16", 46), Dense(1, 1024, 1024, 1024, "f16", 121), Dense(1, 1024, 1024, 8192, "f16", 206),
    Dense(2, 4096, 4096, 16, "f16", 62), Dense(2, 4096, 4096, 256, "f16", 176),
    Dense(3, 2048, 2048, 64, "f32", 34), Dense(3, 2048, 2048, 1024, "f32", 53),
)  # fmt: skip
LARGEST, NARROWEST = DENSE[2], DENSE[3]


class Least(NamedTuple):
    """The least that a product can cost: cycles of AMPs at their peak, and of the exchange."""

    compute: float
    exchange: float

    @property
    def total(self) -> float:
        """One after the other."""
        return self.compute + self.exchange


def least(p: Dense, wide: bool = False) -> Least:
    """A lower bound for all plans that cut a product into equal boxes, one a tile.

    A tile receives its pieces of both operands but what lies there already, and its share of the partial sums, at the
    exchange's rate; the larger operand at twice that, as two tiles of a pair can listen to the same data. Blocks,
    fragments, syncs and the vertices that add up cost nothing.

    Args:
        p: the product.
        wide: whether all data arrives at the doubled rate.
    """
    size, rate = SIZES[p.dtype], CHIP.exchange_bytes_per_cycle
    mac = CHIP.macs_per_cycle(p.dtype, p.dtype)
    best = Least(np.inf, np.inf)
    for depth in range(1, min(p.k, CHIP.tiles) + 1):
        a = np.arange(1, CHIP.tiles // depth + 1, dtype=float)
        b = CHIP.tiles // depth / a
        rows, inner, columns = p.m / a, p.k / depth, p.n / b
        left, right = rows * inner * (1 - 1 / b), inner * columns * (1 - 1 / a)
        sums = rows * columns * (1 - 1 / depth)
        if wide:
            moved = (left + right + sums) / 2
        else:
            moved = left + right + sums - np.maximum(left, right) / 2
        compute, exchange = rows * inner * columns / mac, moved * size / rate
        i = int((compute + exchange).argmin())
        best = min(best, Least(float(compute[i]), float(exchange[i])), key=lambda found: found.total)
    return best


def as_weights(p: Dense, load: int = 8) -> Plan:
    """The best plan that holds the first operand in the convolution units and streams the second's columns through.

    Args:
        p: the product.
        load: bytes of weights that a tile loads in a cycle.
    """
    chip: Target = dataclasses.replace(CHIP, weight_load_bytes_per_cycle=load)
    return plans(Product(p.dtype, p.dtype, 1, 1, p.k, p.m, (p.n,), (p.n,), (1,)), chip)[0]
