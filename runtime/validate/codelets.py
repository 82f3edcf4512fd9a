"""The vertices: parameters and columns as each codelet has them, operands that lie inside their memories."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import METHODS
from ipu_runtime.codelets.copy_model import MAX_DIMS
from ipu_runtime.codelets.model import Ints, product
from ipu_runtime.codelets.sparse_model import BLOCKS, MODES
from ipu_runtime.opcodes import ARITY, DTYPES, GATHER, OPS
from ipu_runtime.program import (
    BRANCH,
    COLLECTIVE,
    COMPUTE,
    EXCHANGE,
    FOR,
    JUMP,
    NEXT,
    STREAM_IN,
    STREAM_OUT,
    WINDOW,
    GroupView,
    Program,
)
from ipu_runtime.validate.needs import MAX_EXTENT, MAX_TAPS, MAX_WORK_NS, need


def check_shape(program: Program, index: int) -> None:
    """A group's parameters and extents are such that its codelet has room for them.

    Args:
        program: whose.
        index: of the group.

    Raises:
        ExecutableFormatError: they are not.
    """
    g = program.group(index)
    SHAPES[g.codelet](g)


def check_group(program: Program, index: int, kind: int, host_bytes: int) -> None:
    """A group suits its step and its codelet, and every operand lies inside its tile's memory or its host array.

    Args:
        program: whose.
        index: of the group.
        kind: of the step that it is in.
        host_bytes: of the host array, for streams.
    """
    g = program.group(index)
    is_copy = g.codelet == registry.COPY
    of_kinds = {
        registry.COPY: (EXCHANGE, STREAM_IN, STREAM_OUT),
        registry.BRANCH: (BRANCH, JUMP),
        registry.CONTROL: (FOR, NEXT, WINDOW),
        registry.COLLECTIVE: (COLLECTIVE,),
    }
    need(kind in of_kinds.get(g.codelet, (COMPUTE,)), f"group {index}: codelet {g.codelet} in a step of kind {kind}")
    if g.codelet == registry.COLLECTIVE:
        need(len(g.params) == 3 and program.replicas % max(1, int(g.params[2])) == 0, "groups of replicas")
    check_shape(program, index)
    need(registry.MODELS[g.codelet].work(g) <= MAX_WORK_NS, f"group {index}: more work than any chip's vertices hold")
    limit, tiles = int(program.header["used_bytes"]), program.tile_count
    for side, operand in enumerate(registry.MODELS[g.codelet].operands(g)):
        tile = np.broadcast_to(g.col(side if is_copy else 0), g.rows)
        on_host = is_copy and ((kind == STREAM_IN and side == 0) or (kind == STREAM_OUT and side == 1))
        offset, nbytes = np.broadcast_to(operand.offset, g.rows), np.broadcast_to(operand.nbytes, g.rows)
        bound = host_bytes if on_host else limit
        need(((tile >= 0) & (tile < tiles)).all(), f"group {index}: a tile out of range")
        need((nbytes >= 0).all() and (offset >= 0).all() and (offset + nbytes <= bound).all(),
              f"group {index} ({registry.MODELS[g.codelet].name}): an operand leaves its memory")  # fmt: skip


def _counts(g: GroupView, params: int, columns: int) -> None:
    need(
        len(g.params) == params and len(g.columns) == columns,
        f"codelet {g.codelet}: wrong number of parameters or columns",
    )


def _positive(*columns: Ints) -> None:
    """Extents are not negative, and no single loop is longer than a tile could ever need."""
    for column in columns:
        need((column >= 0).all(), "a negative extent")
        need((column <= MAX_EXTENT).all(), "an extent larger than a tile")


def _rank(value: int, most: int = 8, least: int = 1) -> int:
    need(least <= value <= most, f"rank {value}")
    return int(value)


def _dtype(number: int) -> int:
    need(0 <= number < len(DTYPES), f"dtype {number}")
    return int(number)


def _op(number: int) -> int:
    need(0 <= number < len(OPS), f"operation {number}")
    return int(number)


def _copy(g: GroupView) -> None:
    need(len(g.params) == 3 and g.params[1] in (1, 2, 4, 8), "a copy's element size")
    nd = _rank(int(g.params[0]), MAX_DIMS, 0)
    _counts(g, 3, 4 + 3 * nd)
    for d in range(nd):
        need((g.col(4 + 3 * d) >= 1).all(), "a copy of no elements")


def _words(words: Any, regs: int, writable_from: int, sizes: dict[int, int], slot: int) -> None:
    """A body of operations: codes exist, registers exist, constants are not written, no register overflows."""
    by_number = {n: name for name, n in OPS.items()}
    for is_convert, op, dtype, dst, a, b, c in words.tolist():
        need(is_convert in (0, 1), "a body's operation")
        _dtype(dtype)
        if is_convert:
            out, arity = DTYPES[_dtype(op)].itemsize, 1
        else:
            name = by_number[_op(op)]
            arity = ARITY[name]
            out = 1 if name.startswith("compare") or name == "is-finite" else DTYPES[dtype].itemsize
        need(writable_from <= dst < regs, "a body writes to an operand or constant")
        need(all(0 <= r < regs for r in (a, b, c)), "a body's register")
        need(out <= sizes.get(dst, slot), "a body's result does not fit its register")
        for r, is_pred in zip((a, b, c)[:arity], (not is_convert and by_number[op] == "select", False, False)):
            need((1 if is_pred else DTYPES[dtype].itemsize) <= sizes.get(r, slot), "a body's operand is too small")


def _map(g: GroupView) -> None:
    need(len(g.params) >= 8, "a map without parameters")
    rank, n_in, n_out, n_const, n_tmp, n_body, chunk, slot = (int(v) for v in g.params[:8])
    _rank(rank)
    need(all(0 <= n <= 4096 for n in (n_in, n_out, n_const, n_tmp, n_body)) and n_out >= 1, "a map's counts")
    need(1 <= chunk <= 512 and slot in (1, 2, 4, 8), "a map's chunk")
    _counts(g, 8 + 2 * n_in + 2 * n_out + 2 * n_const + 7 * n_body, 1 + rank + n_in + n_out)
    _positive(*(g.col(1 + d) for d in range(rank)))
    regs = n_in + n_const + n_tmp + n_out
    sizes: dict[int, int] = {}
    for i in range(n_in):
        need(0 <= g.params[8 + 2 * i] < 1 << rank and g.params[9 + 2 * i] in (1, 2, 4, 8), "a map's input")
        sizes[i] = int(g.params[9 + 2 * i])
    at = 8 + 2 * n_in
    for i in range(n_out):
        reg, size = int(g.params[at + 2 * i]), int(g.params[at + 2 * i + 1])
        need(0 <= reg < regs and size in (1, 2, 4, 8), "a map's output")
        sizes[n_in + n_const + n_tmp + i] = size
    at += 2 * n_out
    for i in range(n_const):
        sizes[n_in + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    at += 2 * n_const
    _words(g.params[at:].reshape(n_body, 7), regs, n_in + n_const, sizes, 8)


def _reduce(g: GroupView) -> None:
    need(len(g.params) == 5, "a reduce's parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 5, 3 + rank)
    need(0 <= g.params[1] < 1 << rank, "a reduce's mask")
    _op(int(g.params[2]))
    _dtype(int(g.params[3]))
    _positive(*(g.col(1 + d) for d in range(rank)))


def _variadic(g: GroupView) -> None:
    need(len(g.params) >= 6, "a reduce's parameters")
    rank, mask, n_ops, n_const, n_tmp, n_body = (int(v) for v in g.params[:6])
    _rank(rank)
    need(0 <= mask < 1 << rank and 1 <= n_ops <= 16, "a reduce's mask or operands")
    regs = 2 * n_ops + n_const + n_tmp
    need(all(0 <= n <= 64 for n in (n_const, n_tmp, n_body)) and regs <= 96, "a reduce's counts")
    _counts(g, 6 + 3 * n_ops + 2 * n_const + 7 * n_body, 1 + rank + 2 * n_ops)
    _positive(*(g.col(1 + d) for d in range(rank)))
    sizes: dict[int, int] = {}
    for k in range(n_ops):
        size, reg = int(g.params[6 + 3 * k]), int(g.params[8 + 3 * k])
        need(size in (1, 2, 4, 8) and 0 <= reg < regs, "a reduce's operand")
        sizes[k] = sizes[n_ops + k] = size
    at = 6 + 3 * n_ops
    for i in range(n_const):
        sizes[2 * n_ops + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    _words(g.params[at + 2 * n_const :].reshape(n_body, 7), regs, 2 * n_ops + n_const, sizes, 8)


def _partials(dtype: int, method: int, partials: int) -> None:
    """Partial sums: fp32 or, of fp16, fp16; int32 of integers, which are not multiplied by the AMP."""
    need(0 <= method < len(METHODS), "a product's method")
    _dtype(partials)
    name, sums = DTYPES[dtype].name, DTYPES[partials].name
    if name in ("f16", "f32"):
        need(sums == "f32" or sums == name, "a product's partial sums")
        need(METHODS[method] != "vector", "a product's method")
    else:
        need(sums == "s32" and METHODS[method] == "vector", "a product's partial sums")


def _dot(g: GroupView) -> None:
    _counts(g, 5, 8)
    _dtype(int(g.params[0]))
    _partials(int(g.params[0]), int(g.params[3]), int(g.params[4]))
    _positive(*(g.col(i) for i in range(1, 5)))


def _conv(g: GroupView) -> None:
    need(len(g.params) >= 3, "a convolution's parameters")
    nd = _rank(int(g.params[0]), 3, 0)
    _counts(g, 5 + 4 * nd, 8 + 4 * nd)
    _dtype(int(g.params[1]))
    _partials(int(g.params[1]), int(g.params[3 + 4 * nd]), int(g.params[4 + 4 * nd]))
    need(g.params[2] in (0, 1), "a convolution's order")
    for d in range(nd):
        need((g.params[3 + 4 * d : 6 + 4 * d] >= 1).all() and g.params[6 + 4 * d] in (0, 1), "a convolution's window")
        need((g.params[3 + 4 * d : 6 + 4 * d] <= MAX_EXTENT).all(), "a convolution's window")
        need((g.col(6 + 4 * d) * g.col(7 + 4 * d) <= MAX_EXTENT).all(), "a convolution's taps")
        _positive(*(g.col(5 + 4 * d + i) for i in range(3)))
    _positive(*(g.col(i) for i in range(1, 5)))


def _window(g: GroupView) -> None:
    extra = 1 if g.codelet == registry.SELECT_SCATTER else 0
    per = 5 if extra else 3
    need(len(g.params) >= 4, "a window's parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 4 + 4 * rank + extra, 3 + per * rank + extra)
    _op(int(g.params[1]))
    _dtype(int(g.params[2]))
    sizes = g.params[4 : 4 + 4 * rank]
    need((sizes >= 1).all() and (sizes <= MAX_TAPS).all(), "a window's sizes")
    need(np.prod(sizes[::4].astype(float)) <= MAX_TAPS, "a window's taps")
    if extra:
        need(int(g.params[-1]) in {n for name, n in OPS.items() if name.startswith("compare")}, "a window's comparison")
    for d in range(rank):
        _positive(g.col(1 + per * d), g.col(2 + per * d))
        reach = g.col(3 + per * d) + (g.col(2 + per * d) - 1) * g.params[5 + 4 * d]
        need((np.abs(reach) < 1 << 40).all(), "a window's reach")
        if extra:
            _positive(g.col(4 + per * d), g.col(5 + per * d))


def _gather(g: GroupView) -> None:
    _counts(g, 4, 8)
    need(g.params[0] in (1, 2, 4, 8) and g.params[1] in (1, 4, 8) and g.params[3] >= 1, "a gather's parameters")
    _positive(*(g.col(i) for i in range(1, 5)))


def _scatter(g: GroupView) -> None:
    _counts(g, 5, 8)
    _dtype(int(g.params[0]))
    _op(int(g.params[2]))
    need(g.params[1] in (1, 4, 8) and g.params[4] >= 1, "a scatter's parameters")
    _positive(*(g.col(i) for i in range(1, 5)))


def _philox(g: GroupView) -> None:
    need(len(g.params) >= 2, "random bits' parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 2 + rank, 3 + 2 * rank)
    need(g.params[1] in (1, 2), "random bits' width")
    for d in range(rank):
        _positive(g.col(1 + 2 * d), g.col(2 + 2 * d))


def _philox_next(g: GroupView) -> None:
    _counts(g, 1, 3)


def _dynamic(g: GroupView) -> None:
    need(len(g.params) >= 6, "a dynamic slice's parameters")
    rank, starts = _rank(int(g.params[0])), int(g.params[5])
    need(g.params[1] in (1, 2, 4, 8) and g.params[2] in (1, 4, 8), "a dynamic slice's sizes")
    need(0 <= starts <= rank, "a dynamic slice's starts")
    _counts(g, 6 + rank, 3 + 2 * rank + starts)
    need((g.params[6:] >= -1).all() and (g.params[6:] < starts).all(), "a dynamic slice's starts")
    for d in range(rank):
        _positive(g.col(1 + 2 * d), g.col(2 + 2 * d))
        need((g.col(2 + 2 * d) <= g.col(1 + 2 * d)).all(), "a window larger than its block")


def _branch(g: GroupView) -> None:
    _counts(g, 1, 2)


def _fifo(g: GroupView) -> None:
    _counts(g, 2, 5)
    need(0 <= g.params[0] <= 2 and 1 <= g.params[1] <= MAX_EXTENT, "a queue")
    _positive(g.col(1))


def _control(g: GroupView) -> None:
    need(g.rows == 1 and 1 <= len(g.params) <= 3 and len(g.columns) == 1, "a control step")


def _collective(g: GroupView) -> None:
    _counts(g, 3, 4)
    if g.params[0] != GATHER:
        _op(int(g.params[0]))
    _dtype(int(g.params[1]))
    need(g.params[2] >= 1, "groups of replicas")
    _positive(g.col(1))


def _sort(g: GroupView) -> None:
    need(len(g.params) >= 5, "a sort's parameters")
    n_ops, n_const, n_tmp, n_body, result = (int(v) for v in g.params[:5])
    regs = 2 * n_ops + n_const + n_tmp
    need(1 <= n_ops <= 16 and all(0 <= n <= 64 for n in (n_const, n_tmp, n_body)) and regs <= 128, "a sort's counts")
    need(0 <= result < regs, "a sort's result")
    _counts(g, 5 + n_ops + 2 * n_const + 7 * n_body, 3 + 2 * n_ops)
    sizes: dict[int, int] = {}
    for k in range(n_ops):
        need(g.params[5 + k] in (1, 2, 4, 8), "a sort's operand")
        sizes[2 * k] = sizes[2 * k + 1] = int(g.params[5 + k])
    at = 5 + n_ops
    for i in range(n_const):
        sizes[2 * n_ops + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    _words(g.params[at + 2 * n_const :].reshape(n_body, 7), regs, 2 * n_ops + n_const, sizes, 8)
    _positive(g.col(1), g.col(2))


def _quarter_cast(g: GroupView) -> None:
    _counts(g, 2, 5)
    need(g.params[0] in (0, 1) and g.params[1] in (0, 1), "a cast of quarters")
    _positive(g.col(1))


def _quarter_product(g: GroupView) -> None:
    need(len(g.params) >= 1, "a product's parameters")
    nd = _rank(int(g.params[0]), 3, 0)
    _counts(g, 2 + 4 * nd, 10 + 4 * nd)
    need(int(g.params[-1]) == METHODS.index("amp"), "a product's method")
    for d in range(nd):
        window = g.params[1 + 4 * d : 4 + 4 * d]
        need((window >= 1).all() and g.params[4 + 4 * d] in (0, 1), "a convolution's window")
        need((window <= MAX_EXTENT).all(), "a convolution's window")
        _positive(*(g.col(5 + 4 * d + i) for i in range(3)))
    outs, taps = ([g.col(c + 4 * d) for d in range(nd)] for c in (6, 7))
    # The vertex keeps a place for each output and tap.
    need((product(outs + taps, g.rows) <= MAX_EXTENT).all(), "a convolution's taps")
    _positive(*(g.col(i) for i in range(1, 5)))


def _sparse(g: GroupView) -> None:
    _counts(g, 6, 9)
    need(0 <= g.params[0] < len(MODES) and g.params[3] in BLOCKS, "a sparse product's mode or block")
    names = [DTYPES[_dtype(int(number))].name for number in g.params[1:3]]
    need(names in (["f32", "f32"], ["f16", "f32"], ["f16", "f16"]), "a sparse product's dtypes")
    need(g.params[4] in (2, 4) and g.params[5] in (0, 1), "a sparse product's positions")
    _positive(*(g.col(i) for i in range(1, 5)))


SHAPES = (
    _copy, _map, _reduce, _variadic, _dot, _conv, _window, _window, _gather, _scatter, _philox, _philox_next, _dynamic,
    _branch, _sort, _fifo, _control, _collective, _quarter_cast, _quarter_product, _sparse,
)  # fmt: skip
