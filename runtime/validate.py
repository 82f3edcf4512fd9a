"""Checks a program from a file as if somebody had written it by hand: every index, size and offset, before any use."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import METHODS
from ipu_runtime.codelets.model import Ints
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.opcodes import ARITY, DTYPE_NUMBER, DTYPES, OPS
from ipu_runtime.program import (
    BRANCH,
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    END,
    EXCHANGE,
    FOR,
    JUMP,
    LABEL,
    NEXT,
    REPEAT,
    STREAM_IN,
    STREAM_OUT,
    WINDOW,
    GroupView,
    Program,
)

MAX_TILES = 1 << 20
MAX_TILE_BYTES = 1 << 30
MAX_EXTENT = 1 << 24
MAX_TAPS = 1 << 16
MAX_IPUS = 64
MAX_TURNS = 1 << 30
MAX_WORK_NS = 1e11
"""A group that would keep the host busy for more than about a minute and a half is no program that was compiled."""


def _need(condition: Any, text: str) -> None:
    if not condition:
        raise ExecutableFormatError(text)


def validate(program: Program) -> None:
    """Raise ExecutableFormatError unless an engine may run the program.

    Every vertex's operands lie inside its tile's memory, every copy inside a tile or a host array, every code (kind,
    codelet, operation, dtype, register) exists.
    """
    try:
        _header(program)
        _tables(program)
        host = _host_sizes(program)
        kinds = _steps(program, host)
        _pipeline(program)
        for index in range(len(program.groups)):
            _need(index in kinds, f"group {index} belongs to no step, state or constant")
            kind, size = kinds[index]
            _group(program, index, kind, size)
    except ExecutableFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ExecutableFormatError(f"malformed program: {error!r}") from error


def _header(program: Program) -> None:
    header = program.header
    _need(isinstance(header, dict), "the header is not an object")
    target = header["target"]
    for name in ("tiles", "bytes_per_tile", "clock_hz", "exchange_bytes_per_cycle", "memcpy_bytes_per_cycle",
                 "weight_load_bytes_per_cycle", "sync_cycles", "exchange_fixed_cycles", "fragment_cycles",
                 "host_bytes_per_second", "host_fixed_cycles"):  # fmt: skip
        _need(isinstance(target[name], (int, float)) and target[name] > 0, f"target.{name} is not a positive number")
    _need(isinstance(target["tiles"], int) and target["tiles"] <= MAX_TILES, "target.tiles")
    used = header["used_bytes"]
    _need(isinstance(used, int) and 0 <= used <= MAX_TILE_BYTES, "used_bytes")
    _need(isinstance(header["slots"], int) and 0 <= header["slots"] <= 1 << 20, "slots")
    for kind in ("feeds", "outputs", "states"):
        for entry in header[kind]:
            _need(entry["dtype"] in DTYPE_NUMBER, f"{kind}: dtype {entry['dtype']!r}")
            _need(all(isinstance(n, int) and n >= 0 for n in entry["shape"]), f"{kind}: shape {entry['shape']!r}")
    for entry in header["feeds"]:
        wide = entry.get("host_dtype")
        _need(wide is None or (wide, entry["dtype"]) in (("s64", "s32"), ("u64", "u32")), "a feed's dtype on the host")
    for low, high, trips in header.get("loops", []):
        _need(0 <= low <= high < len(program.steps) and (trips is None or 0 <= trips < 1 << 40), "a loop")
    for branch, otherwise, end in header.get("choices", []):
        _need(0 <= branch <= otherwise <= end < len(program.steps), "a conditional")
    for name, most in (("ipus", MAX_IPUS), ("replicas", MAX_IPUS), ("micro_batches", MAX_TURNS)):
        _need(isinstance(header.get(name, 1), int) and 1 <= header.get(name, 1) <= most, name)
    for kind in ("feeds", "outputs"):
        for entry in header[kind]:
            _need(entry.get("micro", 1) in (1, program.micro_batches), f"{kind}: how often it is streamed")
    for entry in header["constants"]:
        least = {None: 0, "number": 4, "seed": 8}
        _need(entry.get("replica") in least and entry["nbytes"] >= least[entry.get("replica")], "a replica's constant")
    for entry in header.get("queues", []):
        _need(entry["mode"] in ("in", "all", "last"), "a queue's mode")
        _need(entry["dtype"] in DTYPE_NUMBER, "a queue's dtype")
        _need(all(isinstance(n, int) and n >= 0 for n in entry["shape"]), "a queue's shape")
    slots = [entry["slot"] for kind in ("feeds", "outputs", "queues") for entry in header.get(kind, [])]
    slots += [entry["remote"] for entry in header["states"] if "remote" in entry]
    _need(sorted(slots) == list(range(header["slots"])), "every slot belongs to one feed or output")
    _need(all(isinstance(t, str) for t in header["labels"]), "labels are texts")


def _tables(program: Program) -> None:
    groups, columns = program.groups, program.columns
    if len(groups):
        _need((groups >= 0).all(), "a group has a negative number")
        _need((groups[:, 0] < len(registry.MODELS)).all(), "a group has an unknown codelet")
        _need((groups[:, 2] + groups[:, 3] <= len(program.params)).all(), "a group's parameters leave the table")
        _need((groups[:, 4] + groups[:, 5] <= len(columns)).all(), "a group's columns leave the table")
        _need((groups[:, 5] >= 1).all() and (groups[:, 1] >= 1).all(), "a group without rows or columns")
        _need((groups[:, 1] < 1 << 31).all(), "a group with too many rows")
    if len(columns):
        _need((columns >= 0).all() and (columns.sum(1) <= len(program.data)).all(), "a column leaves the data")
    for codelet, rows, _, _, first, n in groups.tolist():
        length = columns[first : first + n, 1]
        _need(
            ((length == 1) | (length == rows)).all(), f"a column of codelet {codelet} has another length than its rows"
        )
    variables, cells = program.variables, program.cells
    if len(variables):
        _need((variables >= 0).all() and (variables[:, 0] < len(CATEGORIES)).all(), "a variable's category or life")
        _need((variables[:, 3].astype(np.int64) + variables[:, 4] <= len(cells)).all(), "a variable's cells")
        _need((variables[:, 5] < len(program.header["labels"])).all(), "a variable's label")
        _need(int(variables[:, 4].sum(dtype=np.int64)) == len(cells), "cells without a variable")
    if len(cells):
        wide = cells.astype(np.int64)
        _need((wide >= 0).all() and (wide[:, 0] < program.tile_count).all(), "a cell's tile")
        _need((wide[:, 1] + wide[:, 2] <= program.header["used_bytes"]).all(), "a cell leaves its tile")


def _host_sizes(program: Program) -> dict[int, int]:
    """Bytes of one iteration of each host slot."""
    sizes = {}
    for kind in ("feeds", "outputs", "queues"):
        for entry in program.header.get(kind, []):
            sizes[entry["slot"]] = _bytes(entry)
    sizes.update({entry["remote"]: _bytes(entry) for entry in program.header["states"] if "remote" in entry})
    return sizes


def _bytes(entry: Any) -> int:
    count = 1
    for n in entry["shape"]:
        count *= n
    _need(count < 1 << 40, "an array is too large")
    return int(count * DTYPES[DTYPE_NUMBER[entry["dtype"]]].itemsize)


def _steps(program: Program, host: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Kind, and for streams the host array's bytes, of each group; loops must be closed and not nested."""
    kinds: dict[int, tuple[int, int]] = {}
    inputs = {f["slot"] for f in program.header["feeds"]}
    inputs |= {q["slot"] for q in program.header.get("queues", []) if q["mode"] == "in"}
    remote = {s["remote"] for s in program.header["states"] if "remote" in s}
    depth, turning, at = 0, -1, 0
    kinds_of = program.steps[:, 0]
    # Before, in or behind which loop over iterations or slots.
    side = np.cumsum(np.isin(kinds_of, (REPEAT, END, FOR, NEXT)))
    for number, (kind, first, last, label) in enumerate(program.steps.tolist()):
        _need(0 <= kind <= COLLECTIVE, f"a step has kind {kind}")
        _need(first == at and first <= last <= len(program.groups), "a step's groups are out of order")
        _need(0 <= label < max(1, len(program.header["labels"])), "a step's label")
        at = last
        if kind == REPEAT:
            depth += 1
        elif kind == END:
            depth -= 1
        _need(0 <= depth <= 1, "loops are nested or not closed")
        _need(kind not in (REPEAT, END, LABEL) or first == last, "a control step has groups")
        if kind in (FOR, NEXT, WINDOW):
            turning = _turning(program, number, turning, depth)
        if kind in (BRANCH, JUMP):
            _need(last == first + 1 and program.groups[first, 0] == registry.BRANCH, "a branch needs one flag")
            view = program.group(first)
            _need(view.rows == 1 and len(view.params) == 1, "a branch needs one flag")
            goal = int(view.params[0])
            _need(0 <= goal < len(program.steps) and kinds_of[goal] == LABEL, f"step {number} goes to no label")
            _need(side[goal] == side[number], f"step {number} leaves its loop")
        for group in range(first, last):
            size = -1
            if kind in (STREAM_IN, STREAM_OUT):
                slot = int(program.group(group).params[2])
                right = slot in remote or (slot in inputs) == (kind == STREAM_IN)
                _need(slot in host and right, f"group {group}: slot {slot}")
                size = host[slot]
            kinds[group] = (kind, size)
    _need(depth == 0 and turning < 0, "a loop is not closed")
    _need(len(program.header["group_labels"]) >= at, "a group has no label")
    for state in program.header["states"]:
        if "remote" in state:
            continue
        for name, kind in (("write", STREAM_IN), ("read", STREAM_OUT)):
            for group in _range(state[name], len(program.groups)):
                kinds[group] = (kind, _bytes(state))
    for constant in program.header["constants"]:
        first, n = constant["first"], constant["nbytes"]
        _need(
            isinstance(first, int) and isinstance(n, int) and 0 <= first <= first + n <= len(program.blob), "a constant"
        )
        for group in _range(constant["groups"], len(program.groups)):
            kinds[group] = (STREAM_IN, n)
    return kinds


def _turning(program: Program, number: int, inside: int, depth: int) -> int:
    """Checks a step of the loop over micro-batches.

    Args:
        program: the program.
        number: of the step.
        inside: the step at which the loop begins that this one is in, or -1.
        depth: 1 in the loop over iterations.

    Returns:
        `inside` for the next step.
    """
    kind, first, last, _ = program.steps[number].tolist()
    _need(last == first + 1 and program.groups[first, 0] == registry.CONTROL, "a control step needs its parameters")
    params = program.group(first).params.tolist()
    if kind == FOR:
        _need(inside < 0 and depth == 1 and len(params) == 1 and 1 <= params[0] <= MAX_TURNS, "a loop over slots")
        return number
    _need(inside >= 0, "a step of a loop over slots outside one")
    if kind == NEXT:
        _need(params == [inside], "the end of another loop")
        return -1
    _need(len(params) == 3 and params[2] == program.micro_batches and abs(params[1]) <= MAX_TURNS, "a window")
    goal = params[0]
    _need(number < goal < len(program.steps) and program.steps[goal, 0] == LABEL, f"step {number} goes to no label")
    _need(not np.isin(program.steps[number:goal, 0], (FOR, NEXT, REPEAT, END)).any(), "a window leaves its loop")
    return inside


def _pipeline(program: Program) -> None:
    """What the header says of the loop over slots is what the steps are."""
    header, kinds = program.header, program.steps[:, 0]
    loops = np.flatnonzero(kinds == FOR)
    slots = header.get("slots_loop")
    _need((slots is None) == (len(loops) == 0), "slots_loop without a loop, or a loop without it")
    if slots is None:
        _need(not header.get("windows") and not header.get("pipeline"), "a pipeline without a loop over slots")
        return
    low, high = slots
    _need(len(loops) == 1 and low == int(loops[0]) and kinds[high] == NEXT, "slots_loop is not the loop over slots")
    turns = int(program.group(int(program.steps[low, 1])).params[0])
    _need([low, high, turns] in [list(loop) for loop in header["loops"]], "the loop over slots is none of the loops")
    plan = header["pipeline"]
    numbers = [plan[name] for name in ("program_stages", "stages", "period", "rows", "slots", "micro_batches")]
    _need(all(type(n) is int and 0 <= n <= MAX_TURNS for n in numbers), "a pipeline's numbers")
    count, forward, period = numbers[:3]
    _need(1 <= count <= 2 * MAX_IPUS and count in (max(1, forward), 2 * forward), "a pipeline's stages")
    _need(period >= 1 and plan["micro_batches"] == program.micro_batches, "a pipeline's period or micro-batches")
    chips = plan["chips"]
    _need(len(chips) == count and all(type(c) is int and 0 <= c < program.ipus for c in chips), "a pipeline's chips")
    _need(isinstance(plan["schedule"], str) and isinstance(plan["queues"], list), "a pipeline's words")
    found = set()
    for begin, end, stage, link in header["windows"]:
        _need(all(type(n) is int for n in (begin, end, stage, link)), "a window's numbers")
        _need(low < begin < end < high and kinds[begin] == WINDOW and kinds[end] == LABEL, "a window's steps")
        _need(0 <= stage < count and link in (0, 1), "a window's stage")
        params = program.group(int(program.steps[begin, 1])).params.tolist()
        _need(params[:2] == [end, stage // period], "a window is of another stage")
        found.add(begin)
    _need(found == set(np.flatnonzero(kinds == WINDOW).tolist()), "the windows are not all of them")


def _range(pair: Any, most: int) -> range:
    first, last = pair
    _need(isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= most, "a range of groups")
    return range(first, last)


def _group(program: Program, index: int, kind: int, host_bytes: int) -> None:
    g = program.group(index)
    is_copy = g.codelet == registry.COPY
    of_kinds = {
        registry.COPY: (EXCHANGE, STREAM_IN, STREAM_OUT),
        registry.BRANCH: (BRANCH, JUMP),
        registry.CONTROL: (FOR, NEXT, WINDOW),
        registry.COLLECTIVE: (COLLECTIVE,),
    }
    _need(kind in of_kinds.get(g.codelet, (COMPUTE,)), f"group {index}: codelet {g.codelet} in a step of kind {kind}")
    if g.codelet == registry.COLLECTIVE:
        _need(len(g.params) == 3 and program.replicas % max(1, int(g.params[2])) == 0, "groups of replicas")
    SHAPES[g.codelet](g)
    _need(registry.MODELS[g.codelet].work(g) <= MAX_WORK_NS, f"group {index}: more work than any chip's vertices hold")
    limit, tiles = int(program.header["used_bytes"]), program.tile_count
    for side, operand in enumerate(registry.MODELS[g.codelet].operands(g)):
        tile = np.broadcast_to(g.col(side if is_copy else 0), g.rows)
        on_host = is_copy and ((kind == STREAM_IN and side == 0) or (kind == STREAM_OUT and side == 1))
        offset, nbytes = np.broadcast_to(operand.offset, g.rows), np.broadcast_to(operand.nbytes, g.rows)
        bound = host_bytes if on_host else limit
        _need(((tile >= 0) & (tile < tiles)).all(), f"group {index}: a tile out of range")
        _need((nbytes >= 0).all() and (offset >= 0).all() and (offset + nbytes <= bound).all(),
              f"group {index} ({registry.MODELS[g.codelet].name}): an operand leaves its memory")  # fmt: skip


def _counts(g: GroupView, params: int, columns: int) -> None:
    _need(
        len(g.params) == params and len(g.columns) == columns,
        f"codelet {g.codelet}: wrong number of parameters or columns",
    )


def _positive(*columns: Ints) -> None:
    """Extents are not negative, and no single loop is longer than a tile could ever need."""
    for column in columns:
        _need((column >= 0).all(), "a negative extent")
        _need((column <= MAX_EXTENT).all(), "an extent larger than a tile")


def _rank(value: int, most: int = 8, least: int = 1) -> int:
    _need(least <= value <= most, f"rank {value}")
    return int(value)


def _dtype(number: int) -> int:
    _need(0 <= number < len(DTYPES), f"dtype {number}")
    return int(number)


def _op(number: int) -> int:
    _need(0 <= number < len(OPS), f"operation {number}")
    return int(number)


def _copy(g: GroupView) -> None:
    _need(len(g.params) == 3 and g.params[1] in (1, 2, 4, 8), "a copy's element size")
    nd = _rank(int(g.params[0]), 8, 0)
    _counts(g, 3, 4 + 3 * nd)
    for d in range(nd):
        _need((g.col(4 + 3 * d) >= 1).all(), "a copy of no elements")


def _words(words: Any, regs: int, writable_from: int, sizes: dict[int, int], slot: int) -> None:
    """A body of operations: codes exist, registers exist, constants are not written, no register overflows."""
    by_number = {n: name for name, n in OPS.items()}
    for is_convert, op, dtype, dst, a, b, c in words.tolist():
        _need(is_convert in (0, 1), "a body's operation")
        _dtype(dtype)
        if is_convert:
            out, arity = DTYPES[_dtype(op)].itemsize, 1
        else:
            name = by_number[_op(op)]
            arity = ARITY[name]
            out = 1 if name.startswith("compare") or name == "is-finite" else DTYPES[dtype].itemsize
        _need(writable_from <= dst < regs, "a body writes to an operand or constant")
        _need(all(0 <= r < regs for r in (a, b, c)), "a body's register")
        _need(out <= sizes.get(dst, slot), "a body's result does not fit its register")
        for r, is_pred in zip((a, b, c)[:arity], (not is_convert and by_number[op] == "select", False, False)):
            _need((1 if is_pred else DTYPES[dtype].itemsize) <= sizes.get(r, slot), "a body's operand is too small")


def _map(g: GroupView) -> None:
    _need(len(g.params) >= 8, "a map without parameters")
    rank, n_in, n_out, n_const, n_tmp, n_body, chunk, slot = (int(v) for v in g.params[:8])
    _rank(rank)
    _need(all(0 <= n <= 4096 for n in (n_in, n_out, n_const, n_tmp, n_body)) and n_out >= 1, "a map's counts")
    _need(1 <= chunk <= 512 and slot in (1, 2, 4, 8), "a map's chunk")
    _counts(g, 8 + 2 * n_in + 2 * n_out + 2 * n_const + 7 * n_body, 1 + rank + n_in + n_out)
    _positive(*(g.col(1 + d) for d in range(rank)))
    regs = n_in + n_const + n_tmp + n_out
    sizes: dict[int, int] = {}
    for i in range(n_in):
        _need(0 <= g.params[8 + 2 * i] < 1 << rank and g.params[9 + 2 * i] in (1, 2, 4, 8), "a map's input")
        sizes[i] = int(g.params[9 + 2 * i])
    at = 8 + 2 * n_in
    for i in range(n_out):
        reg, size = int(g.params[at + 2 * i]), int(g.params[at + 2 * i + 1])
        _need(0 <= reg < regs and size in (1, 2, 4, 8), "a map's output")
        sizes[n_in + n_const + n_tmp + i] = size
    at += 2 * n_out
    for i in range(n_const):
        sizes[n_in + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    at += 2 * n_const
    _words(g.params[at:].reshape(n_body, 7), regs, n_in + n_const, sizes, 8)


def _reduce(g: GroupView) -> None:
    _need(len(g.params) == 5, "a reduce's parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 5, 3 + rank)
    _need(0 <= g.params[1] < 1 << rank, "a reduce's mask")
    _op(int(g.params[2]))
    _dtype(int(g.params[3]))
    _positive(*(g.col(1 + d) for d in range(rank)))


def _variadic(g: GroupView) -> None:
    _need(len(g.params) >= 6, "a reduce's parameters")
    rank, mask, n_ops, n_const, n_tmp, n_body = (int(v) for v in g.params[:6])
    _rank(rank)
    _need(0 <= mask < 1 << rank and 1 <= n_ops <= 16, "a reduce's mask or operands")
    regs = 2 * n_ops + n_const + n_tmp
    _need(all(0 <= n <= 64 for n in (n_const, n_tmp, n_body)) and regs <= 96, "a reduce's counts")
    _counts(g, 6 + 3 * n_ops + 2 * n_const + 7 * n_body, 1 + rank + 2 * n_ops)
    _positive(*(g.col(1 + d) for d in range(rank)))
    sizes: dict[int, int] = {}
    for k in range(n_ops):
        size, reg = int(g.params[6 + 3 * k]), int(g.params[8 + 3 * k])
        _need(size in (1, 2, 4, 8) and 0 <= reg < regs, "a reduce's operand")
        sizes[k] = sizes[n_ops + k] = size
    at = 6 + 3 * n_ops
    for i in range(n_const):
        sizes[2 * n_ops + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    _words(g.params[at + 2 * n_const :].reshape(n_body, 7), regs, 2 * n_ops + n_const, sizes, 8)


def _partials(dtype: int, method: int, partials: int) -> None:
    """Partial sums: fp32 or, of fp16, fp16; int32 of integers, which are not multiplied by the AMP."""
    _need(0 <= method < len(METHODS), "a product's method")
    _dtype(partials)
    name, sums = DTYPES[dtype].name, DTYPES[partials].name
    if name in ("f16", "f32"):
        _need(sums == "f32" or sums == name, "a product's partial sums")
        _need(METHODS[method] != "vector", "a product's method")
    else:
        _need(sums == "s32" and METHODS[method] == "vector", "a product's partial sums")


def _dot(g: GroupView) -> None:
    _counts(g, 5, 8)
    _dtype(int(g.params[0]))
    _partials(int(g.params[0]), int(g.params[3]), int(g.params[4]))
    _positive(*(g.col(i) for i in range(1, 5)))


def _conv(g: GroupView) -> None:
    _need(len(g.params) >= 3, "a convolution's parameters")
    nd = _rank(int(g.params[0]), 3, 0)
    _counts(g, 5 + 4 * nd, 8 + 4 * nd)
    _dtype(int(g.params[1]))
    _partials(int(g.params[1]), int(g.params[3 + 4 * nd]), int(g.params[4 + 4 * nd]))
    _need(g.params[2] in (0, 1), "a convolution's order")
    for d in range(nd):
        _need((g.params[3 + 4 * d : 6 + 4 * d] >= 1).all() and g.params[6 + 4 * d] in (0, 1), "a convolution's window")
        _need((g.params[3 + 4 * d : 6 + 4 * d] <= MAX_EXTENT).all(), "a convolution's window")
        _need((g.col(6 + 4 * d) * g.col(7 + 4 * d) <= MAX_EXTENT).all(), "a convolution's taps")
        _positive(*(g.col(5 + 4 * d + i) for i in range(3)))
    _positive(*(g.col(i) for i in range(1, 5)))


def _window(g: GroupView) -> None:
    extra = 1 if g.codelet == registry.SELECT_SCATTER else 0
    per = 5 if extra else 3
    _need(len(g.params) >= 4, "a window's parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 4 + 4 * rank + extra, 3 + per * rank + extra)
    _op(int(g.params[1]))
    _dtype(int(g.params[2]))
    sizes = g.params[4 : 4 + 4 * rank]
    _need((sizes >= 1).all() and (sizes <= MAX_TAPS).all(), "a window's sizes")
    _need(np.prod(sizes[::4].astype(float)) <= MAX_TAPS, "a window's taps")
    if extra:
        _need(
            int(g.params[-1]) in {n for name, n in OPS.items() if name.startswith("compare")}, "a window's comparison"
        )
    for d in range(rank):
        _positive(g.col(1 + per * d), g.col(2 + per * d))
        reach = g.col(3 + per * d) + (g.col(2 + per * d) - 1) * g.params[5 + 4 * d]
        _need((np.abs(reach) < 1 << 40).all(), "a window's reach")
        if extra:
            _positive(g.col(4 + per * d), g.col(5 + per * d))


def _gather(g: GroupView) -> None:
    _counts(g, 4, 8)
    _need(g.params[0] in (1, 2, 4, 8) and g.params[1] in (1, 4, 8) and g.params[3] >= 1, "a gather's parameters")
    _positive(*(g.col(i) for i in range(1, 5)))


def _scatter(g: GroupView) -> None:
    _counts(g, 5, 8)
    _dtype(int(g.params[0]))
    _op(int(g.params[2]))
    _need(g.params[1] in (1, 4, 8) and g.params[4] >= 1, "a scatter's parameters")
    _positive(*(g.col(i) for i in range(1, 5)))


def _philox(g: GroupView) -> None:
    _need(len(g.params) >= 2, "random bits' parameters")
    rank = _rank(int(g.params[0]))
    _counts(g, 2 + rank, 3 + 2 * rank)
    _need(g.params[1] in (1, 2), "random bits' width")
    for d in range(rank):
        _positive(g.col(1 + 2 * d), g.col(2 + 2 * d))


def _philox_next(g: GroupView) -> None:
    _counts(g, 1, 3)


def _dynamic(g: GroupView) -> None:
    _need(len(g.params) >= 6, "a dynamic slice's parameters")
    rank, starts = _rank(int(g.params[0])), int(g.params[5])
    _need(g.params[1] in (1, 2, 4, 8) and g.params[2] in (1, 4, 8), "a dynamic slice's sizes")
    _need(0 <= starts <= rank, "a dynamic slice's starts")
    _counts(g, 6 + rank, 3 + 2 * rank + starts)
    _need((g.params[6:] >= -1).all() and (g.params[6:] < starts).all(), "a dynamic slice's starts")
    for d in range(rank):
        _positive(g.col(1 + 2 * d), g.col(2 + 2 * d))
        _need((g.col(2 + 2 * d) <= g.col(1 + 2 * d)).all(), "a window larger than its block")


def _branch(g: GroupView) -> None:
    _counts(g, 1, 2)


def _fifo(g: GroupView) -> None:
    _counts(g, 2, 5)
    _need(0 <= g.params[0] <= 2 and 1 <= g.params[1] <= MAX_EXTENT, "a queue")
    _positive(g.col(1))


def _control(g: GroupView) -> None:
    _need(g.rows == 1 and 1 <= len(g.params) <= 3 and len(g.columns) == 1, "a control step")


def _collective(g: GroupView) -> None:
    _counts(g, 3, 4)
    _op(int(g.params[0]))
    _dtype(int(g.params[1]))
    _need(g.params[2] >= 1, "groups of replicas")
    _positive(g.col(1))


def _sort(g: GroupView) -> None:
    _need(len(g.params) >= 5, "a sort's parameters")
    n_ops, n_const, n_tmp, n_body, result = (int(v) for v in g.params[:5])
    regs = 2 * n_ops + n_const + n_tmp
    _need(1 <= n_ops <= 16 and all(0 <= n <= 64 for n in (n_const, n_tmp, n_body)) and regs <= 128, "a sort's counts")
    _need(0 <= result < regs, "a sort's result")
    _counts(g, 5 + n_ops + 2 * n_const + 7 * n_body, 3 + 2 * n_ops)
    sizes: dict[int, int] = {}
    for k in range(n_ops):
        _need(g.params[5 + k] in (1, 2, 4, 8), "a sort's operand")
        sizes[2 * k] = sizes[2 * k + 1] = int(g.params[5 + k])
    at = 5 + n_ops
    for i in range(n_const):
        sizes[2 * n_ops + i] = DTYPES[_dtype(int(g.params[at + 2 * i]))].itemsize
    _words(g.params[at + 2 * n_const :].reshape(n_body, 7), regs, 2 * n_ops + n_const, sizes, 8)
    _positive(g.col(1), g.col(2))


SHAPES = (
    _copy, _map, _reduce, _variadic, _dot, _conv, _window, _window, _gather, _scatter, _philox, _philox_next, _dynamic,
    _branch, _sort, _fifo, _control, _collective,
)  # fmt: skip
