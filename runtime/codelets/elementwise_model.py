"""The `map` vertex: cycles by the element-wise tables of poplibs, one launch for the whole fused expression.

Source of the figures: hardware.md 3.1 to 3.4 (poplibs popopsCycleEstimators.cpp, popops/PerformanceEstimation.cpp).
An expression of one operation costs what poplibs' vertex for it costs: its launch, the start of its workers and its
loop depend on whether the operands have one shape, or one is a scalar, a vector along the rows or one across them, and
on whether the result overwrites an operand. A fused expression is one codelet on the chip too (popops::map generates
it): one launch and one start, the dearest of its operations', then the inner loops of all of them. Loads and stores
between fused operations stay counted, so the sum is an upper bound for a chain. Figures marked [unvalidated] have no
source.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ipu_runtime.codelets.model import SUPERVISOR, Ints, Operand, ceil_div, pointers, product
from ipu_runtime.opcodes import ARITY, DTYPES, OPS
from ipu_runtime.program import GroupView

HEAD = 8
OP_NAMES = {number: name for name, number in OPS.items()}

# (cycles of a loop, elements of a loop). Entries given as "c (+4) per v" hold c + 4 and v.
_F32: dict[str, tuple[float, float]] = {
    "exponential": (6, 2), "log": (12, 2), "sqrt": (10, 2), "rsqrt": (8, 2), "tanh": (12, 2), "logistic": (12, 2),
    "negate": (2, 2), "abs": (5, 1), "erf": (41, 1), "sine": (2304, 1), "cosine": (2304, 1), "tan": (5100, 1),
    "log-plus-one": (22, 2), "exponential-minus-one": (8, 1), "cbrt": (31, 2), "floor": (6, 2), "ceil": (6, 2),
    "round-nearest-afz": (6, 2), "round-nearest-even": (6, 2), "sign": (9, 2), "is-finite": (9, 2),
    "add": (3, 2), "subtract": (3, 2), "multiply": (3, 2), "divide": (10, 2), "maximum": (3, 2), "minimum": (3, 2),
    "power": (312, 1), "remainder": (133, 2), "atan2": (272, 2), "compare-ne": (20, 4), "compare": (14, 4),
    "select": (5, 1), "clamp": (2, 2), "copy": (1, 2),
}  # fmt: skip
_F16: dict[str, tuple[float, float]] = {
    "exponential": (4, 4), "log": (4, 4), "sqrt": (23, 4), "rsqrt": (19, 4), "tanh": (4, 4), "logistic": (6, 4),
    "negate": (2, 4), "abs": (5, 1), "erf": (13, 1), "sine": (25, 1), "cosine": (25, 1), "tan": (5700, 1),
    "log-plus-one": (22, 4), "exponential-minus-one": (9, 4), "cbrt": (21, 4), "floor": (6, 4), "ceil": (6, 4),
    "round-nearest-afz": (6, 4), "round-nearest-even": (6, 4), "sign": (9, 4), "is-finite": (9, 4),
    "add": (3, 4), "subtract": (3, 4), "multiply": (3, 4), "divide": (21, 4), "maximum": (4, 4), "minimum": (4, 4),
    "power": (325, 1), "remainder": (300, 4), "atan2": (578, 4), "compare-ne": (11, 4), "compare": (9, 4),
    "select": (5, 1), "clamp": (2, 4), "copy": (1, 4),
}  # fmt: skip
_INT: dict[str, tuple[float, float]] = {
    "negate": (6, 1), "abs": (6, 1), "not": (6, 1), "popcnt": (6, 1), "count-leading-zeros": (6, 1), "sign": (9, 1),
    "add": (7, 1), "subtract": (7, 1), "multiply": (7, 1), "divide": (277, 1), "maximum": (7, 1), "minimum": (7, 1),
    "power": (32, 1), "remainder": (292, 1), "and": (7, 1), "or": (7, 1), "xor": (7, 1), "shift-left": (7, 1),
    "shift-right-arithmetic": (7, 1), "shift-right-logical": (7, 1), "compare": (22, 4), "compare-le": (26, 4),
    "compare-ge": (26, 4), "select": (5, 1), "clamp": (7, 1), "copy": (1, 1),
}  # fmt: skip
# 64-bit integers are several instructions an element: add 9-11, multiply 26, divide 103-148 (hardware.md 3.2). Bit
# operations and shifts are two or three 32-bit ones [unvalidated].
_INT64: dict[str, tuple[float, float]] = {
    "add": (11, 1), "subtract": (11, 1), "multiply": (26, 1), "divide": (148, 1), "remainder": (148, 1),
    "compare": (14, 1), "copy": (1, 1),
}  # fmt: skip
_BOOL: dict[str, tuple[float, float]] = {
    "and": (5, 4), "or": (5, 4), "xor": (5, 4), "not": (21, 1), "compare": (28, 4), "compare-eq": (6, 4),
    "compare-ne": (5, 4), "compare-gt": (31, 4), "add": (5, 4), "multiply": (5, 4), "maximum": (5, 4),
    "minimum": (5, 4), "select": (5, 1),
    "copy": (1, 4),
}  # fmt: skip
_DEFAULT = {"f32": (10.0, 1.0), "f16": (10.0, 1.0), "i64": (21.0, 1.0), "int": (10.0, 1.0), "pred": (10.0, 1.0)}


def loop(op: str, dtype: str) -> tuple[float, float, bool]:
    """Cycles and elements of one inner loop, and whether a source gives them.

    Args:
        op: kernel operation.
        dtype: dtype of its operands.
    """
    if dtype in ("f32", "f16"):
        table, kind = (_F32 if dtype == "f32" else _F16), dtype
    elif dtype in ("s64", "u64"):
        table, kind = _INT64, "i64"
    elif dtype == "pred":
        table, kind = _BOOL, "pred"
    else:
        table, kind = _INT, "int"
    for name in (op, "compare" if op.startswith("compare") else op):
        if name in table:
            return (*table[name], True)
    return (*_DEFAULT[kind], False)


# Where a result overwrites an operand of its own shape and the vertex does nothing else.
_IN_PLACE: dict[tuple[str, str], tuple[float, float]] = {
    ("log", "f32"): (14, 2), ("log", "f16"): (6, 4), ("tanh", "f32"): (10, 2), ("tanh", "f16"): (2, 4),
    ("logistic", "f32"): (10, 2), ("logistic", "f16"): (4, 4), ("abs", "f32"): (5, 2), ("abs", "f16"): (5, 4),
    ("maximum", "f32"): (4, 2), ("minimum", "f32"): (4, 2),
}  # fmt: skip


def _scalar_loop(op: str, dtype: str) -> tuple[float, float]:
    """The loop of a binary operation with a scalar. Source: hardware.md 3.3."""
    own = loop(op, dtype)[:2]
    if dtype in ("f32", "f16"):
        half = dtype == "f16"
        if op in ("add", "subtract", "multiply"):
            return 2, 4 if half else 2
        if op == "divide":
            return 8 if half else 6, 2
        return (8 if half else 12, 4) if op.startswith("compare") else own
    if own == (7, 1):
        return 6, 1
    if op.startswith("compare") and dtype not in ("pred", "s64", "u64"):
        return 20 if op in ("compare-le", "compare-ge") else 16, 4
    return own


def convert_loop(target: str, source: str) -> tuple[float, float, float]:
    """A conversion's cycles before its loop, cycles and elements of the loop. Source: hardware.md 3.4."""
    if "64" in target or "64" in source:
        return 3, 5, 1
    if (source, target) == ("f16", "f32"):
        return 19, 1, 2
    if (source, target) == ("f32", "f16"):
        return 19, 2, 4
    if source in ("u8", "s8") and target == "f16":
        return 18, 9, 4
    if source == "f16" and target in ("u8", "s8"):
        return 23, 16, 4
    return 19, 2, 1


def _copy(n: Ints, size: int) -> tuple[int, Ints]:
    """Start and loop of Fill1D for one worker. Source: hardware.md 3.4."""
    if size == 8:
        return 5, n
    if size == 1:
        return 28, np.where(n < 64, ceil_div(n, 4), 11 + ceil_div(n, 8))
    return (24, ceil_div(n, 2)) if size == 4 else (26, ceil_div(n, 4))


def _vector_inner(op: str, dtype: str, length: Ints, blocks: Ints) -> Ints | None:
    """BroadcastVectorInner, a bias for each column: one worker's `blocks` rows. Source: hardware.md 3.3."""
    if op not in ("add", "subtract", "multiply"):
        return None
    if dtype == "f32":
        return 5 + length * (3 + 2 * blocks + 5)
    if dtype != "f16":
        return None
    eight = 6 + blocks + 3 if op == "multiply" else 8 + 2 * (blocks - 1) + 7
    return 5 + np.where(length % 8 == 0, length // 8 * eight, 9 * length * blocks)


def body_cycles(words: Any, n: Ints) -> Ints:
    """Cycles of one worker that runs a body's operations over `n` elements, operands all of one shape."""
    total = n * 0
    for is_convert, op, dtype in words:
        if is_convert:
            first, cycles, per = convert_loop(DTYPES[op].name, DTYPES[dtype].name)
            total = total + int(first)
        else:
            cycles, per, _ = loop(OP_NAMES[op], DTYPES[dtype].name)
        total = total + ceil_div(n, int(per)) * int(cycles)
    return total


class _Block(NamedTuple):
    """A group's blocks: extents, elements, workers that share them, and elements of the busiest one."""

    extents: list[Ints]
    size: Ints
    workers: int
    share: Ints

    @classmethod
    def of(cls, g: GroupView, workers: int) -> _Block:
        extents = [g.col(1 + d) for d in range(int(g.params[0]))]
        size = product(extents, g.rows)
        return cls(extents, size, workers, ceil_div(size, workers))


class Map:
    """A fused element-wise expression."""

    name = "map"
    source = "poplibs popops/PerformanceEstimation.cpp, operation by operation"
    code_bytes = 512  # [unvalidated] hardware.md 5.1: 100 B to 2 KiB a vertex type

    def _parts(self, g: GroupView) -> tuple[int, int, int, Any]:
        rank, n_in, n_out, n_const, _, n_body = (int(v) for v in g.params[:6])
        first = HEAD + 2 * n_in + 2 * n_out + 2 * n_const
        return rank, n_in, n_out, g.params[first : first + 7 * n_body].reshape(n_body, 7)

    def operands(self, g: GroupView) -> list[Operand]:
        """Inputs, whole or broadcast, then outputs."""
        rank, n_in, n_out, _ = self._parts(g)
        ext = [g.col(1 + d) for d in range(rank)]
        full = product(ext, g.rows)
        found = []
        for i in range(n_in):
            mask, size = int(g.params[HEAD + 2 * i]), int(g.params[HEAD + 2 * i + 1])
            has = product([e for d, e in enumerate(ext) if mask >> d & 1], g.rows)
            found.append(Operand(g.col(1 + rank + i), has * size * (full > 0), "r"))
        for i in range(n_out):
            size = int(g.params[HEAD + 2 * n_in + 2 * i + 1])
            found.append(Operand(g.col(1 + rank + n_in + i), full * size, "w"))
        return found

    def cycles(self, g: GroupView, target: Any) -> Ints:
        """Launch + 6 (start + inner loops); see the module's text."""
        rank, n_in, n_out, body = self._parts(g)
        inputs = [g.columns[1 + rank + i] for i in range(n_in) if int(g.params[HEAD + 2 * i]) == (1 << rank) - 1]
        outs = [g.columns[1 + rank + n_in + i] for i in range(n_out)]
        over = np.zeros(1, bool)
        for out in outs:
            for x in inputs:
                over = over | (out == x)
        block = _Block.of(g, target.workers)
        plain = self._cycles(g, block, body.tolist(), False)
        return np.where(over, self._cycles(g, block, body.tolist(), True), plain) if over.any() else plain

    def _lies(self, g: GroupView, register: int) -> str:
        """How an operand lies in the block: "same" shape, "scalar", "inner" (one for each column), "outer"."""
        rank, n_in, _, n_const = (int(v) for v in g.params[:4])
        if register >= n_in:
            return "scalar" if register < n_in + n_const else "same"
        mask, full = int(g.params[HEAD + 2 * register]), (1 << rank) - 1
        if mask in (0, full):
            return "scalar" if mask == 0 and rank else "same"
        # A mask of the last dimensions only: its complement is a run of ones from the first.
        missing = full & ~mask
        return "inner" if missing & (missing + 1) == 0 else "outer"

    def _cycles(self, g: GroupView, block: _Block, body: list[list[int]], in_place: bool) -> Ints:
        launch, start = 0, 0
        total = block.share * 0
        for word in body:
            first, ready, inner = self._word(g, block, word, in_place, len(body) == 1)
            launch, start, total = max(launch, first), max(start, ready), total + inner
        return launch + block.workers * (start + total)

    def operations(self, g: GroupView) -> int:
        """Arithmetic of all the group's vertices: one for each element and operation; a conversion or copy is none."""
        _, _, _, body = self._parts(g)
        words = sum(not is_convert and OP_NAMES[number] != "copy" for is_convert, number, *_ in body.tolist())
        return words * int(_Block.of(g, 1).size.sum())

    def unsourced_cycles(self, g: GroupView, target: Any) -> Ints | None:
        """The inner loops of operations that are in no table."""
        _, _, _, body = self._parts(g)
        words = [w for w in body.tolist() if not w[0] and not loop(OP_NAMES[w[1]], DTYPES[w[2]].name)[2]]
        if not words:
            return None
        block = _Block.of(g, target.workers)
        return block.workers * sum((self._word(g, block, w, False, False)[2] for w in words), block.share * 0)

    def _word(self, g: GroupView, block: _Block, word: list[int], in_place: bool, alone: bool) -> tuple[int, int, Ints]:
        """One operation: cycles of the launch, of a worker's start, and of its inner loops."""
        is_convert, number, dtype_number, _, *args = word
        n = block.share
        dtype, op = DTYPES[dtype_number].name, OP_NAMES[number]
        if is_convert:
            first, cycles, per = convert_loop(DTYPES[number].name, dtype)
            return SUPERVISOR + 1, 18, int(first) + ceil_div(n, int(per)) * int(cycles)
        if op == "copy":
            return 0, *_copy(n, DTYPES[dtype_number].itemsize)
        cycles, per, _ = loop(op, dtype)
        if in_place and alone:
            cycles, per = _IN_PLACE.get((op, dtype), (cycles, per))
        launch = SUPERVISOR
        if ARITY[op] == 1:
            launch, start = SUPERVISOR + 9, 55 if in_place else 33 if op == "exponential" else 17
        elif ARITY[op] == 3:
            start = 11 if op == "select" else 6
        else:
            lies = {self._lies(g, a) for a in args[:2]}
            kind = next((k for k in ("outer", "inner", "scalar") if k in lies), "same")
            if kind in ("outer", "inner"):
                launch = SUPERVISOR + 2 if kind == "inner" else SUPERVISOR
                length = self._length(g, args[:2]) if kind == "inner" else block.extents[-1]
                rows = ceil_div(np.where(block.size > 0, block.size // np.maximum(length, 1), 0), block.workers)
                whole = _vector_inner(op, dtype, length, rows) if kind == "inner" else None
                if whole is not None:
                    return launch, 17, whole
                # Without a vertex of its own each row is started anew.
                return launch, 15, rows * (7 + ceil_div(length, int(per)) * int(cycles))
            if kind == "scalar":
                start, (cycles, per) = 20, _scalar_loop(op, dtype)
            else:
                start = 58 if in_place else 29 if dtype == "f32" else 26
        return launch, start, ceil_div(n, int(per)) * int(cycles)

    def _length(self, g: GroupView, args: list[int]) -> Ints:
        """Elements of the vector operand."""
        rank, n_in = int(g.params[0]), int(g.params[1])
        masks = [int(g.params[HEAD + 2 * a]) for a in args if a < n_in and self._lies(g, a) == "inner"]
        return product([g.col(1 + d) for d in range(rank) if masks[0] >> d & 1], g.rows)

    def state_bytes(self, g: GroupView) -> Ints:
        """A pointer for each operand, the length."""
        rank, n_in, n_out, _ = self._parts(g)
        return product([], g.rows) * pointers(n_in + n_out, rank)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        rank, n_in, n_out, body = self._parts(g)
        n = float(product([g.col(1 + d) for d in range(rank)], g.rows).sum())
        return g.rows * (30.0 + 4 * (n_in + n_out) + 6.0 * len(body)) + 0.15 * n * len(body)
