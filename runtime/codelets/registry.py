"""The codelets, by number: the model of each (operands, cycles, memory) beside the kernel of the same family.

A model is an object with
    name                    of the vertex type in reports
    source                  of the cycle formula; "" for one of our own making, which is unvalidated
    code_bytes              of the codelet on a tile that uses it
    operands(g)             -> [(byte offset, bytes, mode)], arrays over the rows; mode "r", "w" or "rw"
    cycles(g, target)       -> cycles of each row's vertex, by the formulas of the chip's own estimators
    state_bytes(g)          -> bytes of vertex state of each row
    work(g)                 -> rough nanoseconds of the whole group on a host core; only steers threading
and, where only a part of the cycles may be without a source,
    unsourced_cycles(g, target) -> that part of each row's cycles, or None for none of any
"""

from __future__ import annotations

from typing import Any

from ipu_runtime.codelets import (
    branch_model,
    collective_model,
    control_model,
    conv_model,
    copy_model,
    dot_model,
    dynamic_model,
    elementwise_model,
    fifo_model,
    gather_model,
    quarter_model,
    random_model,
    reduce_model,
    sort_model,
    sparse_model,
    window_model,
)
from ipu_runtime.codelets.model import CodeletModel, Ints
from ipu_runtime.program import GroupView

(
    COPY,
    MAP,
    REDUCE,
    VARIADIC,
    DOT,
    CONV,
    WINDOW,
    SELECT_SCATTER,
    GATHER,
    SCATTER,
    PHILOX,
    PHILOX_NEXT,
    DYNAMIC,
    BRANCH,
    SORT,
    FIFO,
    CONTROL,
    COLLECTIVE,
    QUARTER_CAST,
    QUARTER_PRODUCT,
    SPARSE,
) = range(21)

MODELS: tuple[CodeletModel, ...] = (
    copy_model.Copy(),
    elementwise_model.Map(),
    reduce_model.Reduce(),
    reduce_model.Variadic(),
    dot_model.Dot(),
    conv_model.Conv(),
    window_model.Window(),
    window_model.SelectScatter(),
    gather_model.Gather(),
    gather_model.Scatter(),
    random_model.Philox(),
    random_model.PhiloxNext(),
    dynamic_model.Dynamic(),
    branch_model.Branch(),
    sort_model.Sort(),
    fifo_model.Fifo(),
    control_model.Control(),
    collective_model.Collective(),
    quarter_model.QuarterCast(),
    quarter_model.QuarterProduct(),
    sparse_model.Sparse(),
)


ROUNDS = frozenset(
    {
        MAP,
        REDUCE,
        VARIADIC,
        DOT,
        CONV,
        WINDOW,
        SELECT_SCATTER,
        SCATTER,
        COLLECTIVE,
        QUARTER_CAST,
        QUARTER_PRODUCT,
        SPARSE,
    }
)
"""Codelets whose fp16 results are rounded; all others copy bits, or compare."""


def unsourced(g: GroupView, target: Any, cycles: Ints) -> Ints | None:
    """The part of a group's cycles that comes from a formula of our own, which nothing published backs.

    Args:
        g: a group of vertices.
        target: the chip's numbers, by attribute.
        cycles: the group's cycles, one for each row.

    Returns:
        Cycles for each row, or None where every figure has a source.
    """
    model: Any = MODELS[g.codelet]
    if hasattr(model, "unsourced_cycles"):
        part: Ints | None = model.unsourced_cycles(g, target)
        return part
    return None if model.source else cycles
