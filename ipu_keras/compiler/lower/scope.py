"""One graph's lowering: when each value is used last, what may be overwritten, and whose home a result belongs to.

The entry computation has a scope, and so has each body of a loop or branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located
from ipu_keras.compiler.move import plan_move
from ipu_keras.errors import GraphError, IPUError, PlanError
from ipu_keras.graph.ir import Graph, Node, Value

_ALIASES = {"reshape", "transpose"}

NEAR = 24
"""Nodes between two uses of a value in one layout over which a copy of it is kept."""


class Scope:
    """Lowers the nodes of a graph into a context.

    Args:
        ctx: where steps and locations go.
        graph: what to lower; its parameters are located or lazy already.
        updates: output value -> the parameter whose home takes it, for states of a step or of a loop.
        lower: lowers one node.
    """

    def __init__(
        self, ctx: Context, graph: Graph, updates: dict[Value, Value], lower: Callable[[Context, Node], None]
    ) -> None:
        self.ctx, self.graph, self.updates, self._lower = ctx, graph, updates, lower
        self.place_of = {n: i for i, n in enumerate(graph.nodes)}
        self.users = graph.users()
        self.now = -1
        self.last_use = self._last_uses()
        self.states = set(updates.values())
        self._copies: dict[Value, tuple[int, Located]] = {}
        self._hint()

    def _root(self, value: Value) -> Value:
        while value.node.op in _ALIASES:
            value = value.node.inputs[0]
        return value

    def _last_uses(self) -> dict[Value, int]:
        last: dict[Value, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if node.op not in _ALIASES:
                for value in node.inputs:
                    last[self._root(value)] = i
        for value in self.graph.outputs:
            last[self._root(value)] = len(self.graph.nodes)
        return last

    def _hint(self) -> None:
        """A gradient is wanted where the weight that it updates lives."""
        for node in self.graph.nodes:
            if node.op != "map":
                continue
            params = [self.updates[v] for v in node.results if v in self.updates]
            if not params:
                continue
            best = max(params, key=lambda p: p.size)
            for value, dims in zip(node.inputs, node.attrs["dims"], strict=True):
                if len(dims) != len(node.results[0].shape):
                    continue
                while True:
                    self.ctx.hints.setdefault(value, best)
                    if value.node.op not in _ALIASES:
                        break
                    value = value.node.inputs[0]

    def run(self, nodes: list[Node] | None = None) -> None:
        """Lower nodes (all, if not given), in order."""
        outer, self.ctx.scope = self.ctx.scope, self
        for node in self.graph.nodes if nodes is None else nodes:
            self.now = self.place_of[node]
            self.ctx.label = self.ctx.at(self.ctx.label_of(node))
            try:
                self._lower(self.ctx, node)
            except PlanError as error:
                raise PlanError(f"{self._place(node)}: {error}") from error
            except IPUError:
                raise
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                # A module with shapes that do not fit each other, or a bug: say where, keep the cause.
                raise GraphError(f"{self._place(node)} cannot be lowered: {error!r}") from error
        self.ctx.scope = outer

    def _place(self, node: Node) -> str:
        layer, _, where = [*self.ctx.label_of(node).split("|", 2), ""][:3]
        return f"{node.op} ({f'layer {layer}, {where}' if layer else where})"

    def uses(self, value: Value) -> int:
        """How often a value is used."""
        return len(self.users.get(value, ())) + self.graph.outputs.count(value)

    def has_copy(self, value: Value, layout: Layout) -> bool:
        """Whether a copy that a node just before had serves again."""
        made = self._copies.get(value)
        return made is not None and made[1].layout.key == layout.key and self.now - made[0] <= NEAR

    def copy(self, value: Value, here: Located, layout: Layout) -> Located:
        """The value moved to another layout; a copy that a node just before had (queries and keys) serves again."""
        made = self._copies.get(value)
        if made is not None and self.has_copy(value, layout):
            self.ctx.held.add(made[1].var)
            return made[1]
        found = self.ctx.move(here, layout, value.itemsize)
        self._copies[value] = (self.now, found)
        return found

    def wanted(self, value: Value) -> Layout | None:
        """Where a result should lie: as the state that it updates, or as what it is combined with next."""
        hint = self.ctx.hints.get(value)
        if hint is not None:
            here = self.ctx.find(hint)
            return here.layout if here is not None else None
        users = self.users.get(value, ())
        while len(users) == 1 and users[0].op == "reshape":
            value = users[0].out
            users = self.users.get(value, ())
        for user in users:
            if user.op != "map":
                continue
            shape = user.results[0].shape
            for other, dims in zip(user.inputs, user.attrs["dims"], strict=True):
                here = self.ctx.find(other)
                if other is not value and len(dims) == len(shape) and here is not None and here.layout.reps == 1:
                    return here.layout
        return None

    def state_home(self, node: Node) -> Layout | None:
        """Home of the largest state whose new value this node makes."""
        best: Located | None = None
        for value in node.results:
            param = self.updates.get(value)
            here = self.ctx.find(param) if param is not None else None
            if here is not None and (best is None or here.layout.max_block > best.layout.max_block):
                best = here
        return best.layout if best is not None else None

    def in_place(self, value: Value, layout: Layout) -> Located | None:
        """A state's home if `value` is its new value and may overwrite it now."""
        param = self.updates.get(value)
        if param is None or self.last_use.get(param, -1) > self.now:
            return None
        here = self.ctx.place(param, layout)
        if here.layout.key != layout.key or here.var in self.ctx.held:
            return None
        return here

    def may_overwrite(self, value: Value, here: Located) -> bool:
        """Whether a value's variable is free to change: nobody reads the value after the node that is lowered now."""
        root = self._root(value)
        if self.last_use.get(root, -1) > self.now or here.var in self.ctx.held or here.var.category == "constant":
            return False
        if self.ctx.located.get(value, here).var is not here.var:
            return True  # a copy made for this node
        return root in self.states if root.node.op == "parameter" else root.node in self.place_of


def write_back(ctx: Context, pairs: list[tuple[Value, Value]], kept: Sequence[Value] = ()) -> None:
    """Copy each new value that was not made in its state's home to it.

    Args:
        ctx: the context.
        pairs: (state, new value).
        kept: values that are wanted afterwards, too; one that is a state's old value in another shape goes aside.
    """
    homes = {ctx.place(state).var for state, _ in pairs}
    pending: list[tuple[Located, Located, int]] = []
    for state, new in pairs:
        home = ctx.place(state)
        here = ctx.place(new, home.layout)
        if here.var is home.var and here.layout.key == home.layout.key:
            continue
        if here.var in homes:
            # Another state's old value: take it aside before that state is overwritten.
            here = ctx.move(here, home.layout, state.itemsize)
        pending.append((here, home, state.itemsize))
    overwritten = {home.var for _, home, _ in pending}
    for value in kept:
        here = ctx.place(value)
        if here.var in overwritten:
            aside = ctx.var(here.layout, value.itemsize)
            ctx.located[value] = ctx.move(here, here.layout, value.itemsize, into=aside)
    for here, home, itemsize in pending:
        ctx.exchange([(plan_move(home.layout, here.layout), here.var, home.var, itemsize)])
