"""Chooses among the planner's best plans by what bringing the operands from where they lie really costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.plan.product import Plan
from ipu_keras.compiler.plan.traffic import score
from ipu_keras.graph.ir import Node, Value

Extra = TypeVar("Extra")


def choose(
    ctx: Context, node: Node, options: Sequence[tuple[Plan, list[tuple[Value, Layout]], Extra]]
) -> tuple[Plan, list[tuple[Value, Layout]], Extra]:
    """The cheapest of some plans, with its exchange as it is; the others are kept for who asks why.

    Args:
        options: plans, the layout that each wants its operands in, and what belongs to it.
    """
    fitting = [each for each in options if each[0].fits] or list(options)
    # Equal layers choose alike: the operands lie in the same form, if on other tiles.
    homes = [ctx.find(value) for value, _ in options[0][1]]
    serial = {"serial": node.attrs["serial"]} if "serial" in node.attrs else {}
    forms = tuple(h.layout.form if h is not None else None for h in homes)
    key = (node.op, *serial.values(), tuple(each[0] for each in fitting), forms)
    if key not in ctx.chosen:
        # What is at hand in one lowering need not be in another: then the choice is this one's own.
        common = not any(ctx.at_hand(value, layout) for _, wanted, _ in fitting for value, layout in wanted)
        found = ctx.choices.plans.get(key) if common else None
        if found is None:
            order = _by_cost(ctx, fitting)
            described = {"op": node.op, "plans": [plan.to_dict() for _, plan in order[:3]], **serial}
            found = order[0][0], described
            if common:
                ctx.choices.plans[key] = found
        ctx.chosen[key] = found[0], len(ctx.plans)
        ctx.plans.append(found[1])
    best, number = ctx.chosen[key]
    ctx.products.append([ctx.label, number])
    return fitting[best]


def _by_cost(ctx: Context, options: Sequence[tuple[Plan, list[tuple[Value, Layout]], Extra]]) -> list[tuple[int, Plan]]:
    """Numbers of the plans that were priced, cheapest first; those that need the least memory where none fits."""
    if not options[0][0].fits:
        order = sorted(range(len(options)), key=lambda i: options[i][0].tile_bytes)
        return [(i, replace(options[i][0], exchange=ctx.price(options[i][1]).cycles)) for i in order[:3]]
    fixed = [float(score(plan.vertex + plan.reduce, plan.reduce_code, ctx.target)) for plan, _, _ in options]
    least = float("inf")
    priced: list[tuple[float, int, Plan]] = []
    for i in sorted(range(len(options)), key=fixed.__getitem__):
        if fixed[i] >= least:
            break  # nor can any after it be cheaper
        plan, wanted, _ = options[i]
        cost = ctx.price(wanted)
        total = fixed[i] + float(score(*cost, ctx.target))
        priced.append((total, i, replace(plan, exchange=cost.cycles)))
        least = min(least, total)
    return [(i, plan) for _, i, plan in sorted(priced, key=lambda each: each[0])]
