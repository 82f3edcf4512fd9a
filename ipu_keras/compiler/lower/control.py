"""Lowers while and conditional: the bodies' steps stand in the program, between labels, branches and jumps.

A loop's states have homes for the whole loop, chosen by the body's first use of them; what the loop only reads stays
where it is, and is brought into a wanted layout once, before the loop. Both sides of a conditional copy their results
to variables of the conditional's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ipu_keras.compiler.layout import Layout, whole
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.elementwise import emit_map
from ipu_keras.compiler.lower.parts import Located, Mark, Offset, RawGroup, RawStep
from ipu_keras.compiler.lower.scope import Scope, write_back
from ipu_keras.compiler.move import plan_move
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.program import BRANCH, JUMP, LABEL

Lower = Callable[[Context, Node], None]


def _label(ctx: Context) -> tuple[RawStep, Mark]:
    mark = Mark()
    return RawStep(LABEL, [], [], [], ctx.label, mark=mark), mark


def _branch(ctx: Context, flag: Located, target: Mark) -> RawStep:
    """Go to `target` where the flag is 0."""
    tiles = flag.layout.flat_tiles
    group = RawGroup(registry.BRANCH, 1, [target], [tiles, Offset(flag.var, tiles)])
    return RawStep(BRANCH, [group], [flag.var], [], ctx.label)


def _jump(ctx: Context, target: Mark) -> RawStep:
    return RawStep(JUMP, [RawGroup(registry.BRANCH, 1, [target], [[0], [0]])], [], [], ctx.label)


def invariants(body: Graph) -> set[int]:
    """Places of the state that the body hands on unchanged."""
    return {i for i, (p, o) in enumerate(zip(body.params, body.outputs, strict=True)) if p is o}


def lower_while(ctx: Context, node: Node, lower: Lower) -> None:
    """label; condition; branch out; body; jump to the label; label."""
    body, cond = node.attrs["regions"]
    fixed = invariants(body)
    outer = ctx.steps
    into_outer: Callable[[], AbstractContextManager[None]] = lambda: ctx.into(outer)  # noqa: E731
    label = ctx.label

    def outside(value: Value) -> Callable[[Layout], Located]:
        """An unchanged state takes its home outside the loop."""

        def make(layout: Layout) -> Located:
            with into_outer():
                return ctx.place(value, layout)

        return make

    def home(value: Value) -> Callable[[Layout], Located]:
        def make(layout: Layout) -> Located:
            return Located(ctx.var(layout, value.itemsize), layout)

        return make

    updates: dict[Value, Value] = {}
    for i, (param, twin) in enumerate(zip(body.params, cond.params, strict=True)):
        if i in fixed:
            ctx.lazy[param] = outside(node.inputs[i])
            ctx.invariant[param] = outer
            ctx.invariant[twin] = outer
        else:
            ctx.lazy[param] = home(param)
            updates.setdefault(body.outputs[i], param)
        ctx.lazy[twin] = lambda layout, p=param: ctx.place(p, layout)  # type: ignore[misc]
    body_steps: list[RawStep] = []
    with ctx.into(body_steps):
        Scope(ctx, body, updates, lower).run()
        write_back(
            ctx, [(p, o) for i, (p, o) in enumerate(zip(body.params, body.outputs, strict=True)) if i not in fixed]
        )
    cond_steps: list[RawStep] = []
    with ctx.into(cond_steps):
        Scope(ctx, cond, {}, lower).run()
        flag = ctx.need(cond.outputs[0], whole(()))
    ctx.label = label
    for i, param in enumerate(body.params):
        if i not in fixed:
            to = ctx.place(param)
            here = ctx.place(node.inputs[i], to.layout)
            ctx.exchange([(plan_move(to.layout, here.layout), here.var, to.var, param.itemsize)])
    begin, begin_mark = _label(ctx)
    end, end_mark = _label(ctx)
    begin.loop = (end_mark, node.attrs.get("trips"))
    ctx.steps += [begin, *cond_steps, _branch(ctx, flag, end_mark), *body_steps, _jump(ctx, begin_mark), end]
    for i, value in enumerate(node.results):
        if i in fixed:
            source = node.inputs[i]
            found = ctx.find(source)
            if found is not None:
                ctx.located[value] = found
            else:
                ctx.lazy[value] = lambda layout, s=source: ctx.place(s, layout)  # type: ignore[misc]
        else:
            ctx.located[value] = ctx.place(body.params[i])


def check_conditional(node: Node) -> str | None:
    """Why a conditional cannot be lowered, or None."""
    return None if len(node.attrs.get("regions", ())) == 2 else "other than two branches"


def lower_conditional(ctx: Context, node: Node, lower: Lower) -> None:
    """branch to the second side; first side; jump to the end; label; second side; label."""
    first, second = node.attrs["regions"]
    label = ctx.label
    choice, *rest = node.inputs
    for value in rest:
        ctx.place(value)  # a home that is taken inside one side would not be there on the other
    here = ctx.need(choice, whole(()))
    if choice.dtype != "pred":
        # Branch 0 is taken where the index is 0, the last one for everything else.
        var = ctx.var(here.layout, 1)
        zero = node.attrs["zero"]
        emit_map(
            ctx,
            here.layout,
            (("compare-eq", "s32", "pred", (0, -1)),),
            (("s32", zero),),
            (1,),
            [choice],
            [here],
            [[]],
            [var],
        )
        here = Located(var, here.layout)
    results: list[Located] = []
    sides: list[list[RawStep]] = []
    at = 0
    for side in (first, second):
        for param, value in zip(side.params, rest[at : at + len(side.params)], strict=True):
            ctx.located[param] = ctx.place(value)
        at += len(side.params)
        steps: list[RawStep] = []
        with ctx.into(steps):
            Scope(ctx, side, {}, lower).run()
            for i, value in enumerate(side.outputs):
                found = ctx.place(value)
                if side is first:
                    layout = found.layout if found.layout.reps == 1 else ctx.default(value)
                    results.append(Located(ctx.var(layout, value.itemsize), layout))
                to = results[i]
                ctx.exchange([(plan_move(to.layout, found.layout), found.var, to.var, value.itemsize)])
        sides.append(steps)
    ctx.label = label
    otherwise, otherwise_mark = _label(ctx)
    end, end_mark = _label(ctx)
    otherwise.choice = end_mark
    ctx.steps += [_branch(ctx, here, otherwise_mark), *sides[0], _jump(ctx, end_mark), otherwise, *sides[1], end]
    for value, found in zip(node.results, results, strict=True):
        ctx.located[value] = found
