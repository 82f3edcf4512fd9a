"""The vector kernels against float64, exact integers, special values, XLA, and each other over instruction sets.

Cases marked "XLA:" hold values that XLA on the CPU (TensorFlow 2.21, jit_compile=True) was seen to give.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from ipu_runtime import _vec
from ipu_runtime.opcodes import ARITY, DTYPE_NUMBER, DTYPES, OPS, PRED_RESULT, REDUCTIONS

NUMPY = {
    "pred": np.bool_,
    "s8": np.int8,
    "u8": np.uint8,
    "s16": np.int16,
    "u16": np.uint16,
    "s32": np.int32,
    "u32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
}
SIGNED = ["s8", "s16", "s32", "s64"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
INTS = SIGNED + UNSIGNED
FLOATS = ["f16", "f32"]
ISAS = _vec.isas()
LENGTHS = [0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 131, 512, 700]
INF, NAN = np.inf, np.nan


def f32(*values):
    return np.array(values, np.float32)


def samples(dtype: str, n: int, seed: int = 0) -> np.ndarray:
    """n values that hold the corners of the dtype and random ones of every magnitude."""
    rng = np.random.default_rng([seed, DTYPE_NUMBER[dtype], n])
    if dtype == "pred":
        return rng.integers(0, 2, n).astype(np.bool_)
    if dtype in FLOATS:
        bits = np.uint16 if dtype == "f16" else np.uint32
        any_bits = rng.integers(0, np.iinfo(bits).max, n, dtype=bits, endpoint=True).view(NUMPY[dtype])
        tame = rng.normal(size=n).astype(NUMPY[dtype])
        values = np.where(rng.random(n) < 0.5, any_bits, tame).astype(NUMPY[dtype])
        corners = np.array([0, -0.0, 1, -1, INF, -INF, NAN, 0.5, -0.5, 2.5, 1e-7, 6e-8], NUMPY[dtype])
    else:
        info = np.iinfo(NUMPY[dtype])
        wide = rng.integers(info.min, info.max, n, dtype=NUMPY[dtype], endpoint=True)
        small = rng.integers(-5 if info.min < 0 else 0, 70, n).astype(NUMPY[dtype])
        values = np.where(rng.random(n) < 0.5, wide, small)
        corners = np.array([0, 1, info.max, info.min, 2, info.max - 1, info.bits, info.bits - 1], NUMPY[dtype])
    where = rng.random(n) < 0.3
    values[where] = rng.choice(corners, where.sum())
    return values


def assert_same(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Equal bits, where any NaN equals any other NaN but nothing else."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    if actual.dtype.kind == "f":
        width = f"u{actual.dtype.itemsize}"
        good = (actual.view(width) == expected.view(width)) | (np.isnan(actual) & np.isnan(expected))
    else:
        good = actual == expected
    bad = np.flatnonzero(~good.ravel())
    assert not bad.size, (
        f"{what}: {bad.size} differ, first at {bad[0]}: {actual.ravel()[bad[0]]!r} is not {expected.ravel()[bad[0]]!r}"
    )


def operands(op: str, dtype: str, n: int, seed: int = 0) -> list[np.ndarray]:
    if op == "select":
        return [samples("pred", n, seed), samples(dtype, n, seed + 1), samples(dtype, n, seed + 2)]
    return [samples(dtype, n, seed + i) for i in range(ARITY[op])]


def every_kernel():
    return [(op, d.name) for op in OPS for d in DTYPES if _vec.supported(op, d.name)]


# ---- the tables ----


def test_opcodes_agree_with_the_c_header():
    assert _vec.op_list() == [(name, ARITY[name]) for name in OPS]
    assert _vec.dtype_sizes() == [d.itemsize for d in DTYPES]
    assert [np.dtype(NUMPY[d.name]).itemsize for d in DTYPES] == [d.itemsize for d in DTYPES]


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_has_the_same_kernels(isa):
    for op in OPS:
        for d in DTYPES:
            assert _vec.supported(op, d.name, isa=isa) == _vec.supported(op, d.name, isa="baseline"), (op, d.name)


def test_which_kernels_there_are():
    arithmetic = {
        "add",
        "multiply",
        "maximum",
        "minimum",
        "copy",
        "select",
        *(o for o in OPS if o.startswith("compare")),
    }
    for op in OPS:
        have = {d.name for d in DTYPES if _vec.supported(op, d.name)}
        if op in arithmetic:
            assert have == {d.name for d in DTYPES}, op
        elif op in {"and", "or", "xor", "not"}:
            assert have == {"pred", *INTS}, op
        elif op in {"popcnt", "count-leading-zeros"} or op.startswith("shift"):
            assert have == set(INTS), op
        elif op in {"abs", "negate", "sign", "subtract", "divide", "remainder", "power", "clamp"}:
            assert have == {*INTS, *FLOATS}, op
        else:
            assert have == set(FLOATS), op


def test_environment_chooses_the_instruction_set():
    script = "from ipu_runtime import _vec; print(_vec.isa_name())"
    for isa in ISAS:
        run = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "IPU_RUNTIME_ISA": isa}, capture_output=True, text=True
        )
        assert run.stdout.strip() == isa, run.stderr
    run = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "IPU_RUNTIME_ISA": "mmx"}, capture_output=True, text=True
    )
    assert run.returncode and "instruction set" in run.stderr


def test_wrapper_refuses_wrong_operands():
    with pytest.raises(TypeError, match="no kernel"):
        _vec.apply("exponential", "s32", np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="dtype"):
        _vec.apply("add", "f32", np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="shape"):
        _vec.apply("add", "f32", f32(1, 2), f32(1))
    with pytest.raises(TypeError, match="operands"):
        _vec.apply("add", "f32", f32(1, 2))
    with pytest.raises(ValueError, match="instruction set"):
        _vec.apply("abs", "f32", f32(1), isa="mmx")


# ---- the same bits from every instruction set, in place or not, whole or in pieces ----


@pytest.mark.parametrize("isa", [i for i in ISAS if i != "baseline"])
def test_same_bits_as_baseline(isa):
    for op, dtype in every_kernel():
        for n in LENGTHS:
            args = operands(op, dtype, n)
            assert_same(
                _vec.apply(op, dtype, *args, isa=isa), _vec.apply(op, dtype, *args, isa="baseline"), f"{op} {dtype} {n}"
            )
    for to in NUMPY:
        for source in NUMPY:
            for n in LENGTHS:
                a = samples(source, n)
                assert_same(
                    _vec.convert(to, source, a, isa=isa), _vec.convert(to, source, a, isa="baseline"), f"{source}->{to}"
                )
    for op in REDUCTIONS:
        for d in DTYPES:
            for n in LENGTHS:
                try:
                    expected = _vec.reduce(op, d.name, 1, samples(d.name, n), isa="baseline")
                except TypeError:
                    continue
                assert_same(_vec.reduce(op, d.name, 1, samples(d.name, n), isa=isa), expected, f"{op} {d.name} {n}")


@pytest.mark.parametrize("isa", ISAS)
def test_output_may_be_an_operand_and_pieces_equal_the_whole(isa):
    for op, dtype in every_kernel():
        args = operands(op, dtype, 133)
        expected = _vec.apply(op, dtype, *args, isa=isa)
        for i, arg in enumerate(args):
            if arg.dtype == expected.dtype:
                copies = [x.copy() for x in args]
                _vec.apply(op, dtype, *copies, isa=isa, out=copies[i])
                assert_same(copies[i], expected, f"{op} {dtype} in place of operand {i}")
        one_by_one = np.concatenate([_vec.apply(op, dtype, *(x[k : k + 1] for x in args), isa=isa) for k in range(133)])
        assert_same(one_by_one, expected, f"{op} {dtype} one by one")


# ---- integers ----


def wrap(values, dtype: str) -> np.ndarray:
    """Python integers reduced to the dtype's width."""
    width = 8 * np.dtype(NUMPY[dtype]).itemsize
    unsigned = np.array([int(v) % (1 << width) for v in values], f"u{width // 8}")
    return unsigned.view(NUMPY[dtype])


def power(x: int, y: int) -> int:
    """Integer power as XLA on the CPU has it: six bits of the exponent."""
    if y >= 0:
        return x ** (y & 63)
    return x ** (-y & 1) if x in (1, -1) else 0


def truncated(x: int, y: int, width: int) -> tuple[int, int]:
    if y == 0:
        return -1, x
    q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return q, x - q * y


def shift(op: str, x: int, y: int, dtype: str) -> int:
    width = 8 * np.dtype(NUMPY[dtype]).itemsize
    y, ux = y % (1 << width), x % (1 << width)
    sx = ux - (1 << width) if ux >> (width - 1) else ux
    if op == "shift-left":
        return ux << y if y < width else 0
    return ux >> min(y, width) if op == "shift-right-logical" else sx >> min(y, width)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_ops_are_exact(dtype):
    width = 8 * np.dtype(NUMPY[dtype]).itemsize
    for n in (1, 3, 400):
        a, b, c = (samples(dtype, n, seed) for seed in range(3))
        x, y, z = ([int(v) for v in values] for values in (a, b, c))
        cases = {
            "copy": x,
            "abs": map(abs, x),
            "negate": (-i for i in x),
            "sign": ((i > 0) - (i < 0) for i in x),
            "not": (~i for i in x),
            "popcnt": (bin(i % (1 << width)).count("1") for i in x),
            "count-leading-zeros": (width - (i % (1 << width)).bit_length() for i in x),
        }
        for op, expected in cases.items():
            assert_same(_vec.apply(op, dtype, a), wrap(expected, dtype), f"{op} {dtype}")
        pairs = list(zip(x, y))
        cases = {
            "add": (i + j for i, j in pairs),
            "subtract": (i - j for i, j in pairs),
            "multiply": (i * j for i, j in pairs),
            "divide": (truncated(i, j, width)[0] for i, j in pairs),
            "remainder": (truncated(i, j, width)[1] for i, j in pairs),
            "maximum": (max(p) for p in pairs),
            "minimum": (min(p) for p in pairs),
            "power": (power(*p) for p in pairs),
            "and": (i & j for i, j in pairs),
            "or": (i | j for i, j in pairs),
            "xor": (i ^ j for i, j in pairs),
            **{op: [shift(op, i, j, dtype) for i, j in pairs] for op in OPS if op.startswith("shift")},
        }
        for op, expected in cases.items():
            assert_same(_vec.apply(op, dtype, a, b), wrap(expected, dtype), f"{op} {dtype}")
        for op in (o for o in OPS if o.startswith("compare")):
            expected = np.array([getattr(i, f"__{op[-2:]}__")(j) for i, j in pairs], np.bool_)
            assert_same(_vec.apply(op, dtype, a, b), expected, f"{op} {dtype}")
        assert_same(_vec.apply("clamp", dtype, a, b, c), wrap((min(max(j, i), k) for i, j, k in zip(x, y, z)), dtype))
        p = samples("pred", n)
        assert_same(_vec.apply("select", dtype, p, b, c), np.where(p, b, c))


def test_pred_ops():
    a, b = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)
    expected = {
        "add": a | b, "multiply": a & b, "maximum": a | b, "minimum": a & b, "and": a & b, "or": a | b, "xor": a ^ b,
        "compare-eq": a == b, "compare-ne": a != b, "compare-lt": a < b, "compare-le": a <= b, "compare-gt": a > b,
        "compare-ge": a >= b,
    }  # fmt: skip
    for op, value in expected.items():
        assert_same(_vec.apply(op, "pred", a, b), value, op)
    assert_same(_vec.apply("not", "pred", a), ~a)
    assert_same(_vec.apply("select", "pred", a, b, ~b), np.where(a, b, ~b))


def test_integer_corners_as_xla():
    i32 = lambda *v: np.array(v, np.int32)  # noqa: E731
    least = -(2**31)
    assert_same(_vec.apply("divide", "s32", i32(7, least, least, 7), i32(0, -1, 0, -2)), i32(-1, least, -1, -3))  # XLA:
    assert_same(
        _vec.apply("remainder", "s32", i32(7, least, least, -7), i32(0, -1, 0, 2)), i32(7, 0, least, -1)
    )  # XLA:
    x, y = i32(2, 2, 2, 3, -1, -1, 0, 2), i32(31, 33, 64, 33, -1, -2, -1, -1)
    assert_same(_vec.apply("power", "s32", x, y), i32(least, 0, 1, -1504003197, -1, 1, 0, 0))  # XLA:


# ---- floats ----


def ulps(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance from the float64 value in units of float32's last place; NaN and infinity must match."""
    exact = exact.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = exact.astype(np.float32)
    assert np.array_equal(np.isnan(actual), np.isnan(exact)), "NaN where there should be none, or the reverse"
    finite = np.isfinite(nearest) & np.isfinite(actual)
    infinite = ~finite & ~np.isnan(exact)
    top = np.abs(actual) >= np.finfo(np.float32).max  # a neighbour of the overflow limit
    assert (np.equal(actual, nearest) | top)[infinite].all(), "infinity in the wrong place"
    unit = np.spacing(np.abs(np.where(finite, nearest, np.float32(1)))).astype(np.float64)
    return np.abs(np.where(finite, actual, 0).astype(np.float64) - np.where(finite, exact, 0)) / unit


def wide_range(seed=0, n=200_000) -> np.ndarray:
    """float32 of every exponent and sign, denormals and specials among them."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    near = (rng.normal(size=n) * 3).astype(np.float32)
    grid = np.linspace(-110, 110, n, dtype=np.float32)
    special = f32(0, -0.0, INF, -INF, NAN, 1, -1, 1e-45, -1e-45, 88.72283, 88.73, -87.4, -103.9, -104.1, 3.4e38)
    return np.concatenate([bits, near, grid, special])


def exact_functions():
    from scipy import special

    return {
        "exponential": np.exp,
        "exponential-minus-one": np.expm1,
        "log": np.log,
        "log-plus-one": np.log1p,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "cbrt": np.cbrt,
        "sine": np.sin,
        "cosine": np.cos,
        "tan": np.tan,
        "tanh": np.tanh,
        "logistic": special.expit,
        "erf": special.erf,
    }


@pytest.mark.parametrize("op", list(exact_functions()))
def test_f32_functions_are_within_two_ulp(op):
    x = wide_range()
    with np.errstate(all="ignore"):
        exact = exact_functions()[op](x.astype(np.float64))
    # finer than asked: the functions that go through double are rounded once
    limit = {"rsqrt": 1.6, "cbrt": 1.5}.get(op, 0.6)
    error = ulps(_vec.apply(op, "f32", x), exact)
    worst = error.argmax()
    assert error[worst] <= limit, f"{op}({x[worst]!r}) is {error[worst]:.2f} ulp off"


def test_zero_keeps_its_sign_and_nan_stays():
    odd = """exponential-minus-one log-plus-one sqrt cbrt sine tan tanh erf sign ceil floor round-nearest-afz
        round-nearest-even copy""".split()
    for op in odd:
        for dtype in FLOATS:
            zeros = np.array([0.0, -0.0], NUMPY[dtype])
            assert_same(_vec.apply(op, dtype, zeros), zeros, op)
    for op, dtype in every_kernel():
        if dtype in FLOATS and ARITY[op] == 1 and op != "is-finite":
            assert np.isnan(_vec.apply(op, dtype, np.full(40, NAN, NUMPY[dtype]))).all(), (op, dtype)


@pytest.mark.parametrize(
    "op, expected",
    [
        ("ceil", np.ceil),
        ("floor", np.floor),
        ("round-nearest-even", np.rint),
        ("round-nearest-afz", lambda x: np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x)),
        ("abs", np.abs),
        ("negate", np.negative),
        ("sign", np.sign),
    ],
)
def test_f32_exact_unary(op, expected):
    x = np.concatenate([wide_range(1), f32(0.5, 1.5, 2.5, 0.49999997, 8388607.5, 8388609, -0.2, 0.7)])
    with np.errstate(invalid="ignore"):
        want = expected(x).astype(np.float32)
    if op == "sign":
        want = np.where(x == 0, x, want)
    assert_same(_vec.apply(op, "f32", x), want, op)


def test_is_finite():
    x = wide_range()
    assert_same(_vec.apply("is-finite", "f32", x), np.isfinite(x))
    h = np.arange(65536, dtype=np.uint16).view(np.float16)
    assert_same(_vec.apply("is-finite", "f16", h), np.isfinite(h))


def test_f32_exact_binary():
    x = wide_range(2)
    y = np.roll(wide_range(3), 7)
    cases = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "remainder": np.fmod,
        "compare-eq": np.equal, "compare-ne": np.not_equal, "compare-lt": np.less, "compare-le": np.less_equal,
        "compare-gt": np.greater, "compare-ge": np.greater_equal,
    }  # fmt: skip
    for op, function in cases.items():
        with np.errstate(all="ignore"):
            assert_same(_vec.apply(op, "f32", x, y), function(x, y), op)
    for op, function in {"maximum": np.maximum, "minimum": np.minimum}.items():
        actual, expected = _vec.apply(op, "f32", x, y), function(x, y)
        assert np.array_equal(actual, expected, equal_nan=True), op


def test_nan_and_zero_in_maximum_minimum_clamp():
    x, y = f32(NAN, 1, NAN, 0, -0.0, 2), f32(1, NAN, NAN, -0.0, 0, 3)
    assert_same(_vec.apply("maximum", "f32", x, y), f32(NAN, NAN, NAN, 0, -0.0, 3))
    assert_same(_vec.apply("minimum", "f32", x, y), f32(NAN, NAN, NAN, 0, -0.0, 2))
    lo, x, hi = f32(0, 0, NAN, 5, -1), f32(NAN, 2, 1, 1, -0.5), f32(1, 1, 1, 0, 1)
    assert_same(_vec.apply("clamp", "f32", lo, x, hi), f32(NAN, 1, NAN, 0, -0.5))


def test_power_and_atan2():
    rng = np.random.default_rng(4)
    x = np.exp(rng.uniform(-80, 80, 200_000)).astype(np.float32)
    y = rng.uniform(-3, 3, 200_000).astype(np.float32)
    with np.errstate(all="ignore"):
        error = ulps(_vec.apply("power", "f32", x, y), x.astype(np.float64) ** y.astype(np.float64))
    assert error.max() <= 0.6  # 4 are asked for
    x = rng.normal(size=1000).astype(np.float32)
    y = rng.integers(-6, 7, 1000).astype(np.float32)
    error = ulps(_vec.apply("power", "f32", x, y), x.astype(np.float64) ** y.astype(np.float64))
    assert error.max() <= 1.0
    x = f32(0, 0, -0.0, -0.0, -2, -2, -2, 1, NAN, INF, -INF, -INF, -INF, INF, NAN, -1, -1, 0.5)
    y = f32(0, -1, -1, -2, 3, 2, 0.5, NAN, 0, -1, -1, 3, 0.5, 0, 1, INF, -INF, -INF)
    expected = f32(1, INF, -INF, INF, -8, 4, NAN, 1, 1, 0, -0.0, -INF, INF, 1, NAN, 1, 1, INF)  # XLA:
    assert_same(_vec.apply("power", "f32", x, y), expected)
    for i in range(len(x)):
        assert_same(_vec.apply("power", "f32", x[i : i + 1], y[i : i + 1]), expected[i : i + 1])
    a, b = wide_range(5, 5000), np.roll(wide_range(6, 5000), 3)
    with np.errstate(all="ignore"):
        error = ulps(_vec.apply("atan2", "f32", a, b), np.arctan2(a.astype(np.float64), b.astype(np.float64)))
    assert error.max() <= 2.0


@pytest.mark.parametrize("isa", ISAS)
def test_f16_is_f32_rounded_once(isa):
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    other = np.random.default_rng(7).permutation(every)
    third = np.random.default_rng(8).permutation(every)
    for op, dtype in every_kernel():
        if dtype != "f16" or op == "select":
            continue
        args = [every, other, third][: ARITY[op]]
        actual = _vec.apply(op, "f16", *args, isa=isa)
        with np.errstate(all="ignore"):
            wide = _vec.apply(op, "f32", *(a.astype(np.float32) for a in args), isa=isa)
            expected = wide if op in PRED_RESULT else wide.astype(np.float16)
        assert_same(actual, expected, op)


# ---- conversions ----


def converted(x: np.ndarray, to: str) -> np.ndarray:
    """The conversion in exact Python arithmetic."""
    if to in FLOATS:
        with np.errstate(over="ignore"):
            return x.astype(np.float32).astype(NUMPY[to])
    if to == "pred":
        return x != 0
    if x.dtype.kind != "f":
        return wrap(x, to)
    info = np.iinfo(NUMPY[to])

    def one(v: float) -> int:
        if np.isnan(v):
            return 0
        return min(max(int(v), info.min), info.max) if np.isfinite(v) else (info.max if v > 0 else info.min)

    return wrap([one(float(v)) for v in x], to)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("to", list(NUMPY))
def test_conversions(isa, to):
    edges = f32(NAN, INF, -INF, 3e9, -3e9, 1e20, -1e20, 300.7, -300.7, -0.9, 0.9, 255.5, 127.9, -128.9, -129.1,
                4294967040, 4294967296, 2147483520, 2147483648, -2147483648, -2147483904, 9.2e18, 9.223372e18, 1.8e19,
                1.8446744e19, -9.223372e18, 65535.9, 65536, 32767.5, 32768, -32768.9, 1e-45, -0.0)  # fmt: skip
    for source in NUMPY:
        x = np.concatenate(
            [samples(source, 700), edges.astype(np.float32) if source == "f32" else samples(source, 3, 1)]
        )
        assert_same(_vec.convert(to, source, x, isa=isa), converted(x, to), f"{source} -> {to}")


@pytest.mark.parametrize("isa", ISAS)
def test_half_precision_conversion_is_exact(isa):
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide = _vec.convert("f32", "f16", every, isa=isa)
    assert_same(wide, every.astype(np.float32))
    assert_same(_vec.convert("f16", "f32", wide, isa=isa), every)
    finite = wide[np.isfinite(wide)]
    middle = ((np.sort(finite)[:-1].astype(np.float64) + np.sort(finite)[1:]) / 2).astype(np.float32)
    x = np.concatenate([middle, np.nextafter(middle, f32(INF)), np.nextafter(middle, f32(-INF)), wide_range(9),
                        f32(65504, 65519.996, 65520, -65520, 5.96e-8, 2.98e-8, 2.99e-8)])  # fmt: skip
    with np.errstate(all="ignore"):
        assert_same(_vec.convert("f16", "f32", x, isa=isa), x.astype(np.float16))


# ---- reductions ----


@pytest.mark.parametrize("isa", ISAS)
def test_reductions_of_integers_are_exact(isa):
    for dtype in INTS:
        for n in LENGTHS:
            x = samples(dtype, n)
            values = [int(v) for v in x]
            product, xor, both, either = 3, 3, 3, 3
            for v in values:
                product, xor, both, either = product * v, xor ^ v, both & v, either | v
            expected = {
                "add": 3 + sum(values), "multiply": product, "maximum": max([3, *values]), "minimum": min([3, *values]),
                "and": both, "or": either, "xor": xor,
            }  # fmt: skip
            for op, value in expected.items():
                assert_same(_vec.reduce(op, dtype, 3, x, isa=isa), wrap([value], dtype)[0], f"{op} {dtype} {n}")


def lanes(op, init, x):
    """The order of vec_reduce.h, in NumPy float32."""
    x = x.astype(np.float32)
    n, acc = len(x), np.float32(init)
    if n >= 16:
        lane = x[:16].copy()
        for i in range(16, n - n % 16, 16):
            lane = op(lane, x[i : i + 16])
        tail = n % 16
        lane[:tail] = op(lane[:tail], x[n - tail :])
        while len(lane) > 1:
            half = len(lane) // 2
            lane = op(lane[:half], lane[half:])
        return op(acc, lane[0])
    for v in x:
        acc = op(acc, v)
    return acc


@pytest.mark.parametrize("isa", ISAS)
def test_float_reductions_keep_their_order(isa):
    for n in LENGTHS:
        x = np.random.default_rng(n).normal(size=n).astype(np.float32)
        assert_same(_vec.reduce("add", "f32", 0.5, x, isa=isa), np.float32(lanes(np.add, 0.5, x)), f"add {n}")
        assert_same(_vec.reduce("multiply", "f32", 0.5, x, isa=isa), np.float32(lanes(np.multiply, 0.5, x)), f"mul {n}")
        h = x.astype(np.float16)
        if n <= 256:
            assert_same(_vec.reduce("add", "f16", 0.5, h, isa=isa), np.float16(lanes(np.add, 0.5, h)), f"f16 add {n}")
        for op, function in (("maximum", np.max), ("minimum", np.min)):
            assert _vec.reduce(op, "f32", 0.5, x, isa=isa) == function(np.append(x, np.float32(0.5)))
            if n:
                with_nan = x.copy()
                with_nan[n // 2] = NAN
                assert np.isnan(_vec.reduce(op, "f32", 0.5, with_nan, isa=isa)), (op, n)


def test_f16_sum_does_not_round_in_between():
    x = np.full(500, 2**-11, np.float16)
    assert _vec.reduce("add", "f16", 1, x) == np.float16(1 + 500 * 2.0**-11)


# ---- strided copies ----


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "S3", "c16"])
def test_copy_strided(dtype):
    raw = np.random.default_rng(0).integers(0, 255, 60 * np.dtype(dtype).itemsize).astype(np.uint8)
    source = raw.view(dtype) if dtype != "S3" else np.char.replace(raw.view("S3"), b"\0", b"x").astype("S3")
    for s in (slice(None), slice(0, 40, 2), slice(50, 10, -3), slice(5, 6), slice(3, 3)):
        for step in (1, 3):
            n = len(source[s])
            target = np.zeros(n * step, dtype)
            _vec.copy_elements(target[::step], source[s])
            assert np.array_equal(target[::step], source[s])
            if step > 1:
                assert (target[1::step] == np.zeros(1, dtype)).all()


# ---- Philox ----


def philox_reference(key: int, counter: int) -> list[int]:
    """Philox 4x32-10 in Python integers."""
    c = [(counter >> (32 * i)) & 0xFFFFFFFF for i in range(4)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("isa", ISAS)
def test_philox_against_python(isa):
    for n in (0, 1, 15, 16, 17, 40):
        for key, counter in ((0, 0), (0x0123456789ABCDEF, 2**64 - 3), (2**64 - 1, 2**128 - 5)):
            words = _vec.philox(n, key, counter & (2**64 - 1), counter >> 64, isa=isa)
            for i in range(n):
                assert words[i].tolist() == philox_reference(key, (counter + i) % 2**128)


def test_philox_known_answers():
    """The vectors published with the algorithm (Random123, kat_vectors)."""
    ones = 2**64 - 1
    assert _vec.philox(1, 0, 0, 0)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert _vec.philox(1, ones, ones, ones)[0].tolist() == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def rng_bit_generator(state: np.ndarray, count: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """HLO's rng-bit-generator (RNG_PHILOX) from the kernel: (new state, values); see kernels/vec_philox.h."""
    key, lo, hi = (int(v) for v in state)
    words = count * NUMPY[dtype]().itemsize // 4
    blocks = -(-words // 4)
    bits = _vec.philox(blocks, key, lo, hi).ravel()[:words]
    after = ((hi << 64 | lo) + blocks) % 2**128
    return np.array([key, after & (2**64 - 1), after >> 64], np.uint64), bits.view(NUMPY[dtype])


@pytest.mark.parametrize("dtype", ["u32", "u64"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 64, 1001])
def test_philox_is_xlas(dtype, count):
    tf = pytest.importorskip("tensorflow")
    from tensorflow.compiler.tf2xla.python import xla

    philox = 1  # xla.RandomAlgorithm RNG_PHILOX
    for state in ([0x0123456789ABCDEF, 2**64 - 2, 0x1111222233334444], [7, 0, 0], [0, 2**64 - 1, 2**64 - 1]):
        state = np.array(state, np.uint64)
        generate = tf.function(
            lambda s: xla.rng_bit_generator(philox, s, (count,), dtype=NUMPY[dtype]), jit_compile=True
        )
        new_state, values = (r.numpy() for r in generate(tf.constant(state)))
        expected_state, expected = rng_bit_generator(state, count, dtype)
        assert_same(expected, values)
        assert_same(expected_state, new_state)


# ---- XLA on the CPU, where TensorFlow is there ----


def test_conversions_as_xla():
    tf = pytest.importorskip("tensorflow")
    x = f32(NAN, INF, -INF, 3e9, -3e9, 1e20, -1e20, 300.7, -300.7, -0.9, 255.5, 4294967040, 9.3e18, 1.9e19)
    for to in [*INTS, "pred"]:
        cast = tf.function(lambda v: tf.cast(v, NUMPY[to]), jit_compile=True)  # noqa: B023
        assert_same(_vec.convert(to, "f32", x), cast(tf.constant(x)).numpy(), to)
