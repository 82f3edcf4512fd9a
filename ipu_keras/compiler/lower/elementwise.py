"""Lowers `map`: every operand comes to the layout of one of them, then each tile runs the expression on its block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_keras.compiler.homes import groups_of
from ipu_keras.compiler.layout import Layout, common_view, spread, squeeze
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, Var, payload
from ipu_keras.graph.ir import DTYPES, Node, Value
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.elementwise_model import convert_loop, loop
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS


def lower_map(ctx: Context, node: Node) -> None:
    """One compute set; results lie as the chosen operand does."""
    shape, dims_of = merged(node.results[0].shape, node.attrs["dims"])
    layout = _choose(ctx, node, shape, dims_of)
    groups = groups_of(shape, layout.view)
    operands: list[Located] = []
    has: list[list[int]] = []
    for value, dims in zip(node.inputs, dims_of, strict=True):
        kept = [v for d in dims for v in groups[d]]
        has.append(kept)
        if len(kept) == len(layout.view):
            operands.append(ctx.need(value, layout))
        else:
            operands.append(ctx.need(value, layout.keep(kept)))
    outs = [_result_var(ctx, value, layout, operands) for value in node.results]
    before = len(ctx.steps)
    emit_map(
        ctx, layout, node.attrs["body"], node.attrs["consts"], node.attrs["outs"], node.inputs, operands, has, outs
    )
    if ctx.options["traps"] and "members" in node.attrs:
        # Whoever traps something wants to know which operation of the chain it was.
        labels = [ctx.at(ctx.label_of(Node("map", [], [], where=where))) for where in node.attrs["members"]]
        for step in ctx.steps[before:]:
            for group in step.groups:
                group.members = labels if group.codelet == registry.MAP else None
    for value, var in zip(node.results, outs, strict=True):
        ctx.located[value] = Located(var, layout)


def _result_var(ctx: Context, value: Value, layout: Layout, operands: list[Located]) -> Var:
    """A state's new value goes straight to the state's home when nobody needs the old value any more."""
    home: Located | None = ctx.scope.in_place(value, layout)
    if home is not None:
        return home.var
    return ctx.var(layout, value.itemsize)


def merged(shape: tuple[int, ...], dims_of: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[list[int]]]:
    """The shape with neighbours joined that each operand has both or none of, and the dimensions of each in it.

    Rows of a product that are cut across the bounds of a batch then stay as they are.

    Args:
        shape: of the results.
        dims_of: for each operand the dimensions that it has.

    Example:
        >>> merged((16, 128, 768), [(0, 1, 2), (2,)])
        ((2048, 768), [[0, 1], [1]])
    """
    groups: list[list[int]] = []
    for d in range(len(shape)):
        if groups and all((d in dims) == (groups[-1][-1] in dims) for dims in dims_of):
            groups[-1].append(d)
        else:
            groups.append([d])
    sizes = tuple(math.prod(shape[d] for d in group) for group in groups)
    return sizes, [[i for i, group in enumerate(groups) if group[0] in dims] for dims in dims_of]


def _choose(ctx: Context, node: Node, shape: tuple[int, ...], dims_of: list[list[int]]) -> Layout:
    """The layout to work in: the home of a state whose new value is made here, else where work and moves cost least.

    Args:
        shape, dims_of: the node's, with neighbours joined (`merged`).
    """
    candidates: list[Layout] = []
    state_home: Layout | None = ctx.scope.state_home(node)
    if state_home is not None:
        fine = _fits(ctx, state_home, shape)
        if fine is not None:
            return fine
    full = [v for v, dims in zip(node.inputs, dims_of, strict=True) if len(dims) == len(shape)]
    lies = {value: ctx.find(value) for value in full}
    candidates += [here.layout for here in lies.values() if here is not None and here.layout.reps == 1]
    hints = [ctx.find(hint) for hint in (ctx.hints.get(value) for value in node.results) if hint is not None]
    candidates += [here.layout for here in hints if here is not None]
    best: tuple[float, Layout] | None = None
    for layout in candidates:
        fine = _fits(ctx, layout, shape)
        if fine is None:
            continue
        moves = [v.itemsize for v, here in lies.items() if here is not None and here.layout.key != layout.key]
        moves += [node.results[0].itemsize for here in hints if here is not None and here.layout.key != layout.key]
        cost = _price(ctx, node, fine.max_block, moves)
        if best is None or cost < best[0]:
            best = (cost, fine)
    even = squeeze(spread(shape, node.results[0].itemsize, ctx.target.tiles))
    if best is None:
        return even
    moves = [v.itemsize for v, here in lies.items() if here is not None]
    # What comes next is likely to want its operand where it was: to move pays only if it saves a good part.
    return even if 1.5 * _price(ctx, node, even.max_block, moves) < best[0] else best[1]


def _fits(ctx: Context, layout: Layout, shape: tuple[int, ...]) -> Layout | None:
    """A layout as one of an array of some shape, if its cuts allow that and all tiles have work."""
    view = common_view(layout.view, shape)
    fine = None if view is None else squeeze(layout).refined(view)
    ideal = -(-math.prod(shape) // ctx.target.tiles)
    return fine if fine is not None and fine.max_block <= max(8 * ideal, 2048) else None


def _price(ctx: Context, node: Node, block: int, moved: Sequence[int]) -> float:
    """Rough cycles of a node on the fullest tile, with the exchange of operands of some element sizes."""
    target = ctx.target
    mine = -(-block // target.workers)
    work = sum(cycles / per for cycles, per in (_loop(*each[:3]) for each in node.attrs["body"]))
    exchange = sum(moved) * block / target.exchange_bytes_per_cycle
    return target.workers * mine * work + exchange + (target.sync_cycles if moved else 0)


def _loop(op: str, source: str, result: str) -> tuple[float, float]:
    """Cycles and elements of an operation's inner loop."""
    return convert_loop(result, source)[1:] if op == "convert" else loop(op, source)[:2]


def emit_map(
    ctx: Context,
    layout: Layout,
    body: Sequence[tuple[str, str, str, tuple[int, ...]]],
    consts: Sequence[tuple[str, np.ndarray]],
    outs: Sequence[int],
    inputs: Sequence[Value],
    operands: Sequence[Located],
    has: Sequence[list[int]],
    out_vars: Sequence[Var],
) -> None:
    """The compute set of an expression over the blocks of `layout`.

    Args:
        body, consts, outs: as in a `map` node.
        inputs: the operands' values (for their dtypes).
        operands: where they lie: on the layout's tiles, with the dimensions `has` of its view.
        out_vars: where the results go.
    """
    sizes = [v.itemsize for v in inputs]
    out_sizes = [DTYPES[_dtype_of(body, consts, inputs, o)].itemsize for o in outs]
    collapsed = _collapse(layout, has)
    params = [len(collapsed), len(inputs), len(outs), len(consts)]
    words, n_tmp, regs = encode(body, consts, outs, len(inputs), [o.var in out_vars for o in operands])
    widest = max([8 if DTYPES[b[2]].itemsize == 8 else 4 for b in body] + [4])
    chunk = 512 if (n_tmp + len(inputs)) * widest <= 48 else 256
    params += [n_tmp, len(body), chunk, widest]
    for i, size in enumerate(sizes):
        mask = sum(1 << c for c, (_, member) in enumerate(collapsed) if member[i])
        params += [mask, size]
    for reg, size in zip(regs, out_sizes, strict=True):
        params += [reg, size]
    for dtype, value in consts:
        params += [DTYPE_NUMBER[dtype], payload(value, dtype)]
    params += words
    keep = np.flatnonzero(layout.flat_sizes)
    tiles = layout.flat_tiles[keep]
    columns: list[Any] = [tiles]
    for dims, _ in collapsed:
        ext = np.ones(1, np.int64)
        for d in dims:
            ext = ext * layout.per_block(d, layout.extents[d])
        columns.append(ext[keep] if len(ext) > 1 else ext)
    columns += [Offset(o.var, tiles) for o in operands]
    columns += [Offset(v, tiles) for v in out_vars]
    group = RawGroup(registry.MAP, len(tiles), params, columns)
    ctx.compute([group], [o.var for o in operands], list(out_vars))


def _dtype_of(body: Any, consts: Any, inputs: Sequence[Value], arg: int) -> str:
    if arg < 0:
        return str(consts[-arg - 1][0])
    return inputs[arg].dtype if arg < len(inputs) else str(body[arg - len(inputs)][2])


def _collapse(layout: Layout, has: Sequence[list[int]]) -> list[tuple[list[int], tuple[bool, ...]]]:
    """The block's dimensions in memory order, neighbours that the same operands have joined into one."""
    merged: list[tuple[list[int], tuple[bool, ...]]] = []
    for d in layout.order:
        if bool((layout.extents[d] == 1).all()):
            continue
        member = tuple(d in kept for kept in has)
        if merged and merged[-1][1] == member:
            merged[-1][0].append(d)
        else:
            merged.append(([d], member))
    return merged or [([], (True,) * len(has))]


def encode(
    body: Sequence[tuple[str, str, str, tuple[int, ...]]],
    consts: Sequence[Any],
    outs: Sequence[int],
    n_in: int,
    in_place: Sequence[bool],
    may_be_direct: bool = True,
) -> tuple[list[int], int, list[int]]:
    """Assign registers and write the body as words of (is_convert, op, dtype, destination, a, b, c).

    A result is computed straight into its output where no later operation still reads an operand that the output may
    overwrite (never, without `may_be_direct`); temporaries are reused after their last reader.

    Returns:
        The words, the number of temporaries, and for each output the register that holds it at the end.
    """
    n_const = len(consts)
    last: dict[int, int] = {}
    for i, (_, _, _, args) in enumerate(body):
        for a in args:
            last[a] = i
    end = len(body)
    for o in outs:
        last[o] = end
    overwritten = [i for i, flag in enumerate(in_place) if flag]
    last_in_place = max([last.get(i, -1) for i in overwritten], default=-1)
    # Outputs come first in place of temporaries where it is safe.
    direct: dict[int, int] = {}
    for k, o in enumerate(outs):
        i = o - n_in
        if may_be_direct and o >= n_in and o not in direct and i >= last_in_place:
            direct[o] = k
    where: dict[int, int] = {}  # body value -> temporary
    free: list[int] = []
    n_tmp = 0
    for i, (_, _, result_type, args) in enumerate(body):
        value = n_in + i
        dying = [a for a in dict.fromkeys(args) if a in where and last[a] == i]
        # A kernel may write over an operand of its own width, never over another's.
        width = DTYPES[result_type].itemsize
        fits = [a for a in dying if DTYPES[body[a - n_in][2]].itemsize == width]
        free += [where[a] for a in fits]
        if value not in direct:
            if not free:
                free.append(n_tmp)
                n_tmp += 1
            where[value] = free.pop()
        free += [where[a] for a in dying if a not in fits]

    def reg(value: int) -> int:
        if value < 0:
            return n_in + (-value - 1)
        if value < n_in:
            return value
        if value in direct:
            return n_in + n_const + n_tmp + direct[value]
        return n_in + n_const + where[value]

    words: list[int] = []
    for i, (op, source, target, args) in enumerate(body):
        regs = [reg(a) for a in args] + [0] * (3 - len(args))
        if op == "convert":
            words += [1, DTYPE_NUMBER[target], DTYPE_NUMBER[source]]
        elif op == "bitcast-convert":
            words += [0, OPS["copy"], DTYPE_NUMBER[source]]
        else:
            words += [0, OPS[op], DTYPE_NUMBER[source]]
        words += [reg(n_in + i), *regs]
    return words, n_tmp, [reg(o) for o in outs]
