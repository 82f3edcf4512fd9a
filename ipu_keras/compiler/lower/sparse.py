"""Lowers sparse-dot: blocks stay on their tiles, dense slots come to them, sums go to the owners of their columns.

Between products a dense operand lies in slots, [block column][row][element], each run of slots with an owner: what a
tile gathers from owners, and what it sends to them, are then whole slots. A static pattern's copies are those that it
needs; a dynamic pattern's tiles get all slots of their rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.layout import Ints, Layout, even
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.dot import finish
from ipu_keras.compiler.lower.named import Grid, Name, Other
from ipu_keras.compiler.lower.parts import ALIGN, Located, Offset, RawGroup, Var
from ipu_keras.compiler.move import Rows
from ipu_keras.compiler.plan.asked import partials_of
from ipu_keras.compiler.plan.sparse import (
    Buckets,
    Problem,
    Side,
    SparsePlan,
    dynamic_plans,
    owner_of,
    owners,
    runs,
    static_plans,
)
from ipu_keras.graph.ir import DTYPES, Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.sparse_model import MODES
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS

_ZERO = np.zeros(1, np.int64)


def lower_sparse_dot(ctx: Context, node: Node) -> None:
    """Plan, gather, multiply, add up."""
    pattern = node.attrs["pattern"]
    sums = "f16" if partials_of(ctx.options, node, node.out.dtype) == "f16" else "f32"
    plan = _choose(ctx, node, sums)
    if pattern is None:
        _Dynamic(ctx, node, sums, plan).lower()
    else:
        _Static(ctx, node, sums, plan).lower()


def _key(node: Node) -> tuple[Any, ...]:
    """Equal for the passes of one product: they share a division, so that the blocks need not move."""
    a = node.attrs
    pattern = a["pattern"]
    named = node.inputs[-1] if pattern is None else pattern.tobytes()
    n = (node.inputs[0] if a["mode"] != "sampled" else node.inputs[1]).shape[0]
    count = (node.out if a["mode"] == "sampled" else node.inputs[1]).shape[0]
    return a["block"], a["shape"], n, node.out.dtype, count, named


def _choose(ctx: Context, node: Node, sums: str) -> SparsePlan:
    key = _key(node)
    if ("sparse-dot", key, sums) not in ctx.chosen:
        block, (rows, columns), n, dtype, count, _ = key
        passes = {m.attrs["mode"] for m in ctx.scope.graph.nodes if m.op == "sparse-dot" and _key(m) == key}
        shape = rows // block, columns // block
        p = Problem(dtype, sums, block, n, shape, count, tuple(m for m in MODES if m in passes))
        proportion, pattern = ctx.options["available_memory_proportion"], node.attrs["pattern"]
        if pattern is None:
            found = dynamic_plans(p, ctx.target, proportion)
        else:
            found = static_plans(p, pattern, ctx.target, proportion)
        ctx.chosen["sparse-dot", key, sums] = 0, len(ctx.plans)
        ctx.plans.append({"op": node.op, "plans": [plan.to_dict() for plan in found[:3]]})
        ctx.sparse_plans[len(ctx.plans) - 1] = found[0]
    _, number = ctx.chosen["sparse-dot", key, sums]
    ctx.products.append([ctx.label, number])
    return ctx.sparse_plans[number]


class _Product:
    """What static and dynamic patterns share."""

    def __init__(self, ctx: Context, node: Node, sums: str, plan: SparsePlan) -> None:
        self.ctx, self.node, self.sums, self.plan = ctx, node, sums, plan
        self.mode, self.block, self.pattern = node.attrs["mode"], node.attrs["block"], node.attrs["pattern"]
        self.shape = tuple(d // self.block for d in node.attrs["shape"])
        dense, blocks = list(node.inputs[:2]), node.out
        if self.mode != "sampled":
            blocks = dense.pop(1)
        self.dense: dict[int, Value] = dict(zip((0, 1) if len(dense) == 2 else (MODES.index(self.mode),), dense))
        self.blocks = blocks
        self.n = dense[0].shape[0]
        self.dtype, self.size = node.out.dtype, DTYPES[node.out.dtype].itemsize
        self.partial = DTYPES[sums].itemsize

    def blocks_grid(self, starts: Ints, stops: Ints) -> Grid:
        """Tiles by bucket and part of the rows."""
        return Grid({"s": (starts, stops), "n": even(self.n, self.plan.parts)})

    def whole(self, name: str, size: int) -> dict[Name, Other]:
        """A dimension that nothing cuts."""
        return {name: ((), (_ZERO, _ZERO + size))}

    def values(self, grid: Grid) -> Located:
        """The blocks, each tile's bucket contiguous."""
        other: dict[Name, Other] = {**self.whole("i", self.block), **self.whole("j", self.block)}
        layout = grid.layout(["s", "i", "j"], self.blocks.shape, ["s", "i", "j"], other)
        return self.ctx.need(self.blocks, layout)

    def compute(
        self, grid: Grid, slots: tuple[Ints, Ints], width: int, vars_: tuple[Located | Var, ...], out: int
    ) -> None:
        """The vertices.

        Args:
            grid: their tiles.
            slots: of X and of Y.
            width: bytes of a position.
            vars_: positions, blocks, X and Y.
            out: which of these is the result.
        """
        flat = grid.flat
        found = [v.var if isinstance(v, Located) else v for v in vars_]
        params = [MODES.index(self.mode), DTYPE_NUMBER[self.dtype], DTYPE_NUMBER[self.sums], self.block, width]
        params.append(int(self.pattern is not None))
        columns: list[Any] = [flat, grid.extent(["s"]), grid.extent(["n"]), *slots]
        columns += [Offset(v, flat) for v in found]
        group = RawGroup(registry.SPARSE, len(flat), params, columns)
        self.ctx.compute([group], [v for i, v in enumerate(found) if i != out], [found[out]])

    def sampled_sums(self, grid: Grid) -> tuple[Located, int]:
        """Where each tile's gradients of its blocks go, and how many dimensions of parts stand in front."""
        # The blocks' own dimensions are uncut names of the grid here, so that sums over the rows' parts stand in front.
        full = Grid({**grid.cuts, "i": (_ZERO, _ZERO + self.block), "j": (_ZERO, _ZERO + self.block)})
        layout, depth = full.partial(["n"], ["s", "i", "j"], self.blocks.shape, ["s", "i", "j"])
        return Located(self.ctx.var(layout, self.partial), layout), depth


class _Dynamic(_Product):
    """Every bucket may name every slot: whole operands of the rows' part, sums over the buckets."""

    def lower(self) -> None:
        ctx, node = self.ctx, self.node
        grid = self.blocks_grid(*even(self.blocks.shape[0], self.plan.wanted))
        index = ctx.need(node.inputs[-1], grid.layout(["s", "p"], (*self.blocks.shape[:1], 2), ["s", "p"],
                                                      self.whole("p", 2)))  # fmt: skip
        found: list[Located | Var] = [index]
        depth = 0
        result: Located | None = None
        if self.mode == "sampled":
            result, depth = self.sampled_sums(grid)
            found.append(result)
        else:
            found.append(self.values(grid))
        for side, count in enumerate(self.shape):
            other = {**self.whole("k", count), **self.whole("i", self.block)}
            if side in self.dense:
                layout = grid.layout(["n", "k", "i"], (self.n, count, self.block), ["k", "n", "i"], other)
                found.append(ctx.need(self.dense[side], layout))
                continue
            full = Grid({**grid.cuts, **{name: cut for name, (_, cut) in other.items()}})
            layout, depth = full.partial(["s"], ["n", "k", "i"], [self.n, count, self.block], ["k", "n", "i"])
            result = Located(ctx.var(layout, self.partial), layout)
            found.append(result)
        assert result is not None
        slots = np.array([self.shape[0]]), np.array([self.shape[1]])
        self.compute(grid, slots, 4, tuple(found), found.index(result))
        ctx.located[node.out] = finish(ctx, result, depth, self.sums, node.out)


class _Static(_Product):
    """Each tile gets the slots that its blocks name."""

    def lower(self) -> None:
        ctx, node, plan = self.ctx, self.node, self.plan
        self.cut = Buckets(self.pattern, self.shape, plan.wanted, plan.whole)
        self.grid = self.blocks_grid(self.cut.starts, self.cut.stops)
        self.rows = self.grid.cuts["n"][1] - self.grid.cuts["n"][0]
        positions, width = self._positions()
        found: list[Located | Var] = [positions]
        depth, result = 0, None
        if self.mode == "sampled":
            result, depth = self.sampled_sums(self.grid)
            found.append(result)
        else:
            found.append(self.values(self.grid))
        for side in (0, 1):
            found.append(self._gathered(side) if side in self.dense else self._sums(side))
        out = 1 if result is not None else 2 + (MODES.index(self.mode) ^ 1)
        slots = tuple(self.grid.spread(["s"], side.counts) for side in self.cut.sides)
        self.compute(self.grid, (slots[0], slots[1]), width, tuple(found), out)
        if result is None:
            sums = found[out]
            assert isinstance(sums, Var)
            result = self._added(sums, out - 2)
        ctx.located[node.out] = finish(ctx, result, depth, self.sums, node.out)

    def _positions(self) -> tuple[Located, int]:
        """Which slots each block names, as a constant that all passes share."""
        sides = self.cut.sides
        local = np.stack([sides[0].local, sides[1].local], 1)
        dtype = np.dtype(np.uint16) if local.max() < 1 << 16 else np.dtype(np.int32)
        ctx = self.ctx
        key = ("sparse positions", _key(self.node), self.plan, ctx.chip)
        if key not in ctx.hoisted:
            layout = self.grid.layout(["s", "p"], local.shape, ["s", "p"], self.whole("p", 2))
            var = ctx.var(layout, dtype.itemsize, "constant", pinned=True)
            ctx.constants.append((var, layout, local.astype(dtype), None))
            ctx.hoisted[key] = Located(var, layout)
        return ctx.hoisted[key], dtype.itemsize

    def _owned(self, side: int) -> Layout:
        """Between products: runs of slots on their owners, cut like the rows of the product."""
        starts, stops = owners(self.shape[side], len(self.rows), self.ctx.target)
        view = (self.n, self.shape[side], self.block)
        cuts = [self.grid.cuts["n"], (starts, stops), (_ZERO, _ZERO + self.block)]
        tiles = np.arange(len(starts) * len(self.rows), dtype=np.int64).reshape(len(starts), -1).T
        tiles = np.ascontiguousarray(tiles)[..., None, None]
        return Layout(view, [c[0] for c in cuts], [c[1] for c in cuts], tiles, (1, 0, 2))

    def _slot_var(self, side: Side, itemsize: int) -> Var:
        """A variable with the slots of each tile."""
        sizes = self.grid.spread(["s"], side.counts) * self.grid.extent(["n"]) * self.block * itemsize
        var = Var(self.grid.flat, -(-sizes // ALIGN) * ALIGN, "activation", self.ctx.label, chip=self.ctx.chip)
        self.ctx.vars.append(var)
        return var

    def _sums(self, side: int) -> Var:
        return self._slot_var(self.cut.sides[side], self.partial)

    def _gathered(self, which: int) -> Var:
        """The slots that blocks name, from their owners; neighbours on both sides are one copy."""
        side, parts = self.cut.sides[which], len(self.rows)
        layout = self._owned(which)
        here = self.ctx.need(self.dense[which], layout)
        starts = layout.starts[1]
        owners_ = owner_of(starts, self.shape[which])
        run, owner = runs(side, owners_), owners_[side.block]
        length = np.diff(np.append(run, len(owner)))
        to, slot = side.bucket[run], run - side.first[side.bucket[run]]
        source, place = owner[run], side.block[run] - starts[owner[run]]
        part = np.arange(parts)
        one = (self.rows * self.block)[None]
        rows = Rows(
            (to[:, None] * parts + part).reshape(-1),
            (source[:, None] * parts + part).reshape(-1),
            (slot[:, None] * one).reshape(-1),
            (place[:, None] * one).reshape(-1),
            [(length[:, None] * one).reshape(-1)],
            [np.ones(1, np.int64)],
            [np.ones(1, np.int64)],
        )
        var = self._slot_var(side, self.size)
        self.ctx.exchange([(rows, here.var, var, self.size)])
        return var

    def _added(self, sums: Var, which: int) -> Located:
        """The result: where it is, if each column is in one bucket; else at its owners, added up there."""
        side, parts, ctx = self.cut.sides[which], len(self.rows), self.ctx
        view = (self.n, self.shape[which], self.block)
        if which and self.cut.columns is not None:
            cuts = [self.grid.cuts["n"], (self.cut.columns[:-1], self.cut.columns[1:]), (_ZERO, _ZERO + self.block)]
            tiles = np.ascontiguousarray(self.grid.tiles.T)[..., None, None]
            return Located(sums, Layout(view, [c[0] for c in cuts], [c[1] for c in cuts], tiles, (1, 0, 2)))
        layout = self._owned(which)
        starts, count = layout.starts[1], self.shape[which]
        owner = owner_of(starts, count)
        order = np.argsort(side.block, kind="stable")  # by column, then by bucket: the order of the sum
        depth = np.bincount(side.block, minlength=count)
        before = np.cumsum(depth) - depth  # slots of all columns before this
        ahead = before - before[starts[owner]]  # those of the same owner
        column, bucket = side.block[order], side.bucket[order]
        nth = np.arange(len(order)) - before[column]
        part, one = np.arange(parts), (self.rows * self.block)[None]
        rows = Rows(
            (owner[column][:, None] * parts + part).reshape(-1),
            (bucket[:, None] * parts + part).reshape(-1),
            ((ahead[column] + nth)[:, None] * one).reshape(-1),
            ((order - side.first[bucket])[:, None] * one).reshape(-1),
            [np.broadcast_to(one, (len(order), parts)).reshape(-1)],
            [np.ones(1, np.int64)],
            [np.ones(1, np.int64)],
        )
        held = np.add.reduceat(depth, starts)
        sizes = (held[:, None] * one).reshape(-1) * self.partial
        tiles = np.arange(len(starts) * parts)
        came = Var(tiles, -(-sizes // ALIGN) * ALIGN, "activation", ctx.label, chip=ctx.chip)
        ctx.vars.append(came)
        ctx.exchange([(rows, sums, came, self.partial)])
        out = ctx.var(layout, self.partial)
        at = (owner[:, None] * parts + part).reshape(-1)
        elements = np.broadcast_to(one, (count, parts)).reshape(-1)
        columns: list[Any] = [at, np.repeat(depth, parts), elements]
        columns.append(Offset(came, at, (ahead[:, None] * one).reshape(-1) * self.partial))
        columns.append(Offset(out, at, ((np.arange(count) - starts[owner])[:, None] * one).reshape(-1) * self.partial))
        params = [2, 2, OPS["add"], DTYPE_NUMBER[self.sums], 0]
        ctx.compute([RawGroup(registry.REDUCE, len(at), params, columns)], [came], [out])
        return Located(out, layout)
