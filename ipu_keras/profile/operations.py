"""What a program computes: operations of its vertices, from their own rows, and the least time that a chip needs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.elementwise_model import Map
from ipu_runtime.codelets.model import product
from ipu_runtime.opcodes import DTYPES
from ipu_runtime.program import GroupView


class Work(NamedTuple):
    """Operations of a group's vertices.

    Attributes:
        flops: two for each multiply-accumulate of products and convolutions of floats.
        peak_cycles: cycles of one tile that computed those at the peak of its AMP.
        elementwise: operations of element-wise vertices, and of products of integers, which have no AMP.
    """

    flops: int = 0
    peak_cycles: float = 0.0
    elementwise: int = 0


def target_of(header: dict[str, Any]) -> Target:
    """The chip that a program was compiled for; what an older file does not say has its default."""
    known = {field.name for field in dataclasses.fields(Target)}
    return Target(**{name: value for name, value in header["target"].items() if name in known})


def work_of(g: GroupView, target: Target) -> Work:
    """Operations of a group of vertices.

    Args:
        g: the group.
        target: the chip.

    Source: hardware.md 1.1 for the peak, by the dtypes of the operands and of the partial sums.
    """
    model = registry.MODELS[g.codelet]
    if isinstance(model, Map):
        return Work(elementwise=model.operations(g))
    if g.codelet == registry.DOT:
        dtype, partials = g.params[0], g.params[4]
        sizes = [g.col(i) for i in range(1, 5)]
    elif g.codelet == registry.CONV:
        # Taps that fall on padding are multiplied too: the chip's vertex has no other way.
        nd = int(g.params[0])
        dtype, partials = g.params[1], g.params[4 + 4 * nd]
        sizes = [*(g.col(i) for i in range(1, 5)), *(g.col(5 + 4 * d + i) for d in range(nd) for i in (1, 2))]
    elif g.codelet == registry.QUARTER_PRODUCT:
        nd = int(g.params[0])
        sizes = [*(g.col(i) for i in range(1, 5)), *(g.col(5 + 4 * d + i) for d in range(nd) for i in (1, 2))]
        macs = int(np.sum(product(sizes, g.rows)))
        return Work(2 * macs, macs / target.macs_per_cycle("f8", "f16"))
    elif g.codelet == registry.SPARSE:
        # Only what is not zero; of a pattern that is not known yet, its capacity.
        dtype, partials = g.params[1], g.params[2]
        sizes = [g.col(1), g.col(2), g.params[3:4], g.params[3:4]]
    else:
        return Work()
    macs = int(np.sum(product(sizes, g.rows)))
    name = DTYPES[int(dtype)].name
    if name not in ("f16", "f32"):
        return Work(elementwise=2 * macs)
    return Work(2 * macs, macs / target.macs_per_cycle(name, DTYPES[int(partials)].name))
