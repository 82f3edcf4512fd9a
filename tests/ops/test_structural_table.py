# ruff: noqa: E501  a line of HLO stays a line
"""Opcodes that move, combine or choose, in the forms that HLO allows and TensorFlow seldom emits.

A case is a text of HLO and its arguments; XLA on the CPU says what the answer is, on chips of 1 and of 7 tiles. Values
are small integers where the order of a sum could show. Cases whose answer HLO leaves open, or where XLA is known to
differ, have NumPy's as the oracle.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ipu_keras.compiler.lower import LOWERINGS
from ipu_keras.compiler.passes.expand import RULES
from ipu_keras.graph.elementwise import ELEMENTWISE
from ipu_keras.graph.ir import DTYPES
from tests.ops.hlo_text import parameters, same

RNG = np.random.default_rng(9)
CASES: dict[str, tuple[str, tuple[Any, ...]]] = {}


def whole(*dims: int, dtype: Any = np.float32, low: int = -4, high: int = 5) -> np.ndarray:
    """Small integers."""
    return np.asarray(RNG.integers(low, high, dims).astype(dtype))


def distinct(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    """Numbers of both signs whose magnitudes differ: which of two equal ones is selected, XLA leaves to its passes."""
    n = int(np.prod(dims))
    return np.asarray(((RNG.permutation(n) + 1) * RNG.choice([-1, 1], n)).reshape(dims).astype(dtype))


def case(name: str, body: str, *args: Any, regions: str = "") -> None:
    """Add a case; `p0`, `p1`, ... are the arguments."""
    assert name not in CASES, name
    CASES[name] = (f"{regions}\nENTRY main {{\n{parameters(*args)}\n{body}\n}}", args)


def region(name: str, types: str, body: str) -> str:
    """A computation of scalars a, b, c, ... of the types given."""
    names = "abcdefgh"
    lines = [f"{names[i]} = {t} parameter({i})" for i, t in enumerate(types.split())]
    return f"{name} {{\n" + "\n".join([*lines, body]) + "\n}\n"


def binary(op: str, dtype: str = "f32") -> str:
    """A region named as its operation."""
    return region(op.replace("-", "_"), f"{dtype}[] {dtype}[]", f"ROOT r = {dtype}[] {op}(a, b)")


# ---- dot ----

for name, a, b, dims, out in [
    ("vectors", (5,), (5,), "lhs_contracting_dims={0}, rhs_contracting_dims={0}", ""),
    ("outer product", (5,), (3,), "", "5,3"),
    ("scalars", (), (), "", ""),
    ("two contracted", (3, 4, 5), (4, 6, 3), "lhs_contracting_dims={0,1}, rhs_contracting_dims={2,0}", "5,6"),
    (
        "batch at the end", (4, 5, 3), (6, 5, 3),
        "lhs_batch_dims={2}, rhs_batch_dims={2}, lhs_contracting_dims={1}, rhs_contracting_dims={1}", "3,4,6",
    ),
    (
        "two batches in other order", (2, 3, 4, 5), (3, 5, 2, 6),
        "lhs_batch_dims={0,1}, rhs_batch_dims={2,0}, lhs_contracting_dims={3}, rhs_contracting_dims={1}", "2,3,4,6",
    ),
    ("only batches", (3, 4), (3, 4), "lhs_batch_dims={0,1}, rhs_batch_dims={0,1}", "3,4"),
    ("nothing contracted in a batch", (3, 4), (3, 2), "lhs_batch_dims={0}, rhs_batch_dims={0}", "3,4,2"),
    ("a sum of nothing", (4, 0), (0, 3), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "4,3"),
    ("no rows", (0, 4), (4, 3), "lhs_contracting_dims={1}, rhs_contracting_dims={0}", "0,3"),
    (
        "no batches", (0, 2, 4), (0, 4, 3),
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}", "0,2,3",
    ),
]:  # fmt: skip
    for dtype in ("f32", "f16", "s32"):
        args = whole(*a, dtype=DTYPES[dtype]), whole(*b, dtype=DTYPES[dtype])
        text = f"ROOT r = {dtype}[{out}] dot(p0, p1)" + (f", {dims}" if dims else "")
        case(f"dot {name} {dtype}", text, *args)
for dtype in ("s8", "u8", "u32"):
    args = whole(5, 7, dtype=DTYPES[dtype], low=0), whole(7, 3, dtype=DTYPES[dtype], low=0)
    text = f"ROOT r = {dtype}[5,3] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    case(f"dot of {dtype}", text, *args)
for left, right, out in [
    ("s8", "u8", "s32"), ("s8", "s8", "s32"), ("f16", "f16", "f32"), ("f16", "f32", "f32"), ("u32", "s32", "s32"),
    ("s16", "s16", "s16"), ("u16", "u16", "u16"), ("s16", "s16", "s32"), ("u16", "u16", "u32"), ("pred", "pred", "pred"),
]:  # fmt: skip
    args = whole(4, 30, dtype=DTYPES[left], low=0, high=120), whole(30, 3, dtype=DTYPES[right], low=0, high=120)
    if left == "pred":
        args = (RNG.random((4, 30)) < 0.2, RNG.random((30, 3)) < 0.2)
    elif left == right == out:
        args = args[0] * args[0], args[1] * args[1]  # wraps
    case(
        f"dot of {left} and {right} to {out}",
        f"ROOT r = {out}[4,3] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        *args,
    )
case(
    "dot wraps", "ROOT r = s32[1,1] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    np.array([[2**31 - 1, 5, -(2**31)]], np.int32), np.array([[3], [2**30], [-1]], np.int32),
)  # fmt: skip

# ---- convolution ----

for name, x, w, text, out in [
    ("1 dimension", (2, 9, 3), (4, 3, 5), "window={size=4 stride=2 pad=1_2}, dim_labels=b0f_0io->b0f", "2,5,5"),
    ("no spatial dimension", (3, 4), (4, 5), "dim_labels=bf_io->bf", "3,5"),
    (
        "other orders of dimensions", (3, 6, 2, 5), (3, 4, 3, 2),
        "window={size=2x3 pad=0_1x1_1}, dim_labels=f0b1_1oi0->1bf0", "5,2,4,6",
    ),
    (
        "3 dimensions", (1, 4, 5, 4, 2), (2, 3, 2, 2, 3),
        "window={size=2x3x2 stride=2x1x1 pad=0_0x1_1x1_0}, dim_labels=b012f_012io->b012f", "1,2,5,4,3",
    ),
    (
        "negative padding", (2, 8, 9, 2), (3, 2, 2, 3),
        "window={size=3x2 pad=-1_-2x2_-3}, dim_labels=b01f_01io->b01f", "2,3,7,3",
    ),
    (
        "base dilation", (1, 4, 3, 2), (3, 2, 2, 3),
        "window={size=3x2 pad=2_1x1_1 lhs_dilate=2x3}, dim_labels=b01f_01io->b01f", "1,8,8,3",
    ),
    (
        "both dilations and stride", (1, 7, 6, 2), (3, 2, 2, 3),
        "window={size=3x2 stride=2x3 pad=2_3x1_4 lhs_dilate=2x1 rhs_dilate=2x3}, dim_labels=b01f_01io->b01f",
        "1,7,3,3",
    ),
    (
        "reversed windows", (2, 6, 5, 3), (3, 2, 3, 4),
        "window={size=3x2 pad=1_1x0_1 rhs_reversal=1x0}, dim_labels=b01f_01io->b01f", "2,6,5,4",
    ),
    (
        "feature groups", (2, 5, 5, 6), (3, 3, 2, 9),
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=3", "2,5,5,9",
    ),
    (
        "depthwise with dilation", (2, 5, 7, 4), (2, 2, 1, 8),
        "window={size=2x2 stride=1x2 pad=1_0x0_1 rhs_dilate=2x2}, dim_labels=b01f_01io->b01f, feature_group_count=4",
        "2,4,3,8",
    ),
    (
        "batch groups", (6, 5, 4, 3), (3, 2, 3, 4),
        "window={size=3x2}, dim_labels=b01f_01io->b01f, batch_group_count=2", "3,3,3,4",
    ),
    ("kernel larger than the input", (1, 2, 2), (5, 2, 3), "window={size=5 pad=3_2}, dim_labels=b0f_0io->b0f", "1,3,3"),
    ("no output", (1, 2, 2), (5, 2, 3), "window={size=5 pad=1_1}, dim_labels=b0f_0io->b0f", "1,0,3"),
    ("no batch", (0, 4, 2), (2, 2, 3), "window={size=2}, dim_labels=b0f_0io->b0f", "0,3,3"),
    ("no channels", (2, 4, 0), (2, 0, 3), "window={size=2}, dim_labels=b0f_0io->b0f", "2,3,3"),
    ("no input at all", (2, 0, 3), (2, 3, 3), "window={size=2 pad=2_2}, dim_labels=b0f_0io->b0f", "2,3,3"),
]:  # fmt: skip
    for dtype in ("f32", "f16"):
        args = whole(*x, dtype=DTYPES[dtype], low=-2, high=3), whole(*w, dtype=DTYPES[dtype], low=-2, high=3)
        case(f"convolution {name} {dtype}", f"ROOT r = {dtype}[{out}] convolution(p0, p1), {text}", *args)

# ---- reduce ----

REDUCED = "\nROOT r = {}[{}] reduce(p0, z), dimensions={{{}}}, to_apply={}"
for dtype in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f16", "f32"):
    for op in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
        if dtype[0] == "f" and op in ("and", "or", "xor"):
            continue
        x = whole(5, 3, 4, dtype=DTYPES[dtype], low=-2 if dtype[0] != "u" else 0, high=3)
        text = f"z = {dtype}[] constant(1)" + REDUCED.format(dtype, "3", "0,2", op)
        case(f"reduce {op} {dtype}", text, x, regions=binary(op, dtype))
for op in ("and", "or", "xor"):
    text = "z = pred[] constant(false)" + REDUCED.format("pred", "4", "0", op)
    case(f"reduce {op} pred", text, whole(9, 4, dtype=bool, low=0, high=2), regions=binary(op, "pred"))
for out, dims in (("5,3", "2"), ("5", "2,1"), ("", "1,0,2"), ("5,3,4", "")):
    text = "z = f32[] constant(0)" + REDUCED.format("f32", out, dims, "add")
    case(f"reduce over {dims or 'nothing'}", text, whole(5, 3, 4), regions=binary("add"))
case(
    "reduce of a scalar", "z = f32[] constant(0)" + REDUCED.format("f32", "", "", "add"), whole(), regions=binary("add")
)
case(
    "reduce with a start at run time",
    "z = f32[] add(p1, p1)" + REDUCED.format("f32", "4", "0", "add"),
    whole(6, 4),
    whole(),
    regions=binary("add"),
)
case(
    "reduce of nothing, start at run time",
    "z = f32[] add(p1, p1)" + REDUCED.format("f32", "4", "0", "add"),
    whole(0, 4),
    whole(),
    regions=binary("add"),
)
case(
    "reduce of nothing, any region",
    "z = f32[] constant(3)" + REDUCED.format("f32", "4", "0", "odd"),
    whole(0, 4),
    regions=region("odd", "f32[] f32[]", "t = f32[] multiply(a, b)\nROOT r = f32[] add(t, b)"),
)
LARGER = region(
    "larger", "f32[] s32[] f32[] s32[]",
    """more = pred[] compare(a, c), direction=GT
same = pred[] compare(a, c), direction=EQ
first = pred[] compare(b, d), direction=LT
tie = pred[] and(same, first)
take = pred[] or(more, tie)
v = f32[] select(take, a, c)
i = s32[] select(take, b, d)
ROOT r = (f32[], s32[]) tuple(v, i)""",
)  # fmt: skip
for start in ("constant", "run time"):
    for n in (1, 13, 3000):
        x, places = whole(n, 3), np.arange(3 * n, dtype=np.int32).reshape(n, 3)
        lines = "z = f32[] constant(-inf)\ni = s32[] constant(2147483647)"
        more: tuple[Any, ...] = ()
        if start == "run time":
            lines = "z = f32[] add(p2, p2)\ni = s32[] add(p3, p3)"
            more = np.array(-np.inf, np.float32), np.array(2**30 - 1, np.int32)
        lines += "\nROOT r = (f32[3], s32[3]) reduce(p0, p1, z, i), dimensions={0}, to_apply=larger"
        case(f"reduce of two operands, {n}, {start}", lines, x, places, *more, regions=LARGER)
SUM_AND_LARGEST = region(
    "both",
    "s32[] f32[] s32[] f32[]",
    "x = s32[] add(a, c)\ny = f32[] maximum(b, d)\nROOT r = (s32[], f32[]) tuple(x, y)",
)
case(
    "reduce of operands apart", "z = s32[] constant(0)\nm = f32[] constant(-inf)\n"
    "ROOT r = (s32[2,3], f32[2,3]) reduce(p0, p1, z, m), dimensions={1}, to_apply=both",
    whole(2, 5, 3, dtype=np.int32), whole(2, 5, 3), regions=SUM_AND_LARGEST,
)  # fmt: skip
NORM = region(
    "norm", "f32[] f32[]", "m = f32[] maximum(a, b)\nn = f32[] negate(m)\nk = f32[] negate(n)\nROOT r = f32[] abs(k)"
)
for start in ("z = f32[] constant(0)", "z = f32[] subtract(p1, p1)"):
    case(
        f"reduce by a longer region, {start}",
        start + REDUCED.format("f32", "2", "1,2", "norm"),
        abs(whole(2, 40, 7)),
        whole(),
        regions=NORM,
    )

# ---- reduce-window ----

WINDOW = "z = {} constant({})\nROOT r = {}[{}] reduce-window(p0, z), window={{{}}}, to_apply={}"
for op, start in (("add", 0), ("maximum", "-inf"), ("minimum", "inf"), ("multiply", 1)):
    for name, x, window, out in [
        ("1 dimension", (9,), "size=3 stride=2 pad=1_1", "5"),
        ("dilations", (7, 8), "size=2x3 stride=2x1 pad=1_1x2_2 lhs_dilate=2x1 rhs_dilate=2x2", "7,8"),
        ("negative padding", (7, 8), "size=2x3 pad=-1_-1x0_-2", "4,4"),
        ("everything", (4, 5), "size=4x5", "1,1"),
        ("nothing", (2, 3), "size=3x1", "0,3"),
        ("padding only", (2, 2), "size=1x1 pad=3_0x0_2", "5,4"),
        ("windows of one", (3, 2), "size=1x1 stride=2x1", "2,2"),
        ("last dimension cut", (4, 9), "size=2x1 pad=1_0x-2_-1", "4,6"),
        ("an operand of nothing", (0, 3), "size=2x1 pad=2_1x0_0", "2,3"),
        ("five dimensions", (2, 1, 5, 3, 4), "size=1x1x2x2x1 stride=1x1x2x1x1", "2,1,2,2,4"),
    ]:
        text = WINDOW.format("f32[]", start, "f32", out, window, op)
        case(f"reduce-window {op} {name}", text, whole(*x, low=1, high=4), regions=binary(op))
for dtype in ("s32", "u8", "s64", "f16"):
    text = WINDOW.format(f"{dtype}[]", 0, dtype, "4,3", "size=3x2 stride=2x2 pad=1_1x0_0", "add")
    case(f"reduce-window of {dtype}", text, whole(8, 6, dtype=DTYPES[dtype], low=0), regions=binary("add", dtype))
case(
    "reduce-window reversed", WINDOW.format("f32[]", 0, "f32", "3,3", "size=3x2 stride=2x2 pad=0_0x1_0 rhs_reversal=1x1", "add"),
    whole(8, 5), regions=binary("add"),
)  # fmt: skip
case(
    "reduce-window with a start at run time",
    "z = f32[] add(p1, p1)\nROOT r = f32[4,4] reduce-window(p0, z), window={size=2x2 stride=2x2 pad=1_1x1_1}, to_apply=add",
    whole(6, 6), whole(low=1), regions=binary("add"),
)  # fmt: skip
case(
    "reduce-window with a longer region", WINDOW.format("f32[]", 0, "f32", "3,2", "size=3x2 stride=2x3 pad=1_0x1_0", "norm"),
    abs(whole(6, 6)), regions=NORM,
)  # fmt: skip
LAST = region("last", "f32[] f32[]", "ROOT r = f32[] copy(b)")
for op, text in (
    ("the second", LAST.replace("last", "odd", 1)),
    (
        "a sum that halves",
        region("odd", "f32[] f32[]", "h = f32[] constant(0.5)\nt = f32[] multiply(a, h)\nROOT r = f32[] add(t, b)"),
    ),
):
    case(
        f"reduce-window in order: {op}",
        WINDOW.format("f32[]", 0, "f32", "3,3", "size=2x3 stride=2x1", "odd"),
        whole(6, 5),
        regions=text,
    )
case(
    "reduce-window of two operands",
    "z = f32[] constant(-inf)\ni = s32[] constant(2147483647)\n"
    "ROOT r = (f32[3,4], s32[3,4]) reduce-window(p0, p1, z, i), window={size=3x2 stride=2x1 pad=0_0x1_0}, to_apply=larger",
    whole(7, 4), np.arange(28, dtype=np.int32).reshape(7, 4), regions=LARGER,
)  # fmt: skip

case(
    "reduce-window with a longer region of nothing",
    WINDOW.format("f32[]", 0, "f32", "0,2", "size=7x2 stride=1x3", "norm"),
    whole(6, 6),
    regions=NORM,
)
case(
    "reduce-window with a longer region on padding",
    WINDOW.format("f32[]", 0, "f32", "3", "size=2 pad=2_2", "norm"),
    whole(0),
    regions=NORM,
)
case(
    "cumulative product from behind",
    WINDOW.format("f32[]", 1, "f32", "6", "size=6 pad=0_5", "multiply"),
    whole(6, low=1, high=3),
    regions=binary("multiply"),
)

for name, x, window, out in [
    ("running", (90,), "size=90 pad=89_0", "90"),
    ("strides", (3, 200), "size=1x77 stride=1x3 pad=0_0x5_40", "3,57"),
    ("dilations", (70, 2), "size=33x2 pad=3_50x1_0 lhs_dilate=2x1 rhs_dilate=3x1", "96,2"),
    ("in two dimensions", (40, 45), "size=34x40 stride=2x1 pad=1_-1x0_3", "4,9"),
    ("longer than the operand", (5,), "size=64 pad=70_70", "82"),
]:
    for op, start in (("add", 0), ("maximum", "-inf")):
        text = WINDOW.format("f32[]", start, "f32", out, window, op)
        case(f"long windows, {name}, {op}", text, whole(*x), regions=binary(op))

# ---- select-and-scatter ----

SCATTERED = "ROOT r = {0}[{1}] select-and-scatter(p0, p1, z), window={{{2}}}, select={3}, scatter={4}"
GE, GT = (region(d.lower(), "f32[] f32[]", f"ROOT r = pred[] compare(a, b), direction={d}") for d in ("GE", "GT"))
for name, x, source, window in [
    ("overlap", (7, 6), (3, 5), "size=3x2 stride=2x1"),
    ("padding", (6, 5), (4, 3), "size=2x3 stride=2x2 pad=1_1x1_1"),
    ("apart", (8, 4), (2, 2), "size=2x2 stride=4x2 pad=0_-2x0_0"),
    ("windows of one", (3, 4), (3, 2), "size=1x1 stride=1x2"),
]:
    for select in ("ge", "gt"):
        text = "z = f32[] constant(0)\n" + SCATTERED.format("f32", ",".join(map(str, x)), window, select, "add")
        case(f"select-and-scatter {name} {select}", text, distinct(*x), whole(*source), regions=GE + GT + binary("add"))
case(
    "select-and-scatter with a start at run time", "z = f32[] add(p2, p2)\n" + SCATTERED.format("f32", "6,4", "size=2x2 stride=2x2", "ge", "add"),
    distinct(6, 4), whole(3, 2), whole(low=1), regions=GE + binary("add"),
)  # fmt: skip
ABS_GE = region("far", "f32[] f32[]", "x = f32[] abs(a)\ny = f32[] abs(b)\nROOT r = pred[] compare(x, y), direction=GE")
case(
    "select-and-scatter by another selection", "z = f32[] constant(0)\n" + SCATTERED.format("f32", "7,6", "size=3x2 stride=2x2", "far", "add"),
    distinct(7, 6), whole(3, 3), regions=ABS_GE + binary("add"),
)  # fmt: skip
SCALED = region("odd", "f32[] f32[]", "h = f32[] constant(2)\nt = f32[] multiply(b, h)\nROOT r = f32[] add(a, t)")
case(
    "select-and-scatter by another sum", "z = f32[] constant(1)\n" + SCATTERED.format("f32", "7,6", "size=3x2 stride=2x2", "ge", "odd"),
    distinct(7, 6), whole(3, 3), regions=GE + SCALED,
)  # fmt: skip
case(
    "select-and-scatter by another selection, padded", "z = f32[] constant(0)\n" + SCATTERED.format("f32", "7,6", "size=3x2 stride=2x2 pad=2_1x1_1", "far", "add"),
    distinct(7, 6), whole(4, 4), regions=ABS_GE + binary("add"),
)  # fmt: skip
case(
    "select-and-scatter by subtraction", "z = f32[] constant(1)\n" + SCATTERED.format("f32", "7,6", "size=3x2 stride=2x2", "gt", "minus"),
    distinct(7, 6), whole(3, 3), regions=GT + region("minus", "f32[] f32[]", "ROOT r = f32[] subtract(a, b)"),
)  # fmt: skip
case(
    "select-and-scatter of s32", "z = s32[] constant(1)\n" + SCATTERED.format("s32", "6,4", "size=3x2 stride=1x2", "ge", "add"),
    distinct(6, 4, dtype=np.int32), whole(4, 2, dtype=np.int32), regions=GE.replace("f32", "s32") + binary("add", "s32"),
)  # fmt: skip

# ---- gather ----

for name, table, index, numbers, out in [
    (
        "rows", (6, 4), np.array([[5], [0], [9], [-3]]),
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}", "4,4",
    ),
    (
        "an index vector in front", (6, 4), np.array([[5, 0, 3], [1, 9, -1]]),
        "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=0, slice_sizes={1,1}", "3",
    ),
    (
        "windows", (6, 7, 2), np.array([[5, 0], [1, 9], [-2, 3]]),
        "offset_dims={0,2}, collapsed_slice_dims={2}, start_index_map={1,0}, index_vector_dim=1, slice_sizes={2,3,1}",
        "2,3,3",
    ),
    (
        "parts of dimensions that no index moves", (6, 5), np.array([4, 0, 7]),
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}", "3,2",
    ),
    (
        "batches", (3, 6, 2), np.array([[5, 0], [1, 9], [-1, 2]]),
        "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
        "start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,2}", "3,2,2",
    ),
    (
        "batches that run the other way", (4, 3, 2), np.array([[1, 0, 1, 1], [0, 5, 0, 1], [1, 1, 0, -5]]),
        "offset_dims={}, collapsed_slice_dims={2}, start_index_map={2}, operand_batching_dims={0,1}, "
        "start_indices_batching_dims={1,0}, index_vector_dim=2, slice_sizes={1,1,1}", "3,4",
    ),
    (
        "no index", (6, 4), np.zeros((0, 1)),
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}", "0,4",
    ),
    (
        "an index of no components", (6, 4), np.zeros((3, 0)),
        "offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={}, index_vector_dim=1, slice_sizes={6,4}", "3,6,4",
    ),
    (
        "one scalar index", (6, 4), np.array(3),
        "offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=0, slice_sizes={1,4}", "4",
    ),
]:  # fmt: skip
    for kind in ("s32", "s64"):
        case(
            f"gather {name} by {kind}",
            f"ROOT r = f32[{out}] gather(p0, p1), {numbers}",
            whole(*table),
            index.astype(DTYPES[kind]),
        )
for dtype in ("pred", "s8", "u16", "f16", "s64"):
    body = (
        f"ROOT r = {dtype}[3,4] gather(p0, p1), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        "index_vector_dim=1, slice_sizes={1,4}"
    )
    case(f"gather of {dtype}", body, whole(6, 4, dtype=DTYPES[dtype], low=0), np.array([2, 0, 5], np.int32))

ENTRIES = "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}"
PARTS = "offset_dims={1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={2}"
for kind in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
    info = np.iinfo(DTYPES[kind])
    i = np.array([[0], [3], [100], [info.max], [info.min], [info.max - 1]], DTYPES[kind])
    for n in (40, 299):
        case(f"gather of {n} by {kind}", f"ROOT r = f32[6] gather(p0, p1), {ENTRIES}", whole(n), i)
        case(f"gather of parts of {n} by {kind}", f"ROOT r = f32[6,2] gather(p0, p1), {PARTS}", whole(n), i)

# ---- scatter ----

ROWS = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
INDICES = np.array([[2], [0], [2], [7], [-1], [2]], np.int32)
SUBTRACT = region("minus", "f32[] f32[]", "ROOT r = f32[] subtract(a, b)")
MINUS_TURNED = region("turned", "f32[] f32[]", "ROOT r = f32[] subtract(b, a)")
for name, apply, text in [
    ("add", "add", binary("add")),
    ("multiply", "multiply", binary("multiply")),
    ("minimum", "minimum", binary("minimum")),
    ("a difference", "minus", SUBTRACT),
    ("a difference, turned", "turned", MINUS_TURNED),
    ("another region", "odd", SCALED),
    ("the old value", "first", region("first", "f32[] f32[]", "ROOT r = f32[] copy(a)")),
]:
    case(
        f"scatter by {name}",
        f"ROOT r = f32[5,3] scatter(p0, p1, p2), {ROWS}, to_apply={apply}",
        whole(5, 3),
        INDICES,
        whole(6, 3),
        regions=text,
    )
for dtype in ("s8", "u8", "s16", "s32", "u32", "s64", "u64", "f16"):
    args = whole(5, 3, dtype=DTYPES[dtype], low=0), INDICES, whole(6, 3, dtype=DTYPES[dtype], low=0)
    case(
        f"scatter of {dtype}",
        f"ROOT r = {dtype}[5,3] scatter(p0, p1, p2), {ROWS}, to_apply=add",
        *args,
        regions=binary("add", dtype),
    )
NUMBERS = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
PIECES = "update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
for kind in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
    info = np.iinfo(DTYPES[kind])
    i = np.array([[0], [3], [100], [info.max], [info.min], [info.max - 1]], DTYPES[kind])
    for n in (40, 299):
        case(
            f"scatter to {n} by {kind}",
            f"ROOT r = f32[{n}] scatter(p0, p1, p2), {NUMBERS}, to_apply=add",
            whole(n),
            i,
            whole(6),
            regions=binary("add"),
        )
        case(
            f"scatter of pieces to {n} by {kind}",
            f"ROOT r = f32[{n}] scatter(p0, p1, p2), {PIECES}, to_apply=add",
            whole(n),
            i,
            whole(6, 2),
            regions=binary("add"),
        )
case(
    "scatter that overwrites", f"ROOT r = f32[5,3] scatter(p0, p1, p2), {ROWS}, to_apply=last",
    whole(5, 3), np.array([[3], [0], [9]], np.int32), whole(3, 3), regions=LAST,
)  # fmt: skip
case(
    "scatter of windows", "ROOT r = f32[5,6] scatter(p0, p1, p2), update_window_dims={1,2}, inserted_window_dims={}, "
    "scatter_dims_to_operand_dims={1,0}, index_vector_dim=1, to_apply=add",
    whole(5, 6), np.array([[1, 2], [4, 4], [1, 3], [0, -1]], np.int32), whole(4, 2, 3), regions=binary("add"),
)  # fmt: skip
case(
    "scatter of windows that overwrite", "ROOT r = f32[5,6] scatter(p0, p1, p2), update_window_dims={0,1}, "
    "inserted_window_dims={}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=0, to_apply=last",
    whole(5, 6), np.array([2, 1], np.int32), whole(3, 4), regions=LAST,
)  # fmt: skip
case(
    "scatter in batches", "ROOT r = f32[3,5,2] scatter(p0, p1, p2), update_window_dims={2}, inserted_window_dims={1}, "
    "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2, "
    "to_apply=add",
    whole(3, 5, 2), np.array([[0, 4], [1, 1], [9, 2]], np.int32), whole(3, 2, 2), regions=binary("add"),
)  # fmt: skip
TWO = region(
    "two",
    "f32[] s32[] f32[] s32[]",
    "x = f32[] add(a, c)\ny = s32[] maximum(b, d)\nROOT r = (f32[], s32[]) tuple(x, y)",
)
MIXED = region(
    "mixed", "f32[] s32[] f32[] s32[]",
    "k = f32[] convert(d)\nt = f32[] multiply(a, k)\nx = f32[] add(t, c)\ny = s32[] subtract(b, d)\nROOT r = (f32[], s32[]) tuple(x, y)",
)  # fmt: skip
for name, text in (("two", TWO), ("mixed", MIXED)):
    case(
        f"scatter of operands: {name}", f"ROOT r = (f32[5,3], s32[5,3]) scatter(p0, p1, p2, p3, p4), {ROWS}, to_apply={name}",
        whole(5, 3), whole(5, 3, dtype=np.int32), INDICES, whole(6, 3), whole(6, 3, dtype=np.int32), regions=text,
    )  # fmt: skip
case(
    "scatter of nothing",
    f"ROOT r = f32[5,3] scatter(p0, p1, p2), {ROWS}, to_apply=add",
    whole(5, 3),
    INDICES[:0],
    whole(0, 3),
    regions=binary("add"),
)
case(
    "scatter of rows of nothing",
    f"ROOT r = f32[5,0] scatter(p0, p1, p2), {ROWS}, to_apply=add",
    whole(5, 0),
    INDICES,
    whole(6, 0),
    regions=binary("add"),
)
case(
    "scatter to one scalar index", "ROOT r = f32[5,3] scatter(p0, p1, p2), update_window_dims={0}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=add",
    whole(5, 3), np.array(2, np.int32), whole(3), regions=binary("add"),
)  # fmt: skip

# ---- sort ----

LT = region("lt", "f32[] f32[]", "ROOT r = pred[] compare(a, b), direction=LT")
for dtype in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f16", "f32"):
    x = whole(4, 9, dtype=DTYPES[dtype], low=0, high=7)
    case(
        f"sort {dtype}",
        f"ROOT r = {dtype}[4,9] sort(p0), dimensions={{1}}, to_apply=lt",
        x,
        regions=LT.replace("f32", dtype),
    )
case(
    "sort truth values",
    "ROOT r = pred[9] sort(p0), dimensions={0}, to_apply=lt",
    whole(9, dtype=bool, low=0, high=2),
    regions=LT.replace("f32", "pred"),
)
case(
    "sort in total order", "ROOT r = f32[8] sort(p0), dimensions={0}, to_apply=lt",
    np.array([3, np.nan, -0.0, np.inf, 0.0, -np.inf, -np.nan, -2], np.float32), regions=LT.replace("=LT", "=LT, type=TOTALORDER"),
)  # fmt: skip
BY_TWO = region(
    "by", "f32[] f32[] s32[] s32[]",
    "l = pred[] compare(a, b), direction=GT\ne = pred[] compare(a, b), direction=EQ\nt = pred[] compare(c, d), direction=LT\n"
    "s = pred[] and(e, t)\nROOT r = pred[] or(l, s)",
)  # fmt: skip
for dim, stable in ((0, "false"), (1, "true")):
    case(
        f"sort two operands along {dim}", f"ROOT r = (f32[11,3], s32[11,3]) sort(p0, p1), dimensions={{{dim}}}, is_stable={stable}, to_apply=by",
        whole(11, 3), np.asarray(RNG.permutation(33).reshape(11, 3).astype(np.int32)), regions=BY_TWO,
    )  # fmt: skip
THREE = region("three", "f32[] f32[] s32[] s32[] u8[] u8[]", "ROOT r = pred[] compare(a, b), direction=LT")
case(
    "sort three operands, stable", "ROOT r = (f32[40], s32[40], u8[40]) sort(p0, p1, p2), dimensions={0}, is_stable=true, to_apply=three",
    whole(40), np.arange(40, dtype=np.int32), np.arange(40, dtype=np.uint8), regions=THREE,
)  # fmt: skip
case(
    "sort by a function", "ROOT r = f32[3,20] sort(p0), dimensions={1}, is_stable=true, to_apply=far",
    whole(3, 20), regions=region("far", "f32[] f32[]", "x = f32[] abs(a)\ny = f32[] abs(b)\nROOT r = pred[] compare(x, y), direction=LT"),
)  # fmt: skip
case("sort of nothing", "ROOT r = f32[3,0] sort(p0), dimensions={1}, to_apply=lt", whole(3, 0), regions=LT)
case("sort of one", "ROOT r = f32[3,1] sort(p0), dimensions={1}, to_apply=lt", whole(3, 1), regions=LT)
for largest in ("true", "false"):
    case(
        f"topk with ties, largest={largest}",
        f"ROOT r = (f32[3,4], s32[3,4]) topk(p0), k=4, largest={largest}",
        whole(3, 12),
    )

# ---- what only moves ----

for name, x, padding, out in [
    ("inside", (3, 2), "0_0_2x1_1_0", "7,4"),
    ("negative", (5, 6), "-2_1x-1_-3", "4,2"),
    ("negative and inside", (4, 3), "-1_2_1x-2_-1_3", "8,6"),
    ("all cut away", (4, 3), "-2_-2x0_0", "0,3"),
    ("of nothing", (0, 3), "2_1x0_1", "3,4"),
    ("inside of one", (1, 1), "1_1_5x0_0_3", "3,1"),
    ("cut into the edges", (2, 2), "-1_0_4x3_-2_2", "5,5"),
]:
    for dtype in ("f32", "u8", "s64", "pred"):
        z = f"z = {dtype}[] constant({'true' if dtype == 'pred' else 3})\n"
        case(
            f"pad {name} {dtype}",
            f"{z}ROOT r = {dtype}[{out}] pad(p0, z), padding={padding}",
            whole(*x, dtype=DTYPES[dtype], low=0),
        )
for name, x, slices, out in [
    ("strides", (9, 8), "[1:9:3], [7:8]", "3,1"),
    ("nothing", (9, 8), "[4:4], [0:8]", "0,8"),
    ("a stride beyond the end", (9, 8), "[8:9:100], [0:8:7]", "1,2"),
]:
    for dtype in ("f32", "u8", "s64", "f16"):
        case(
            f"slice {name} {dtype}",
            f"ROOT r = {dtype}[{out}] slice(p0), slice={{{slices}}}",
            whole(*x, dtype=DTYPES[dtype], low=0),
        )
case(
    "reverse every dimension",
    "ROOT r = s16[3,4,1,5] reverse(p0), dimensions={3,0,1,2}",
    whole(3, 4, 1, 5, dtype=np.int16),
)
case("reverse none", "ROOT r = f32[3,4] reverse(p0), dimensions={}", whole(3, 4))
case(
    "transpose of five dimensions",
    "ROOT r = f32[4,2,6,3,5] transpose(p0), dimensions={2,0,4,1,3}",
    whole(2, 3, 4, 5, 6),
)
case("transpose of a scalar", "ROOT r = f32[] transpose(p0), dimensions={}", whole())
case("transpose of nothing", "ROOT r = f32[3,0] transpose(p0), dimensions={1,0}", whole(0, 3))
case("concatenate one", "ROOT r = f32[3,2] concatenate(p0), dimensions={0}", whole(3, 2))
case(
    "concatenate with empty parts", "ROOT r = s8[5,2] concatenate(p0, p1, p0, p2, p1), dimensions={0}",
    whole(0, 2, dtype=np.int8), whole(2, 2, dtype=np.int8), whole(1, 2, dtype=np.int8),
)  # fmt: skip
case("concatenate nothing", "ROOT r = f32[0,2] concatenate(p0, p0), dimensions={0}", whole(0, 2))
case("broadcast to nothing", "ROOT r = f32[0,3] broadcast(p0), dimensions={1}", whole(3))
case("broadcast of nothing", "ROOT r = f32[2,0] broadcast(p0), dimensions={1}", whole(0))
case("broadcast with other order", "ROOT r = f32[4,5,3] broadcast(p0), dimensions={2,0}", whole(3, 4))
case("reshape of nothing", "ROOT r = f32[4,0,2] reshape(p0)", whole(0, 3))
case("reshape to a scalar", "ROOT r = f32[] reshape(p0)", whole(1, 1, 1))
case(
    "iota",
    "ROOT r = (s32[2,3,4], f16[5], u8[300], f32[0]) tuple(a, b, c, d)".replace(
        "ROOT",
        "a = s32[2,3,4] iota(), iota_dimension=1\nb = f16[5] iota(), iota_dimension=0\nc = u8[300] iota(), iota_dimension=0\nd = f32[0] iota(), iota_dimension=0\nROOT",
    ),
)
for kind, at in [("s32", (-5, 0)), ("s32", (1, 2)), ("s32", (2**31 - 1, -(2**31))), ("u8", (255, 1)), ("u32", (2**32 - 1, 0)), ("s64", (4, 1)), ("s8", (-128, 127))]:  # fmt: skip
    starts = [np.array(a, DTYPES[kind]) for a in at]
    case(
        f"dynamic-slice at {at} {kind}",
        "ROOT r = f32[2,3] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,3}",
        whole(6, 7),
        *starts,
    )
    case(
        f"dynamic-update-slice at {at} {kind}",
        "ROOT r = f32[6,7] dynamic-update-slice(p0, p1, p2, p3)",
        whole(6, 7),
        whole(2, 3),
        *starts,
    )
for dtype in ("pred", "s8", "s16", "s64", "f16"):
    one, x = np.array(1, np.int32), whole(6, 7, dtype=DTYPES[dtype], low=0, high=2)
    case(
        f"dynamic-slice of {dtype}",
        f"ROOT r = {dtype}[2,7] dynamic-slice(p0, p1, p1), dynamic_slice_sizes={{2,7}}",
        x,
        one,
    )
    case(
        f"dynamic-update-slice of {dtype}",
        f"ROOT r = {dtype}[6,7] dynamic-update-slice(p0, p1, p2, p2)",
        x,
        x[:2, :3].copy(),
        one,
    )
case(
    "dynamic-slice of nothing",
    "ROOT r = f32[0,3] dynamic-slice(p0, p1, p1), dynamic_slice_sizes={0,3}",
    whole(4, 5),
    np.array(9, np.int32),
)
case(
    "dynamic-update-slice by nothing",
    "ROOT r = f32[4,5] dynamic-update-slice(p0, p1, p2, p2)",
    whole(4, 5),
    whole(0, 5),
    np.array(9, np.int32),
)
case(
    "dynamic-update-slice of all",
    "ROOT r = f32[4,5] dynamic-update-slice(p0, p1, p2, p2)",
    whole(4, 5),
    whole(4, 5),
    np.array(9, np.int32),
)
for source, target, x, out in [
    ("f32", "u8", (3, 2), "3,2,4"), ("u8", "f32", (3, 4), "3"), ("s64", "f16", (2,), "2,4"), ("u16", "s64", (3, 4), "3"),
    ("f32", "s32", (5,), "5"), ("u16", "f16", (5,), "5"), ("s8", "u8", (5,), "5"), ("u64", "u32", (), "2"), ("u32", "u64", (2,), ""),
    ("u64", "s8", (0,), "0,8"),
]:  # fmt: skip
    case(
        f"bitcast-convert {source} to {target}",
        f"ROOT r = {target}[{out}] bitcast-convert(p0)",
        whole(*x, dtype=DTYPES[source], low=0, high=2 if source == "pred" else 100),
    )
for e, m in ((5, 10), (8, 7), (4, 3), (2, 0), (8, 23), (5, 2)):
    for dtype in ("f32", "f16"):
        x = np.array(
            [0, 1, 1.0625, 1.1875, 3, 240, 248, 0.4, 0.01, np.inf, -np.inf, np.nan, -2.5, 60000], DTYPES[dtype]
        )
        case(
            f"reduce-precision {e}.{m} {dtype}",
            f"ROOT r = {dtype}[14] reduce-precision(p0), exponent_bits={e}, mantissa_bits={m}",
            x,
        )

# ---- control ----

STEP = """body {
s = (s32[], f32[3]) parameter(0)
i = s32[] get-tuple-element(s), index=0
x = f32[3] get-tuple-element(s), index=1
one = s32[] constant(1)
j = s32[] add(i, one)
y = f32[3] add(x, x)
ROOT t = (s32[], f32[3]) tuple(j, y)
}
"""
TEST = """test {{
s = (s32[], f32[3]) parameter(0)
i = s32[] get-tuple-element(s), index=0
{}
}}
"""
for name, test in [
    ("3 times", "n = s32[] constant(3)\nROOT r = pred[] compare(i, n), direction=LT"),
    ("no times", "n = s32[] constant(-1)\nROOT r = pred[] compare(i, n), direction=LT"),
    ("never", "ROOT r = pred[] constant(false)"),
    ("counting by not equal", "n = s32[] constant(4)\nROOT r = pred[] compare(i, n), direction=NE"),
    ("bound first", "n = s32[] constant(4)\nROOT r = pred[] compare(n, i), direction=GT"),
    (
        "by the data",
        "x = f32[3] get-tuple-element(s), index=1\nf = f32[1] slice(x), slice={[0:1]}\nv = f32[] reshape(f)\n"
        "n = f32[] constant(100)\nROOT r = pred[] compare(v, n), direction=LT",
    ),
]:
    body = "z = s32[] constant(0)\nt = (s32[], f32[3]) tuple(z, p0)\nROOT r = (s32[], f32[3]) while(t), condition=test, body=body"
    case(f"while {name}", body, np.array([1, -2, 3], np.float32), regions=STEP + TEST.format(test))
body = "t = (s32[], f32[3]) tuple(p1, p0)\nROOT r = (s32[], f32[3]) while(t), condition=test, body=body"
for start in (0, 2, 5, 9):
    text = TEST.format("n = s32[] constant(5)\nROOT r = pred[] compare(i, n), direction=LT")
    case(f"while from {start} at run time", body, whole(3), np.array(start, np.int32), regions=STEP + text)
case(
    "while on one array", "ROOT r = f32[] while(p0), condition=test, body=body", np.array(1, np.float32),
    regions="body {\nx = f32[] parameter(0)\nROOT r = f32[] add(x, x)\n}\n"
    "test {\nx = f32[] parameter(0)\nn = f32[] constant(50)\nROOT r = pred[] compare(x, n), direction=LT\n}\n",
)  # fmt: skip
case(
    "while over nothing", "z = s32[] constant(0)\nt = (s32[], f32[0,3]) tuple(z, p0)\nROOT r = (s32[], f32[0,3]) while(t), condition=test, body=body",
    whole(0, 3), regions=(STEP + TEST.format("n = s32[] constant(3)\nROOT r = pred[] compare(i, n), direction=LT")).replace("f32[3]", "f32[0,3]"),
)  # fmt: skip
SIDES = "".join(
    f"{n} {{\nx = f32[4] parameter(0)\nROOT r = f32[4] {op}(x)\n}}\n"
    for n, op in (("first", "negate"), ("second", "abs"), ("third", "sign"))
)
for flag in (True, False):
    case(
        f"conditional {flag}", "ROOT r = f32[4] conditional(p1, p0, p0), true_computation=first, false_computation=second",
        whole(4), np.array(flag), regions=SIDES,
    )  # fmt: skip
for index in (-(2**31), -1, 0, 1, 2, 3, 2**31 - 1):
    case(
        f"switch {index}", "ROOT r = f32[4] conditional(p1, p0, p0, p0), branch_computations={first, second, third}",
        whole(4), np.array(index, np.int32), regions=SIDES,
    )  # fmt: skip
case(
    "switch of one branch",
    "ROOT r = f32[4] conditional(p1, p0), branch_computations={first}",
    whole(4),
    np.array(7, np.int32),
    regions=SIDES,
)
for index in (-1, 0, 1, 5):
    case(
        f"switch of two {index}",
        "ROOT r = f32[4] conditional(p1, p0, p0), branch_computations={first, second}",
        whole(4),
        np.array(index, np.int32),
        regions=SIDES,
    )
case(
    "conditional of tuples", "a = (f32[2], s32[]) tuple(p1, p2)\nROOT r = (f32[2], s32[]) conditional(p0, a, a), true_computation=yes, false_computation=no",
    np.array(True), whole(2), np.array(4, np.int32),
    regions="yes {\nx = (f32[2], s32[]) parameter(0)\nf = f32[2] get-tuple-element(x), index=0\nROOT r = (f32[2], s32[]) tuple(f, s32[] get-tuple-element(x), index=1)\n}\n".replace(
        "ROOT r = (f32[2], s32[]) tuple(f, s32[] get-tuple-element(x), index=1)", "i = s32[] get-tuple-element(x), index=1\nROOT r = (f32[2], s32[]) tuple(f, i)"
    ) + "no {\nROOT x = (f32[2], s32[]) parameter(0)\n}\n",
)  # fmt: skip
case(
    "map of one",
    "ROOT r = f32[3,4] map(p0), dimensions={0,1}, to_apply=f",
    whole(3, 4),
    regions=region("f", "f32[]", "t = f32[] multiply(a, a)\nc = f32[] constant(3)\nROOT r = f32[] subtract(t, c)"),
)
case(
    "map of two dtypes",
    "ROOT r = s32[5] map(p0, p1), dimensions={0}, to_apply=f",
    whole(5),
    whole(5, dtype=np.int32),
    regions=region("f", "f32[] s32[]", "t = s32[] convert(a)\nROOT r = s32[] subtract(t, b)"),
)
case(
    "map that ignores its operands",
    "ROOT r = f32[5] map(p0), dimensions={0}, to_apply=f",
    whole(5),
    regions=region("f", "f32[]", "ROOT r = f32[] constant(3)"),
)
case(
    "call",
    "ROOT r = f32[5] call(p0, p1), to_apply=f",
    whole(5),
    whole(5),
    regions=region("f", "f32[5] f32[5]", "ROOT r = f32[5] subtract(a, b)"),
)
case(
    "optimization-barrier",
    "t = (f32[5], s32[2]) tuple(p0, p1)\nb = (f32[5], s32[2]) opt-barrier(t)\nROOT r = s32[2] get-tuple-element(b), index=1",
    whole(5),
    whole(2, dtype=np.int32),
)
case("copy", "ROOT r = f32[2,3] copy(p0)", whole(2, 3))

case(
    "sizes of dimensions",
    "a = s32[] get-dimension-size(p0), dimensions={1}\nn = s32[] constant(3)\nb = f32[2,3] set-dimension-size(p0, n), dimensions={1}\nROOT r = (s32[], f32[2,3]) tuple(a, b)",
    whole(2, 3),
)
case(
    "tuples in tuples",
    "a = (f32[2], s32[3]) tuple(p0, p1)\nb = ((f32[2], s32[3]), f32[2]) tuple(a, p0)\nc = (f32[2], s32[3]) get-tuple-element(b), index=0\nROOT r = s32[3] get-tuple-element(c), index=1",
    whole(2),
    whole(3, dtype=np.int32),
)
case(
    "an argument twice and an unused one",
    "ROOT r = (f32[2], f32[2], f32[3]) tuple(p0, p0, p2)",
    whole(2),
    whole(4),
    whole(3),
)

# ---- normalisation ----

NORMAL = np.asarray(RNG.normal(size=(4, 5, 3)).astype(np.float32))
STATISTICS = tuple(np.asarray((RNG.random(3) + 0.5).astype(np.float32)) for _ in range(4))
case(
    "batch-norm-inference",
    "ROOT r = f32[4,5,3] batch-norm-inference(p0, p1, p2, p3, p4), epsilon=0.01, feature_index=2",
    NORMAL,
    *STATISTICS,
)
case(
    "batch-norm-training",
    "ROOT r = (f32[4,5,3], f32[3], f32[3]) batch-norm-training(p0, p1, p2), epsilon=0.01, feature_index=2",
    NORMAL,
    *STATISTICS[:2],
)
case(
    "batch-norm-grad",
    "ROOT r = (f32[4,5,3], f32[3], f32[3]) batch-norm-grad(p0, p1, p2, p3, p4), epsilon=0.01, feature_index=2",
    NORMAL,
    *STATISTICS[:3],
    NORMAL[::-1].copy(),
)
case(
    "batch-norm-training of the first dimension",
    "ROOT r = (f32[3,4,5], f32[3], f32[3]) batch-norm-training(p0, p1, p2), epsilon=0.1, feature_index=0",
    NORMAL.transpose(2, 0, 1).copy(),
    *STATISTICS[:2],
)

# ---- collectives of one replica ----

case(
    "all-reduce", "ROOT r = f32[5] all-reduce(p0), replica_groups={{0}}, to_apply=add", whole(5), regions=binary("add")
)
case("all-gather", "ROOT r = f32[5,2] all-gather(p0), replica_groups={{0}}, dimensions={0}", whole(5, 2))
case(
    "reduce-scatter",
    "ROOT r = f32[5] reduce-scatter(p0), replica_groups={{0}}, dimensions={0}, to_apply=add",
    whole(5),
    regions=binary("add"),
)
case("all-to-all", "ROOT r = f32[4] all-to-all(p0), replica_groups={{0}}, dimensions={0}", whole(4))
case("collective-permute", "ROOT r = f32[4] collective-permute(p0), source_target_pairs={{0,0}}", whole(4))
case(
    "replica-id and partition-id",
    "a = u32[] replica-id()\nb = u32[] partition-id()\nROOT r = (u32[], u32[]) tuple(a, b)",
)


IN_TURN = (
    "reduce (multiply|maximum|minimum|and|or|xor) .*", "reduce-window (add|maximum|minimum|multiply) .*", "convolution .* f16",
    "dot .* (f16|s32)", "gather .* by .*", "scatter (to|of pieces to) .*", "pad .* (u8|s64|pred)", "slice .* (u8|s64|f16)",
    "scatter of .[0-9]+", "gather of .*", "select-and-scatter .* (ge|gt)", "sort .[0-9]+", "dynamic-.* at .*", "reduce-precision .*",
)  # fmt: skip
"""Families that differ in dtype or operation only: one in three each day."""


def _param(name: str) -> Any:
    often = not any(re.fullmatch(pattern, name) for pattern in IN_TURN)
    return name if often else pytest.param(name, marks=pytest.mark.sweep(turns=3))


def test_the_table_holds_every_opcode() -> None:
    """That has a lowering of its own or a rule; `map` is also the chain that element-wise operations become."""
    text = "\n".join(text for text, _ in CASES.values())
    elsewhere = {"cholesky", "custom-call", "fft", "rng", "rng-bit-generator", "triangular-solve"}  # have other files
    missing = {op for op in {*LOWERINGS, *RULES} - ELEMENTWISE - elsewhere if f" {op}(" not in text}
    assert not missing


@pytest.mark.parametrize("name", [_param(name) for name in CASES])
def test_is_what_xla_computes(name: str) -> None:
    text, args = CASES[name]
    same(text, *args)
