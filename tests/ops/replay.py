"""Sums of products with fp16 partial sums, replayed in the order of a plan."""

import numpy as np

from ipu_keras.compiler.layout import even
from ipu_keras.compiler.plan.reduction import runs


def blocks(products, scale=0):
    """The fp16 partial sum of a tile: one rounding for each block.

    Args:
        products: exact sums of the blocks, in order.
        scale: power of two by which each is multiplied.
    """
    total = np.float16(0)
    for each in products:
        total = (total.astype(np.float64) + each * 2.0**scale).astype(np.float16)
    return total


def added(partials, stages):
    """fp16 partial sums of tiles added in stages; each sum is exact and rounded once."""
    while stages:
        starts, stops = even(len(partials), int(runs(len(partials), stages)))
        partials = [
            np.sum([p.astype(np.float64) for p in partials[a:b]], 0).astype(np.float16)
            for a, b in zip(starts, stops, strict=True)
        ]
        stages -= 1
    (total,) = partials
    return total
