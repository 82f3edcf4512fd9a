"""Splits of a [B, M, K] x [B, K, N] product over the tiles: batch, rows, columns and depth, by estimated cycles.

The search is over all combinations of a thinned list of split counts for each dimension, priced by array arithmetic
with the same vertex formulas that time the program (hardware.md 4: inputs exchanged, vertex, partial sums exchanged
and reduced). Memory bound: inputs, weights and partial sums of a tile within availableMemoryProportion of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipu_keras.target import Target
from ipu_runtime.codelets.dot_model import amp_cycles, transpose_cycles, vector_cycles
from ipu_runtime.codelets.reduce_model import reduce_add_cycles


@dataclass(frozen=True)
class DotPlan:
    """Parts of each dimension, and what the planner expects.

    Attributes:
        parts: (batch, m, n, k).
        cycles: estimated cycles of exchange, vertices and reduction.
        tile_bytes: temporary bytes of the fullest tile.
    """

    parts: tuple[int, int, int, int]
    cycles: int
    tile_bytes: int


def grains(dtype: str) -> tuple[int, int]:
    """(output, input) channels of an AMP block: pieces are padded to them. Source: hardware.md 1.1, fp32 partials."""
    return {"f16": (8, 16), "f32": (16, 8)}.get(dtype, (1, 1))


def split_counts(size: int, most: int, grain: int = 1) -> np.ndarray:
    """Split counts worth trying: those that change the largest piece in grains, thinned to a geometric ladder."""
    units = max(1, -(-size // grain))
    most = max(1, min(units, most))
    pieces = np.unique(-(-units // np.arange(1, most + 1)))
    counts = np.unique(-(-units // pieces))
    if len(counts) > 28:
        ladder = np.unique(np.round(np.geomspace(1, counts[-1], 28)).astype(int))
        counts = np.unique(counts[np.searchsorted(counts, ladder).clip(0, len(counts) - 1)])
    return counts


def piece(size: int, parts: np.ndarray, grain: int) -> np.ndarray:
    """Length of the longest of `parts` pieces made of whole grains."""
    units = max(1, -(-size // grain))
    return np.minimum(-(-units // parts) * grain, max(size, 1))


@lru_cache(maxsize=4096)
def plan_dot(
    batch: int,
    m: int,
    n: int,
    k: int,
    dtype: str,
    target: Target,
    proportion: float = 0.6,
    turned: tuple[bool, bool] = (False, False),
) -> DotPlan:
    """The cheapest split.

    Args:
        batch, m, n, k: sizes of the product.
        dtype: of the operands.
        target: the chip.
        proportion: availableMemoryProportion.
        turned: whether the operands lie as [k, m] and [n, k], and are transposed on the tiles first.

    Returns:
        The plan; if nothing fits the proportion, the one that needs the least memory.
    """
    size = {"f16": 2, "f32": 4, "s8": 1, "u8": 1}.get(dtype, 4)
    tiles = target.tiles
    n_grain, k_grain = grains(dtype)
    gb, gm, gn, gk = (
        a.reshape(-1)
        for a in np.meshgrid(
            split_counts(batch, tiles),
            split_counts(m, tiles),
            split_counts(n, tiles, n_grain),
            split_counts(k, tiles, k_grain),
            indexing="ij",
        )
    )
    fits = gb * gm * gn * gk <= tiles
    gb, gm, gn, gk = gb[fits], gm[fits], gn[fits], gk[fits]
    b1, m1, n1, k1 = -(-batch // gb), -(-m // gm), piece(n, gn, n_grain), piece(k, gk, k_grain)
    # Inputs that lie on the tile already are discounted (hardware.md 4); every contiguous run is one fragment.
    runs_a, runs_b = b1 * np.where(gk > 1, m1, 1), b1 * np.where(gn > 1, k1, 1)
    per_byte = 1 / target.exchange_bytes_per_cycle
    exchange = (1 - 1 / (2 * gn)) * (b1 * m1 * k1 * size * per_byte + target.fragment_cycles * runs_a)
    exchange = exchange + (1 - 1 / (gb * gm)) * (b1 * k1 * n1 * size * per_byte + target.fragment_cycles * runs_b)
    if dtype in ("f32", "f16"):
        vertex = amp_cycles(m1, k1, n1, dtype, target.weight_load_bytes_per_cycle)
        vertex = vertex + (transpose_cycles(k1, m1, dtype) if turned[0] else 0)
        vertex = b1 * (vertex + (transpose_cycles(n1, k1, dtype) if turned[1] else 0))
    else:
        vertex = b1 * vector_cycles(m1, n1, k1)
    outs = b1 * m1 * n1
    mine = -(-outs // gk)
    reduce = np.where(
        gk > 1,
        mine * gk * 4 * per_byte
        + target.fragment_cycles * gk
        + target.sync_cycles * 2
        + target.exchange_fixed_cycles
        + reduce_add_cycles(gk, mine),
        0,
    )
    cycles = exchange + vertex + reduce + target.sync_cycles + target.exchange_fixed_cycles
    memory = b1 * (m1 * k1 + k1 * n1) * size + outs * 4 * np.where(gk > 1, 2, 1)
    within = memory <= proportion * target.bytes_per_tile
    score = np.where(within, cycles, np.inf) if within.any() else memory.astype(float)
    best = int(np.lexsort((gk, score))[0])
    parts = (int(gb[best]), int(gm[best]), int(gn[best]), int(gk[best]))
    return DotPlan(parts, int(cycles[best]), int(memory[best]))


def spread_parts(dims: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Divide a split of several dimensions' product among them, outermost first."""
    out = []
    for n in dims:
        p = max(1, min(n, parts))
        p = -(-n // -(-n // p)) if n else 1
        out.append(p)
        parts = max(1, parts // p)
    return tuple(out)
