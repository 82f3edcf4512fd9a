"""Lowers what goes from chip to chip: all-reduce over replicas, a replica's number, links between chips."""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.layout import Layout, whole
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, RawStep, Var
from ipu_keras.compiler.move import plan_move
from ipu_keras.graph.ir import Node
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS
from ipu_runtime.program import COLLECTIVE

REDUCTIONS = {"add": "add", "maximum": "maximum", "minimum": "minimum", "multiply": "multiply"}
"""Opcode of a region -> operation of the kernel."""


def _group_size(node: Node) -> int | None:
    """Replicas of a group, 0 for all; None where groups are not equally large runs of consecutive replicas."""
    groups = node.attrs["groups"]
    if not groups:
        return 0
    size = len(groups[0])
    flat = [r for group in sorted(groups) for r in group]
    return size if all(len(g) == size for g in groups) and flat == list(range(len(flat))) else None


def check_all_reduce(node: Node) -> str | None:
    """Why an all-reduce cannot be lowered, or None."""
    region = node.attrs["region"]
    op = region.outputs[0].node.op if len(region.nodes) == 1 else "a larger region"
    if op not in REDUCTIONS:
        return f"with {op}"
    if _group_size(node) is None:
        return "over groups that are not equally large runs of consecutive replicas"
    return None


def lower_all_reduce(ctx: Context, node: Node) -> None:
    """A collective of each tile's block; the result lies as the operand does."""
    value = node.inputs[0]
    here = ctx.place(value)
    replicas = int(ctx.options["replicas"])
    size = _group_size(node) or replicas
    var = here.var if ctx.scope.may_overwrite(value, here) else ctx.var(here.layout, value.itemsize)
    op = OPS[REDUCTIONS[node.attrs["region"].outputs[0].node.op]]
    emit_collective(ctx, op, here, var, value.dtype, size)
    ctx.located[node.out] = Located(var, here.layout)


def emit_collective(ctx: Context, op: int, here: Located, into: Var, dtype: str, replicas: int) -> None:
    """A collective of each tile's block.

    Args:
        op: number of an operation, or `GATHER`.
        here: the value.
        into: what holds the result; lies as the value does, and may be the same.
        dtype: of the value.
        replicas: of a group.
    """
    keep = np.flatnonzero(here.layout.flat_sizes)
    if len(keep):
        tiles, n = here.layout.flat_tiles[keep], here.layout.flat_sizes[keep]
        columns = [tiles, n, Offset(here.var, tiles), Offset(into, tiles)]
        group = RawGroup(registry.COLLECTIVE, len(keep), [op, DTYPE_NUMBER[dtype], replicas], columns, ctx.rounding)
        ctx.steps.append(RawStep(COLLECTIVE, [group], [here.var], [into], ctx.label))


def lower_replica_id(ctx: Context, node: Node) -> None:
    """A constant that each replica has another value of."""
    out = node.out

    def make(layout: Layout) -> Located:
        var = ctx.var(layout, out.itemsize, "constant", pinned=True)
        ctx.constants.append((var, layout, np.zeros((), np.uint32), "number"))
        return Located(var, layout)

    ctx.lazy[out] = make
    ctx.place(out, whole(()))


def lower_link(ctx: Context, node: Node) -> None:
    """A value goes to the same tiles of the chip that the node is on."""
    value = node.inputs[0]
    here = ctx.place(value)
    var = ctx.var(here.layout, value.itemsize)
    ctx.exchange([(plan_move(here.layout, here.layout), here.var, var, value.itemsize)])
    ctx.located[node.out] = Located(var, here.layout)
