"""The `map` vertex: cycles by the element-wise tables of poplibs, one launch for the whole fused expression.

Source of the figures: hardware.md 3.1 to 3.4 (poplibs popopsCycleEstimators.cpp, popops/PerformanceEstimation.cpp).
A fused expression is one codelet on the chip too (popops::map generates it): one launch and one start of each worker,
then the inner loops of its operations. Loads and stores between fused operations stay counted, so the sum is an upper
bound for a chain. Figures marked [unvalidated] have no source.
"""

from __future__ import annotations

from typing import Any

from ipu_runtime.codelets.model import SUPERVISOR, WORKERS, Ints, Operand, ceil_div, per_worker, pointers, product
from ipu_runtime.opcodes import DTYPES, OPS
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
    "select": (5, 1), "clamp": (6, 2), "copy": (1, 2),
}  # fmt: skip
_F16: dict[str, tuple[float, float]] = {
    "exponential": (4, 4), "log": (4, 4), "sqrt": (23, 4), "rsqrt": (19, 4), "tanh": (4, 4), "logistic": (6, 4),
    "negate": (2, 4), "abs": (5, 1), "erf": (13, 1), "sine": (25, 1), "cosine": (25, 1), "tan": (5700, 1),
    "log-plus-one": (22, 4), "exponential-minus-one": (9, 4), "cbrt": (21, 4), "floor": (6, 4), "ceil": (6, 4),
    "round-nearest-afz": (6, 4), "round-nearest-even": (6, 4), "sign": (9, 4), "is-finite": (9, 4),
    "add": (3, 4), "subtract": (3, 4), "multiply": (3, 4), "divide": (21, 4), "maximum": (4, 4), "minimum": (4, 4),
    "power": (325, 1), "remainder": (300, 4), "atan2": (578, 4), "compare-ne": (11, 4), "compare": (9, 4),
    "select": (5, 1), "clamp": (6, 4), "copy": (1, 4),
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
    "compare-ne": (5, 4), "add": (5, 4), "multiply": (5, 4), "maximum": (5, 4), "minimum": (5, 4), "select": (5, 1),
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


def convert_loop(target: str, source: str) -> tuple[float, float]:
    """Cycles and elements of a conversion's inner loop. Source: hardware.md 3.4."""
    if "64" in target or "64" in source:
        return 5, 1
    if (source, target) == ("f16", "f32"):
        return 1, 2
    if (source, target) == ("f32", "f16"):
        return 2, 4
    if source in ("u8", "s8") and target == "f16":
        return 9, 4
    if source == "f16" and target in ("u8", "s8"):
        return 16, 4
    return 2, 1


def body_cycles(words: Any, n: Ints) -> Ints:
    """Cycles of one worker that runs a body's operations over `n` elements."""
    total = n * 0
    for is_convert, op, dtype in words:
        if is_convert:
            cycles, per = convert_loop(DTYPES[op].name, DTYPES[dtype].name)
        else:
            cycles, per, _ = loop(OP_NAMES[op], DTYPES[dtype].name)
        total = total + ceil_div(n, int(per)) * int(cycles)
    return total


class Map:
    """A fused element-wise expression."""

    name = "map"
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
        """9 + 11 + 6 (17 + inner loops), hardware.md 3.1 (MultiVertex, start of a unary operation)."""
        rank, _, _, body = self._parts(g)
        n = per_worker(product([g.col(1 + d) for d in range(rank)], g.rows))
        return 9 + SUPERVISOR + WORKERS * (17 + body_cycles(body[:, :3].tolist(), n))

    def state_bytes(self, g: GroupView) -> Ints:
        """A pointer for each operand, the length."""
        rank, n_in, n_out, _ = self._parts(g)
        return product([], g.rows) * pointers(n_in + n_out, rank)

    def work(self, g: GroupView) -> float:
        """See the protocol."""
        rank, n_in, n_out, body = self._parts(g)
        n = float(product([g.col(1 + d) for d in range(rank)], g.rows).sum())
        return g.rows * (30.0 + 4 * (n_in + n_out) + 6.0 * len(body)) + 0.15 * n * len(body)
