"""Products that a program has several times are code once: a function, called with its operands in one place.

A product's exchanges are most of a program's code, and equal layers have equal ones. The function's variables hold the
operands and the result of one call after the other: each call copies its operands there, runs the same groups of
vertices and copies, and takes the result away. That is more cycles and less memory, as in the vendor's compiler
(`optimizations.enable_graph_outlining`).

In the program a call is a run of steps that have the groups of the first call's steps.

That is done where a program does not fit otherwise, and to what a person has marked by `outlined_function` always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import NOWHERE, Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawStep, Var
from ipu_keras.graph.ir import Node, Value

OUTLINED = ("dot", "convolution")
"""Opcodes of what can be a function."""

CALLED = "IPUCALLED.0."
"""Name scope of what a person has marked; gradients are named after what they are of."""

TOLD = ("available_memory_proportion", "matmul_partials", "convolution_partials")
"""Options that a stage can have of its own."""


@dataclass
class Function:
    """A product's steps on variables of its own.

    Attributes:
        operands: where a call puts each operand, equal ones once.
        result: where it leaves the result.
        steps: what it does; every call has these groups.
        products: the plans that were chosen, by number.
        vars: its variables.
        calls: how many there are.
        into: the steps that the first call is among.
        only: of the first call, its own steps.
        moved: of the first call, what is copied: the copy's step, and the variables that could do without it: whose
            place is taken, and by which.
    """

    operands: list[Located]
    result: Located
    steps: list[RawStep]
    products: list[int]
    vars: list[Var]
    calls: int = 0
    into: list[RawStep] = field(default_factory=list)
    only: list[RawStep] = field(default_factory=list)
    moved: list[tuple[RawStep, Var, Var]] = field(default_factory=list)


def repeated(nodes: Iterable[Node], everywhere: bool, least: int = 2) -> set[Any]:
    """What kinds of products become functions: those that there are several of.

    Args:
        nodes: of a program.
        everywhere: whether products that nobody has marked do, too.
        least: so many of a kind.
    """
    able = (node for node in nodes if everywhere or is_marked(node))
    kinds = Counter(kind for node in able if (kind := kind_of(node)) is not None)
    return {kind for kind, n in kinds.items() if n >= least}


def is_marked(node: Node) -> bool:
    """Whether a node is of a function that a person wants as a function."""
    return CALLED in node.where


def is_called(ctx: Context, node: Node) -> bool:
    """Whether a node is lowered as a call. A loop's body is code once as it is."""
    able = node.op in OUTLINED and ctx.repeated and ctx.scope.graph is ctx.graph
    return bool(able and (ctx.options["outline"] or is_marked(node)) and kind_of(node) in ctx.repeated)


def kind_of(node: Node) -> Any:
    """Equal for nodes that do the same to arrays of the same shapes and dtypes; None for what cannot be a function."""
    if node.op not in OUTLINED or len(node.inputs) != 2 or not _plain(node.attrs):
        return None
    types = tuple((v.shape, v.dtype) for v in (*node.inputs, *node.results))
    return node.op, types, node.inputs[0] is node.inputs[1], repr(sorted(node.attrs.items()))


def _plain(value: Any) -> bool:
    """Whether the value's `repr` says all of it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(each) for key, each in value.items())
    if isinstance(value, (tuple, list)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def call(ctx: Context, node: Node, lower: Callable[[Context, Node], None]) -> None:
    """Lower a product as a call of its function, which is made at the first.

    Args:
        ctx: where to.
        node: the product.
        lower: lowers one by its operation's rule.
    """
    wanted = ctx.scope.wanted(node.out)
    homes = [ctx.find(value) for value in node.inputs]
    key = (
        kind_of(node),
        tuple(home.layout.form if home is not None else None for home in homes),
        wanted.key if wanted is not None else None,
        ctx.chip,
        ctx.rounding,
        tuple(ctx.options[name] for name in TOLD),
    )
    function = ctx.functions.get(key)
    if function is None:
        function = ctx.functions[key] = _function(ctx, node, wanted, lower)
    ctx.calls += 1
    function.calls += 1
    before = len(ctx.steps)
    moved: list[tuple[RawStep, Var, Var]] = []
    for value, to in zip(dict.fromkeys(node.inputs), function.operands, strict=True):
        here = ctx.place(value, to.layout)
        at = len(ctx.steps)
        ctx.move(here, to.layout, value.itemsize, into=to.var)
        if here.layout.key == to.layout.key:
            moved += [(step, to.var, here.var) for step in ctx.steps[at:]]
    own = [replace(step, label=ctx.label) for step in function.steps]
    ctx.steps += own
    layout, at = function.result.layout, len(ctx.steps)
    var = ctx.var(layout, node.out.itemsize)
    ctx.located[node.out] = ctx.move(function.result, layout, node.out.itemsize, into=var)
    moved += [(step, function.result.var, var) for step in ctx.steps[at:]]
    for step in ctx.steps[before:]:
        step.call = ctx.calls
    ctx.products += [[ctx.label, number] for number in function.products]
    if function.calls == 1:
        function.into, function.only, function.moved = ctx.steps, own, moved


def undo_single_calls(ctx: Context) -> None:
    """A function that is called once is none: its steps have the operands and the result where they lie.

    They stay alone all the same: joined with others, the operands of several products would be in memory at a time. To
    be called when all is lowered, while the lists of steps are still those that calls were added to.
    """
    for function in ctx.functions.values():
        if function.calls != 1:
            continue
        gone = {id(step) for step, _, _ in function.moved}
        function.into[:] = [step for step in function.into if id(step) not in gone]
        instead = {taken: by for _, taken, by in function.moved}
        for step in function.only:
            step.call = 0
            step.reads = [instead.get(var, var) for var in step.reads]
            step.writes = [instead.get(var, var) for var in step.writes]
            for group in step.groups:
                group.columns = [
                    c._replace(var=instead.get(c.var, c.var)) if isinstance(c, Offset) else c for c in group.columns
                ]
        for var in function.vars:
            var.lives = None


def _function(
    ctx: Context, node: Node, wanted: Layout | None, lower: Callable[[Context, Node], None]
) -> Function:  # fmt: skip
    """Lower a product on variables that lie as its operands do; one without a home gets it as the product wants it."""
    first_var, first_product = len(ctx.vars), len(ctx.products)
    stands: dict[Value, Value] = {}
    for value in node.inputs:
        if value not in stands:
            stands[value] = stand = Node("parameter", [], [(value.shape, value.dtype)]).out
            here = ctx.find(value)
            if here is None:
                ctx.lazy[stand] = lambda layout, size=value.itemsize: Located(ctx.var(layout, size), layout)  # type: ignore[misc]
            else:
                ctx.located[stand] = Located(ctx.var(here.layout, value.itemsize), here.layout)
    types = [(node.out.shape, node.out.dtype)]
    twin = Node(node.op, [stands[v] for v in node.inputs], types, node.attrs, node.where, node.name)
    if wanted is not None:
        goal = Node("parameter", [], types).out
        ctx.located[goal], ctx.hints[twin.out] = Located(NOWHERE, wanted), goal
    steps: list[RawStep] = []
    with ctx.into(steps):
        lower(ctx, twin)
    operands = [ctx.place(stand) for stand in stands.values()]
    result = ctx.located[twin.out]
    own = [var for var in ctx.vars[first_var:] if not var.pinned]
    for var in own:
        var.lives = []
    for step in steps:
        step.shared = True
    numbers = [number for _, number in ctx.products[first_product:]]
    del ctx.products[first_product:]
    return Function(operands, result, steps, numbers, own)
