"""Every element-wise opcode on every dtype that HLO gives it, on the values that go wrong.

The first oracle is in this file: Python's integers, wrapped to the dtype, and NumPy's float64. Integers and what only
moves or rounds have to be equal bit for bit; functions may be off by the units in the last place that `ULPS` names. The
second oracle is XLA on the CPU, where it follows HLO: it flushes denormals, and loses NaN in maximum, minimum, clamp.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np
import pytest

from ipu_keras import errors, hlo
from ipu_keras.graph.elementwise import ELEMENTWISE
from ipu_keras.graph.ir import DTYPES
from tests.ops.hlo_text import parse, tiles, xla

SIGNED, UNSIGNED = ["s8", "s16", "s32", "s64"], ["u8", "u16", "u32", "u64"]
INTS, FLOATS = SIGNED + UNSIGNED, ["f16", "f32"]
INF, NAN = np.inf, np.nan

# ---- values ----


def values(dtype: str) -> np.ndarray:
    """The corners of a dtype."""
    kind = DTYPES[dtype]
    if dtype == "pred":
        return np.array([False, True])
    if dtype in INTS:
        info = np.iinfo(kind)
        found = {0, 1, 2, 3, 7, 10, 63, 64, 65, info.bits - 1, info.bits, info.bits + 1, info.max, info.max - 1}
        found |= {info.max // 2, info.max // 3, info.min, info.min + 1, info.min // 2, -1, -2, -3, -7, -10, -64}
        return np.array(sorted(v for v in found if info.min <= v <= info.max), kind)
    info = np.finfo(kind)
    tiny, least, largest, eps = float(info.tiny), float(info.smallest_subnormal), float(info.max), float(info.eps)
    found = [
        0.0, 1, 0.5, 1.5, 2.5, 3, 3.5, 0.25, 1 + eps, 1 - eps / 2, 2, 10, 1 / eps, 1 / eps + 1, 0.5 / eps + 0.5, 0.3,
        largest, largest / 2, tiny, least, 3 * least, tiny - least, INF, NAN, 0.49999997, 1e-3, math.pi, math.pi / 2,
        17.3, 88.7, 89.5, 103.9, 104.1, 11.09, 9.7, 1e4, 1234567.0, 2.0**31, 2.0**63, 1e22, eps, eps / 4, 127, 128, 255,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.unique(np.array([*found, *(-v for v in found)], kind).view(f"u{kind.itemsize}")).view(kind)


def few(dtype: str) -> np.ndarray:
    """Fewer, for operations of two and three operands."""
    if dtype not in FLOATS:
        return values(dtype)
    info = np.finfo(DTYPES[dtype])
    tiny, least, largest = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    found = [0.0, 1, 0.5, 2, 3, 2.5, 1 / 3, 10, largest, tiny, least, 5 * least, INF, NAN, 1e-3, 7.7, 150]
    return np.array([*found, *(-v for v in found)], DTYPES[dtype])


def wrap(number: int, dtype: str) -> int:
    """A Python integer in the bits of a dtype."""
    info = np.iinfo(DTYPES[dtype])
    return (number - int(info.min)) % (1 << info.bits) + int(info.min)


# ---- integers ----


def quotient(x: int, y: int, _: str) -> int:
    """Towards zero; by zero, all bits are one."""
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int, dtype: str) -> int:
    """Of the sign of x; by zero, x."""
    return x if y == 0 else x - y * quotient(x, y, dtype)


def power(x: int, y: int, dtype: str) -> int:
    """As XLA on the CPU: the low six bits of the exponent; below zero, the integer part of 1 / x^|y|."""
    if y < 0:
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    return pow(x, y & 63)


def bits(dtype: str) -> int:
    return 8 * DTYPES[dtype].itemsize


def unsigned(x: int, dtype: str) -> int:
    return x % (1 << bits(dtype))


def shifted_right(x: int, y: int, dtype: str) -> int:
    return x >> min(unsigned(y, dtype), bits(dtype) - 1)


def signed(x: int, dtype: str) -> int:
    return wrap(x, "s" + dtype[1:])


INTEGER_UNARY: dict[str, Any] = {
    "abs": lambda x, d: abs(x),
    "negate": lambda x, d: -x,
    "sign": lambda x, d: (x > 0) - (x < 0),
    "not": lambda x, d: ~x,
    "popcnt": lambda x, d: unsigned(x, d).bit_count(),
    "count-leading-zeros": lambda x, d: bits(d) - unsigned(x, d).bit_length(),
}
INTEGER_BINARY: dict[str, Any] = {
    "add": lambda x, y, d: x + y,
    "subtract": lambda x, y, d: x - y,
    "multiply": lambda x, y, d: x * y,
    "divide": quotient,
    "remainder": remainder,
    "maximum": lambda x, y, d: max(x, y),
    "minimum": lambda x, y, d: min(x, y),
    "power": power,
    "and": lambda x, y, d: x & y,
    "or": lambda x, y, d: x | y,
    "xor": lambda x, y, d: x ^ y,
    "shift-left": lambda x, y, d: x << unsigned(y, d) if unsigned(y, d) < bits(d) else 0,
    "shift-right-logical": lambda x, y, d: unsigned(x, d) >> unsigned(y, d) if unsigned(y, d) < bits(d) else 0,
    "shift-right-arithmetic": lambda x, y, d: shifted_right(signed(x, d), y, d),
}
PRED_BINARY: dict[str, Any] = {
    "add": operator.or_, "multiply": operator.and_, "maximum": operator.or_, "minimum": operator.and_,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
DIRECTIONS = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip

# ---- floats ----

ULPS = {"exact": 0, "f32": 2, "f16": 1}
"""Units in the last place by which a function may differ from float64's, rounded."""


def away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x)) + (np.abs(x) - np.floor(np.abs(x)) >= 0.5), x)


FLOAT_EXACT: dict[str, Any] = {
    "abs": np.abs, "negate": np.negative, "sign": lambda x: np.where(x == 0, x, np.sign(x)), "ceil": np.ceil,
    "floor": np.floor, "round-nearest-afz": away, "round-nearest-even": np.rint, "sqrt": np.sqrt,
}  # fmt: skip
FLOAT_UNARY: dict[str, Any] = {
    "exponential": np.exp, "exponential-minus-one": np.expm1, "log": np.log, "log-plus-one": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "sine": np.sin, "cosine": np.cos, "tan": np.tan,
    "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip
FLOAT_BINARY_EXACT: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "remainder": np.fmod,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
FLOAT_BINARY: dict[str, Any] = {"power": np.power, "atan2": np.arctan2}


def ordered(x: np.ndarray) -> np.ndarray:
    """Neighbouring floats differ by 1; both zeros are 0."""
    raw = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(raw < 0, -(raw & (2 ** (8 * x.itemsize - 1) - 1)), raw)


def assert_floats(ours: np.ndarray, exact: np.ndarray, ulps: int, about: Any) -> None:
    """`exact` is float64; infinity and the largest number are neighbours."""
    with np.errstate(all="ignore"):
        wanted = exact.astype(ours.dtype)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(wanted), err_msg=str(about))
    apart = np.abs(ordered(ours) - ordered(wanted)) * ~np.isnan(wanted)
    worst = int(np.argmax(apart))
    assert apart[worst] <= ulps, (about, worst, ours[worst], wanted[worst], apart[worst])


# ---- running: one module for all operations of a dtype ----


def unary_ops(dtype: str) -> list[str]:
    if dtype == "pred":
        return ["not"]
    if dtype in FLOATS:
        return [*FLOAT_EXACT, *FLOAT_UNARY]
    return [op for op in INTEGER_UNARY if dtype in SIGNED or op not in SIGNED_ONLY]


def binary_ops(dtype: str) -> list[str]:
    if dtype == "pred":
        return list(PRED_BINARY)
    return [*FLOAT_BINARY_EXACT, *FLOAT_BINARY] if dtype in FLOATS else list(INTEGER_BINARY)


def all_of(lines: list[str], types: list[str]) -> str:
    """A body whose results are r0, r1, ..."""
    results = [f"r{i} = {t} {line}" for i, (t, line) in enumerate(zip(types, lines, strict=True))]
    return "\n".join(
        [*results, f"ROOT all = ({', '.join(types)}) tuple({', '.join(f'r{i}' for i in range(len(types)))})"]
    )


def both(keys: list[str], text: str, *args: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return dict(zip(keys, zip(tiles(text, *args), xla(text, *args), strict=True), strict=True))


SIGNED_ONLY = ["abs", "sign"]
"""HLO gives them to signed integers; the tiles have them for all."""


@functools.cache
def unary_results(dtype: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, ops = values(dtype), unary_ops(dtype)
    t = f"{dtype}[{len(x)}]"
    keys, lines, types = list(ops), [f"{op}(x)" for op in ops], [t] * len(ops)
    if dtype in FLOATS:
        keys, lines, types = [*keys, "is-finite"], [*lines, "is-finite(x)"], [*types, f"pred[{len(x)}]"]
    return both(keys, f"x = {t} parameter(0)\n" + all_of(lines, types), x)


@functools.cache
def grid(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x = few(dtype)
    return np.repeat(x, len(x)), np.tile(x, len(x))


@functools.cache
def binary_results(dtype: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, y = grid(dtype)
    t, ops = f"{dtype}[{len(x)}]", binary_ops(dtype)
    lines = [f"{op}(x, y)" for op in ops] + [f"compare(x, y), direction={d}" for d in DIRECTIONS]
    types = [t] * len(ops) + [f"pred[{len(x)}]"] * len(DIRECTIONS)
    if dtype in FLOATS:
        lines += [f"compare(x, y), direction={d}, type=TOTALORDER" for d in DIRECTIONS]
        types += [f"pred[{len(x)}]"] * len(DIRECTIONS)
    keys = [*ops, *DIRECTIONS, *(f"total {d}" for d in DIRECTIONS)][: len(lines)]
    return both(keys, f"x = {t} parameter(0)\ny = {t} parameter(1)\n" + all_of(lines, types), x, y)


# ---- the tests ----


def test_the_tables_hold_every_opcode() -> None:
    tables = (INTEGER_UNARY, INTEGER_BINARY, PRED_BINARY, FLOAT_EXACT, FLOAT_UNARY, FLOAT_BINARY_EXACT, FLOAT_BINARY)
    others = {"is-finite", "compare", "select", "clamp", "convert"}  # have tests of their own, as bits in another file
    assert {op for table in tables for op in table} | others | {"bitcast-convert"} == ELEMENTWISE


@pytest.mark.parametrize(("dtype", "op"), [(d, op) for d in INTS for op in unary_ops(d)])
def test_integers_of_one_operand(dtype: str, op: str) -> None:
    ours, theirs = unary_results(dtype)[op]
    wanted = [wrap(int(INTEGER_UNARY[op](int(x), dtype)), dtype) for x in values(dtype)]
    assert ours.tolist() == wanted
    assert theirs.tolist() == wanted


@pytest.mark.parametrize(("dtype", "op"), [(d, op) for d in INTS for op in INTEGER_BINARY])
def test_integers_of_two_operands(dtype: str, op: str) -> None:
    ours, theirs = binary_results(dtype)[op]
    pairs = list(zip(*(v.tolist() for v in grid(dtype)), strict=True))
    wanted = [wrap(int(INTEGER_BINARY[op](x, y, dtype)), dtype) for x, y in pairs]
    assert [(p, w) for p, w in zip(pairs, ours.tolist(), strict=True)] == list(zip(pairs, wanted, strict=True))
    # XLA takes a large unsigned exponent for a negative one.
    odd = [op == "power" and dtype in UNSIGNED and y > unsigned(-1, dtype) // 2 for _, y in pairs]
    assert [t for t, skip in zip(theirs.tolist(), odd, strict=True) if not skip] == [
        w for w, skip in zip(wanted, odd, strict=True) if not skip
    ]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_numbers_have_an_absolute_value_and_a_sign(dtype: str) -> None:
    x = values(dtype)
    body = f"x = {dtype}[{len(x)}] parameter(0)\n" + all_of(["abs(x)", "sign(x)"], [f"{dtype}[{len(x)}]"] * 2)
    absolute, sign = tiles(body, x)
    np.testing.assert_array_equal(absolute, x)
    np.testing.assert_array_equal(sign, x != 0)


@pytest.mark.parametrize("op", PRED_BINARY)
def test_truth_values_of_two_operands(op: str) -> None:
    x, y = grid("pred")
    for found in binary_results("pred")[op]:
        np.testing.assert_array_equal(found, PRED_BINARY[op](x, y))


def test_not_of_a_truth_value() -> None:
    for found in unary_results("pred")["not"]:
        np.testing.assert_array_equal(found, [True, False])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["pred", *INTS, *FLOATS])
def test_comparisons(dtype: str, direction: str) -> None:
    ours, theirs = binary_results(dtype)[direction]
    wanted = DIRECTIONS[direction](*grid(dtype))
    np.testing.assert_array_equal(ours, wanted)
    flushed = _denormal(grid(dtype)[0]) | _denormal(grid(dtype)[1])
    np.testing.assert_array_equal(theirs[~flushed], wanted[~flushed])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_in_total_order(dtype: str, direction: str) -> None:
    x, y = (_order(v) for v in grid(dtype))
    for found in binary_results(dtype)[f"total {direction}"]:
        np.testing.assert_array_equal(found, DIRECTIONS[direction](x, y))


def _order(x: np.ndarray) -> np.ndarray:
    """-NaN < -infinity < ... < -0 < 0 < ... < infinity < NaN."""
    raw = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(raw < 0, -1 - (raw & (2 ** (8 * x.itemsize - 1) - 1)), raw)


def _denormal(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return np.zeros(x.shape, bool)
    with np.errstate(invalid="ignore"):
        return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)


def assert_as_xla(ours: np.ndarray, theirs: np.ndarray, operands: tuple[np.ndarray, ...], about: Any) -> None:
    """Where no denormal and no NaN is about, XLA's result is near."""
    plain = ~(_denormal(ours) | _denormal(theirs))
    for x in operands:
        plain &= ~(_denormal(x) | np.isnan(x))
    np.testing.assert_allclose(
        ours[plain].astype(np.float64),
        theirs[plain],
        equal_nan=True,  # which results are none is asserted by the exact oracle
        rtol=2e-5 if ours.itemsize == 4 else 3e-3,
        atol=1e-6,
        err_msg=str(about),
    )


@pytest.mark.parametrize(("dtype", "op"), [(d, op) for d in FLOATS for op in (*FLOAT_EXACT, *FLOAT_UNARY)])
def test_floats_of_one_operand(dtype: str, op: str) -> None:
    x = values(dtype)
    ours, theirs = unary_results(dtype)[op]
    with np.errstate(all="ignore"):
        wanted = {**FLOAT_EXACT, **FLOAT_UNARY}[op](x.astype(np.float64))
    assert_floats(ours, wanted, 0 if op in FLOAT_EXACT else ULPS[dtype], (op, dtype))
    if op in FLOAT_EXACT or op in ("sine", "tanh", "cbrt", "erf"):
        zero = ours == 0
        np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(wanted[zero]))
    assert_as_xla(ours, theirs, (x,), (op, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_finite(dtype: str) -> None:
    for found in unary_results(dtype)["is-finite"]:
        np.testing.assert_array_equal(found, np.isfinite(values(dtype)))


@pytest.mark.parametrize(("dtype", "op"), [(d, op) for d in FLOATS for op in (*FLOAT_BINARY_EXACT, *FLOAT_BINARY)])
def test_floats_of_two_operands(dtype: str, op: str) -> None:
    x, y = grid(dtype)
    ours, theirs = binary_results(dtype)[op]
    with np.errstate(all="ignore"):
        wanted = {**FLOAT_BINARY_EXACT, **FLOAT_BINARY}[op](x.astype(np.float64), y.astype(np.float64))
    assert_floats(ours, wanted, 0 if op in FLOAT_BINARY_EXACT else ULPS[dtype], (op, dtype))
    if op in ("add", "subtract", "multiply", "divide", "remainder", "atan2"):
        zero = (ours == 0) & (wanted == 0)
        np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(wanted[zero]))
    assert_as_xla(ours, theirs, (x, y), (op, dtype))


def converted(x: Any, source: str, target: str) -> Any:
    """One element, by the rules: truth is "not zero"; floats saturate, NaN is 0; integers wrap."""
    if target == "pred":
        return bool(x != 0)
    if target in FLOATS:
        with np.errstate(over="ignore"):
            number = np.float64(x) if source in FLOATS or target == "f16" else x
            return np.array([number]).astype(DTYPES[target])[0]
    if source in FLOATS:
        if np.isnan(x):
            return 0
        info = np.iinfo(DTYPES[target])
        if np.isinf(x):
            return int(info.max if x > 0 else info.min)
        return min(max(math.trunc(float(x)), int(info.min)), int(info.max))
    return wrap(int(x), target)


@functools.cache
def conversions(source: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, targets = values(source), [d for d in DTYPES if d != source]
    types = [f"{d}[{len(x)}]" for d in targets]
    text = f"x = {source}[{len(x)}] parameter(0)\n" + all_of(["convert(x)"] * len(targets), types)
    return both(targets, text, x)


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in DTYPES for t in DTYPES if s != t])
def test_conversions(source: str, target: str) -> None:
    x = values(source)
    ours, theirs = conversions(source)[target]
    wanted = np.array([converted(v, source, target) for v in x], DTYPES[target])
    np.testing.assert_array_equal(ours, wanted)
    assert ours.dtype == wanted.dtype
    plain = ~(_denormal(x) | _denormal(wanted))
    np.testing.assert_array_equal(theirs[plain], wanted[plain])


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_select(dtype: str) -> None:
    x, y = grid(dtype)
    choice = np.arange(len(x)) % 3 == 0
    t = f"{dtype}[{len(x)}]"
    body = f"c = pred[{len(x)}] parameter(0)\nx = {t} parameter(1)\ny = {t} parameter(2)\nROOT r = {t} select(c, x, y)"
    (ours,) = tiles(body, choice, x, y)
    np.testing.assert_array_equal(ours.view(np.uint8), np.where(choice, x, y).view(np.uint8))
    scalar = body.replace(f"c = pred[{len(x)}]", "c = pred[]")
    for one in (True, False):
        (ours,) = tiles(scalar, np.array(one), x, y)
        np.testing.assert_array_equal(ours.view(np.uint8), (x if one else y).view(np.uint8))


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_clamp(dtype: str) -> None:
    """min(max(low, x), high), also where low is above high; NaN of any operand stays."""
    corners = few(dtype)[::3] if dtype in FLOATS else values(dtype)[::3]
    if dtype in FLOATS:
        corners = np.append(corners, np.array([NAN], corners.dtype))
    low, x, high = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(corners, corners, corners))
    t = f"{dtype}[{len(x)}]"
    body = f"l = {t} parameter(0)\nx = {t} parameter(1)\nh = {t} parameter(2)\nROOT r = {t} clamp(l, x, h)"
    wanted = np.minimum(np.maximum(low, x), high)
    (ours,), (theirs,) = tiles(body, low, x, high), xla(body, low, x, high)
    np.testing.assert_array_equal(ours, wanted)
    plain = np.ones(len(x), bool)
    for v in (low, x, high):
        plain &= ~(_denormal(v) | (v != v))
    np.testing.assert_array_equal(theirs[plain], wanted[plain])
    scalar = body.replace(f"l = {t}", f"l = {dtype}[]").replace(f"h = {t}", f"h = {dtype}[]")
    (ours,) = tiles(scalar, corners[1], x, corners[-2])
    np.testing.assert_array_equal(ours, np.minimum(np.maximum(corners[1], x), corners[-2]))


LITERALS = {
    "pred": ("{false, true}", [False, True]),
    "s8": ("{-128, 127, 0}", [-128, 127, 0]),
    "u8": ("{255, 128, 0}", [255, 128, 0]),
    "s16": ("{-32768, 32767}", [-32768, 32767]),
    "u16": ("{65535, 0}", [65535, 0]),
    "s32": ("{-2147483648, 2147483647}", [-(2**31), 2**31 - 1]),
    "u32": ("{4294967295, 1}", [2**32 - 1, 1]),
    "s64": ("{-9223372036854775808, 9223372036854775807}", [-(2**63), 2**63 - 1]),
    "u64": ("{18446744073709551615, 3}", [2**64 - 1, 3]),
    "f16": ("{nan, inf, -inf, -0.0, 6e-08, 65504}", [NAN, INF, -INF, -0.0, 6e-8, 65504]),
    "f32": ("{nan, inf, -inf, -0.0, 1e-45, 3.40282347e+38}", [NAN, INF, -INF, -0.0, 1e-45, 3.40282347e38]),
}


@pytest.mark.parametrize("dtype", LITERALS)
def test_literals(dtype: str) -> None:
    """As they stand, and used by an operation that is done while compiling."""
    text, wanted = LITERALS[dtype]
    t = f"{dtype}[{len(wanted)}]"
    (ours,) = tiles(f"ROOT c = {t} constant({text})")
    np.testing.assert_array_equal(ours, np.array(wanted, DTYPES[dtype]))
    if dtype in FLOATS:
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(wanted))
    (ours,) = tiles(f"c = {t} constant({text})\nROOT r = {t} reverse(c), dimensions={{0}}")
    np.testing.assert_array_equal(ours, np.array(wanted, DTYPES[dtype])[::-1])


def test_a_literal_whose_columns_stand_first() -> None:
    (ours,) = tiles("ROOT c = s32[2,3]{0,1} constant({{1, 2, 3}, {4, 5, 6}})")
    np.testing.assert_array_equal(ours, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_what_is_known_while_compiling_is_what_the_tiles_compute(dtype: str) -> None:
    """Constants are folded: by the same kernels."""
    x = np.concatenate([few(dtype)[:6], few(dtype)[-6:]])
    x = x[np.isfinite(x)] if dtype in FLOATS else x
    y = x[::-1].copy()
    ops, t = binary_ops(dtype), f"{dtype}[{len(x)}]"
    literal = [f"constant({{{', '.join(repr(e) for e in v.tolist())}}})" for v in (x, y)]
    body = all_of([f"{op}(x, y)" for op in ops], [t] * len(ops))
    folded = tiles(f"x = {t} {literal[0]}\ny = {t} {literal[1]}\n{body}")
    run = tiles(f"x = {t} parameter(0)\ny = {t} parameter(1)\n{body}", x, y)
    for op, a, b in zip(ops, folded, run, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=op)


@pytest.mark.parametrize("shape", ["", "0", "1", "3,0,2", "1,1", "2,1,3"])
def test_shapes_without_elements_and_of_one(shape: str) -> None:
    dims = [int(n) for n in shape.split(",") if n]
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        x = rng.integers(0, 2, dims).astype(DTYPES[dtype])
        op = "xor" if dtype in INTS or dtype == "pred" else "subtract"
        t = f"{dtype}[{shape}]"
        (ours,) = tiles(f"x = {t} parameter(0)\ny = {t} parameter(1)\nROOT r = {t} {op}(x, y)", x, x)
        assert ours.shape == tuple(dims)
        assert ours.dtype == x.dtype
        assert not ours.any()


# ---- what must be refused ----


def with_dtype(op: str, dtype: str, operands: int) -> bytes:
    """A module of an operation on a dtype that it may not have: the parser would not write it."""
    from tensorflow.compiler.xla import xla_data_pb2
    from tensorflow.compiler.xla.service import hlo_pb2

    names = ["x", "y"][:operands]
    lines = [f"{n} = f32[4] parameter({i})" for i, n in enumerate(names)]
    module = hlo_pb2.HloModuleProto()
    module.ParseFromString(parse("\n".join([*lines, f"ROOT r = f32[4] {op}({', '.join(names)})"])))
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.shape.element_type = xla_data_pb2.PrimitiveType.Value(dtype.upper())
    return bytes(module.SerializeToString())


@pytest.mark.parametrize("dtype", ["pred", "s32", "u8", "s64"])
@pytest.mark.parametrize("op", [*(op for op in FLOAT_UNARY), "sqrt", "ceil", "floor", "round-nearest-even"])
def test_functions_of_floats_refuse_integers(op: str, dtype: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=f"{op}: of {dtype}"):
        hlo.compile(with_dtype(op, dtype, 1))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("negate", "pred"), ("abs", "pred"), ("sign", "pred"), ("subtract", "pred"), ("divide", "pred"), ("atan2", "s32")],
)
def test_arithmetic_refuses_what_has_none(op: str, dtype: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=f"{op}: of {dtype}"):
        hlo.compile(with_dtype(op, dtype, 2 if op in ("subtract", "divide", "atan2") else 1))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f8e4m3fn", "s4", "u4", "c128"])
def test_dtypes_that_no_tile_holds_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=dtype):
        hlo.compile(with_dtype("add", dtype, 2))
