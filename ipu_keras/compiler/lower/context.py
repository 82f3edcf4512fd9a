"""What lowering writes into, and where each value lies now.

Values are *located*: a tile variable and the layout of the value in it. Parameters, constants and random bits have no
home until someone needs them, and then take the layout that is wanted: weights lie as their first consumer reads them,
an optimizer's state as the weight that it updates with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipu_keras.compiler.homes import groups_of, partition
from ipu_keras.compiler.layout import Layout, common_view, spread, squeeze
from ipu_keras.compiler.lower.parts import ALIGN, Located, RawGroup, RawStep, Var, copy_group
from ipu_keras.compiler.move import Line, Rows, plan_move
from ipu_keras.compiler.plan.traffic import Cost, exchange_cost, score, total_cost
from ipu_keras.errors import IPUError
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.copy_model import exchange_code
from ipu_runtime.program import COMPUTE, EXCHANGE
from ipu_runtime.rounding import NEAREST

MANY = 4
"""Repetitions from which on a value is put together before it is broadcast."""

ROUTES = 64
"""Routes that are kept: a product prices several, and equal layers ask for the same again."""

SENDERS = 8
"""Tiles that a block is put together on before it is broadcast: each then sends an eighth of what a tile receives."""


NOWHERE = Var(np.zeros(0, np.int64), np.zeros(0, np.int64), "", 0)
"""Stands for the variable of a value without a home, while its moves are priced."""


@dataclass
class Choices:
    """What was found cheapest. Lowerings of a module at one price of exchange code share it.

    Attributes:
        plans: by what a product asks for, the number of the cheapest plan and how reports describe the best few.
        gathers: by the forms of two layouts, whether a value is put together on its way from one to the other.
    """

    plans: dict[Any, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    gathers: dict[tuple[Any, ...], bool] = field(default_factory=dict)


class CodeOverflow(IPUError):
    """What is lowered so far has more code than a tile can execute."""


@dataclass
class Context:
    """Lowering's state; see the module's text.

    Attributes:
        target: the chip.
        graph: what is being lowered.
        label_of: gives the label (layer, phase, op) of a node.
        chip: on which chip new variables lie. Tiles are numbered from 0 on each; only the assembler numbers them all.
        rounding: of the fp16 results of new vertices (`compiler.rounding`).
        code_limit: bytes of code on a tile at which lowering stops; None: it goes on.
        code: by chip and tile, bytes of exchange code so far; counted where there is a limit.
        repeated: kinds of products that become functions (`lower.outline`); `functions`: those there are; `calls` of
            them so far.
    """

    target: Target
    graph: Graph
    label_of: Callable[[Node], str]
    options: dict[str, Any] = field(default_factory=dict)
    steps: list[RawStep] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    located: dict[Value, Located] = field(default_factory=dict)
    lazy: dict[Value, Callable[[Layout], Located]] = field(default_factory=dict)
    hints: dict[Value, Value] = field(default_factory=dict)
    constants: list[tuple[Var, Layout, np.ndarray, str | None]] = field(default_factory=list)
    label: int = 0
    chip: int = 0
    rounding: int = NEAREST
    turn: int = 0
    vars: list[Var] = field(default_factory=list)
    scope: Any = None
    held: set[Var] = field(default_factory=set)
    invariant: dict[Value, list[RawStep]] = field(default_factory=dict)
    hoisted: dict[tuple[Any, ...], Located] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    products: list[list[int]] = field(default_factory=list)
    slots: int = 0
    queues: list[dict[str, Any]] = field(default_factory=list)
    queue_counts: dict[str, int | None] = field(default_factory=dict)
    chosen: dict[Any, tuple[int, int]] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)
    sparse_plans: dict[int, Any] = field(default_factory=dict)
    code_limit: int | None = None
    code: dict[int, Any] = field(default_factory=dict)
    repeated: set[Any] = field(default_factory=set)
    functions: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    calls: int = 0
    _routes: dict[tuple[Any, ...], list[tuple[Rows, Layout]]] = field(default_factory=dict)

    # ---- labels and variables ----

    def at(self, text: str) -> int:
        """The number of a label; new steps and variables get the current one."""
        return self.labels.setdefault(text, len(self.labels))

    def var(self, layout: Layout, itemsize: int, category: str = "activation", pinned: bool = False) -> Var:
        """A variable that holds one block of `layout` on each of its tiles."""
        tiles, sizes = layout.flat_tiles, layout.flat_sizes * itemsize
        var = Var(tiles, -(-sizes // ALIGN) * ALIGN, category, self.label, pinned, self.chip)
        self.vars.append(var)
        return var

    def new_slot(self) -> int:
        """The number of a new host array."""
        self.slots += 1
        return self.slots - 1

    # ---- where values are ----

    def find(self, value: Value) -> Located | None:
        """Where a value lies, or None while it has no home."""
        return self.located.get(value)

    def place(self, value: Value, want: Layout | None = None) -> Located:
        """Where a value lies; one without a home takes `want` (or the default spread)."""
        found = self.located.get(value)
        if found is None:
            if want is None:
                want = self.default(value)
            self.turn += 1
            found = self.lazy[value](partition(want, self.turn))
            self.located[value] = found
        return found

    def default(self, value: Value) -> Layout:
        """The default mapping of a value that nothing else decides."""
        return spread(value.shape, value.itemsize, self.target.tiles)

    def need(self, value: Value, layout: Layout) -> Located:
        """The value in exactly this layout, moved if it is not."""
        here = self.place(value, layout)
        if here.layout.key == layout.key:
            return here
        outer = self.invariant.get(value)
        if outer is None:
            return (
                self.scope.copy(value, here, layout)
                if self.scope is not None
                else self.move(here, layout, value.itemsize)
            )
        # What a loop only reads is brought into place once, before it.
        key = (value, layout.key)
        if key not in self.hoisted:
            with self.into(outer):
                self.hoisted[key] = self.move(here, layout, value.itemsize)
        return self.hoisted[key]

    def move(
        self,
        here: Located,
        layout: Layout,
        itemsize: int,
        lines: list[Line] | None = None,
        into: Var | None = None,
    ) -> Located:
        """Copy to another layout of the same chip by an exchange, or by two (see `routes`)."""
        with self.on(here.var.chip):
            if lines is None and into is None:
                for rows, towards in self.route(here, layout, itemsize):
                    var = self.var(towards, itemsize, "activation")
                    self.exchange([(rows, here.var, var, itemsize)])
                    here = Located(var, towards)
                return here
            rows = plan_move(layout, here.layout, lines)
            var = into if into is not None else self.var(layout, itemsize, "activation")
        self.exchange([(rows, here.var, var, itemsize)])
        return Located(var, layout)

    def route(self, here: Located, layout: Layout, itemsize: int) -> list[tuple[Rows, Layout]]:
        """The exchanges that bring a value to a layout.

        Before a broadcast a value that lies in many small pieces is gathered to a few contiguous parts of each block:
        the pieces are then put together once, and not by every tile that gets a copy.
        """
        key = (here.layout.key, layout.key, itemsize)
        found, gathers = self._routes.get(key), self.choices.gathers
        if found is None:
            found = [(plan_move(layout, here.layout), layout)]
            if layout.reps >= MANY:
                self.turn += 1
                parts = partition(layout, self.turn * SENDERS, SENDERS)
                ways = (here.layout.form, layout.form, itemsize)
                if parts.key != here.layout.key and gathers.get(ways, True):
                    gathered = [(plan_move(parts, here.layout), parts), (plan_move(layout, parts), layout)]
                    if ways not in gathers:
                        direct, by_way = (
                            total_cost([exchange_cost([(rows, itemsize)], self.target) for rows, _ in way])
                            for way in (found, gathered)
                        )
                        gathers[ways] = score(*by_way, self.target) < score(*direct, self.target)
                    found = gathered if gathers[ways] else found
            if len(self._routes) >= ROUTES:
                self._routes.pop(next(iter(self._routes)))
            self._routes[key] = found
        return found

    def price(self, wanted: Sequence[tuple[Value, Layout]]) -> Cost:
        """Cost of the exchanges that would bring some values to some layouts, together."""
        stages: list[list[tuple[Rows, int]]] = [[], []]
        for value, layout in wanted:
            here = self.located.get(value)
            if here is None and layout.reps > 1:
                # It will have a home that its repetitions share.
                here = Located(NOWHERE, partition(layout, self.turn + 1))
            if here is None or here.layout.key == layout.key or self.at_hand(value, layout):
                continue
            for stage, (rows, _) in zip(stages, self.route(here, layout, value.itemsize), strict=False):
                stage.append((rows, value.itemsize))
        return total_cost([exchange_cost(stage, self.target) for stage in stages if stage])

    def at_hand(self, value: Value, layout: Layout) -> bool:
        """Whether the value is brought to a layout for something else anyway, so that it costs no more."""
        return value in self.invariant or (self.scope is not None and self.scope.has_copy(value, layout))

    def shaped(
        self, value: Value, want: Layout | None = None, shape: tuple[int, ...] | None = None
    ) -> tuple[Located, list[list[int]]]:
        """The value with a layout whose view has each dimension of its shape as a group of view dimensions.

        Args:
            value: which.
            want: where it goes if it has no home.
            shape: another shape of the same elements in the same order.

        Returns:
            The location, and for each dimension of the shape the view dimensions that it is made of.
        """
        shape = value.shape if shape is None else shape
        here = self.place(value, want)
        view = common_view(here.layout.view, shape)
        fine = None if view is None else squeeze(here.layout).refined(view)
        if fine is None:
            here = self.move(here, self.default(value), value.itemsize)
            view = common_view(here.layout.view, shape)
            assert view is not None
            fine = squeeze(here.layout).refined(view)
            assert fine is not None
        return Located(here.var, fine), groups_of(shape, fine.view)

    def exact(self, value: Value, want: Layout | None = None) -> Located:
        """The value with a layout whose view, size-1 dimensions aside, is its shape."""
        here, groups = self.shaped(value, want)
        if all(len(g) <= 1 for g in groups):
            return here
        return self.move(here, squeeze(self.default(value)), value.itemsize)

    # ---- steps ----

    @contextmanager
    def on(self, chip: int) -> Iterator[None]:
        """New variables lie on a chip inside."""
        before, self.chip = self.chip, chip
        try:
            yield
        finally:
            self.chip = before

    @contextmanager
    def told(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Some options are others inside."""
        before, self.options = self.options, {**self.options, **options}
        try:
            yield
        finally:
            self.options = before

    @contextmanager
    def into(self, steps: list[RawStep]) -> Iterator[None]:
        """New steps go to another list inside."""
        before, self.steps = self.steps, steps
        try:
            yield
        finally:
            self.steps = before

    def exchange(self, moves: Sequence[tuple[Rows, Var, Var, int]]) -> None:
        """One exchange: copies from variable to variable.

        Raises:
            CodeOverflow: a tile has more code for all exchanges so far than it has room for.
        """
        groups = []
        buffers: dict[int, Any] = {}
        for rows, src, dst, itemsize in moves:
            if len(rows):
                groups.append(copy_group(rows, src, dst, itemsize))
                how = rows.crossing(itemsize, self.target.fragment_price)
                if self.code_limit is not None:
                    code = self.code.setdefault(dst.chip, np.zeros(self.target.tiles))
                    code += exchange_code(rows.traffic(itemsize, self.target))
                    if code.max() > self.code_limit:
                        raise CodeOverflow(f"{int(code.max()):,} bytes of exchange code")
                for var, tiles, nbytes in ((src, rows.src_tile, how.before), (dst, rows.dst_tile, how.after)):
                    on_chip = buffers.setdefault(var.chip, np.zeros(self.target.tiles, np.int64))
                    on_chip += np.bincount(tiles, nbytes, self.target.tiles).astype(np.int64)
        if groups:
            writes = [m[2] for m in moves]
            for chip, sizes in buffers.items():
                # What is put in order before or after the exchange lies in a buffer for as long as that takes.
                tiles = np.flatnonzero(sizes)
                if len(tiles):
                    padded = -(-sizes[tiles] // ALIGN) * ALIGN
                    writes.append(Var(tiles, padded, "rearrangement", self.label, chip=chip))
                    self.vars.append(writes[-1])
            self.steps.append(RawStep(EXCHANGE, groups, [m[1] for m in moves], writes, self.label))

    def compute(self, groups: Sequence[RawGroup], reads: Sequence[Var], writes: Sequence[Var]) -> None:
        """One compute set; its vertices round as the node at hand does."""
        for group in groups:
            if group.codelet in registry.ROUNDS:
                group.rounding = self.rounding
        self.steps.append(RawStep(COMPUTE, list(groups), list(reads), list(writes), self.label))
