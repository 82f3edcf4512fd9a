# ruff: noqa: E501  a line of HLO stays a line
"""Sums and products against float64, numbers at the ends of their dtypes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_keras import errors, hlo
from ipu_keras.graph.ir import DTYPES
from tests.ops.hlo_text import parameters, parse, tiles, xla

RNG = np.random.default_rng(17)
INF, NAN = np.inf, np.nan


def entry(body: str, *args: Any, regions: str = "") -> str:
    return f"{regions}\nENTRY main {{\n{parameters(*args)}\n{body}\n}}"


def region(op: str, dtype: str = "f32") -> str:
    return f"{op} {{\na = {dtype}[] parameter(0)\nb = {dtype}[] parameter(1)\nROOT r = {dtype}[] {op}(a, b)\n}}\n"


# ---- float64 is the oracle; twice XLA's error is allowed ----

DATA = {
    "both signs": lambda *shape: RNG.normal(size=shape),
    "positive": lambda *shape: RNG.random(shape) + 0.5,
    "of many magnitudes": lambda *shape: RNG.normal(size=shape) * np.exp2(RNG.integers(-12, 12, shape)),
}


def assert_no_worse(text: str, args: tuple[np.ndarray, ...], exact: np.ndarray, dtype: str, largest: float = 0) -> None:
    """The largest error is at most twice XLA's, or four units in the last place of the largest result, or one of
    `largest`: what a sum was on its way, whose rounding is luck where its terms cancel."""
    (ours,), (theirs,) = tiles(text, *args, n=16), xla(text, *args)
    units = float(np.finfo(DTYPES[dtype]).eps) * max(4 * np.abs(exact).max(), largest)
    mine, other = (np.abs(v.astype(np.float64) - exact).max() for v in (ours, theirs))
    assert mine <= max(2 * other, units), (mine, other, units)


@pytest.mark.sweep(turns=3)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("shape", "dims"), [((3, 7), "1"), ((2000,), "0"), ((40, 3, 50), "0,2"), ((5, 3001), "1")])
def test_error_of_sums(shape: tuple[int, ...], dims: str, data: str, dtype: str) -> None:
    x = (DATA[data](*shape) / 64).astype(DTYPES[dtype])
    axes = tuple(int(d) for d in dims.split(","))
    exact = x.astype(np.float64).sum(axes)
    out = ",".join(str(n) for n in exact.shape)
    text = f"z = {dtype}[] constant(0)\nROOT r = {dtype}[{out}] reduce(p0, z), dimensions={{{dims}}}, to_apply=add"
    rows = np.moveaxis(x.astype(np.float64), axes, range(-len(axes), 0)).reshape(*exact.shape, -1)
    largest = float(np.abs(np.cumsum(rows, -1)).max())
    assert_no_worse(entry(text, x, regions=region("add", dtype)), (x,), exact, dtype, largest)


@pytest.mark.sweep(turns=3)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 3000, 4), (64, 33, 17), (1, 700, 1)])
def test_error_of_products(sizes: tuple[int, int, int], data: str, dtype: str) -> None:
    m, k, n = sizes
    x, y = (DATA[data](m, k) / 16).astype(DTYPES[dtype]), (DATA[data](k, n) / 16).astype(DTYPES[dtype])
    text = f"ROOT r = {dtype}[{m},{n}] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    assert_no_worse(entry(text, x, y), (x, y), x.astype(np.float64) @ y.astype(np.float64), dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("data", DATA)
def test_error_of_convolutions(data: str, dtype: str) -> None:
    x, w = (DATA[data](2, 12, 40) / 16).astype(DTYPES[dtype]), (DATA[data](5, 40, 7) / 16).astype(DTYPES[dtype])
    wide, kernel = x.astype(np.float64), w.astype(np.float64)
    exact = np.stack([np.einsum("bkc,kcn->bn", wide[:, i : i + 5], kernel) for i in range(8)], 1)
    text = f"ROOT r = {dtype}[2,8,7] convolution(p0, p1), window={{size=5}}, dim_labels=b0f_0io->b0f"
    assert_no_worse(entry(text, x, w), (x, w), exact, dtype)


@pytest.mark.parametrize("data", DATA)
def test_error_of_windows(data: str) -> None:
    x = DATA[data](30, 30).astype(np.float32)
    exact = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (7, 7)).sum((2, 3))
    text = "z = f32[] constant(0)\nROOT r = f32[24,24] reduce-window(p0, z), window={size=7x7}, to_apply=add"
    assert_no_worse(entry(text, x, regions=region("add")), (x,), exact, "f32")
    running = "z = f32[] constant(0)\nROOT r = f32[900] reduce-window(p0, z), window={size=900 pad=899_0}, to_apply=add"
    line = x.reshape(-1)
    assert_no_worse(entry(running, line, regions=region("add")), (line,), line.astype(np.float64).cumsum(), "f32")


# ---- the ends of the dtypes ----


def reduced(op: str, dtype: str, x: Any, start: str, n: int = 3) -> Any:
    x = np.array(x, DTYPES[dtype])
    text = f"z = {dtype}[] constant({start})\nROOT r = {dtype}[] reduce(p0, z), dimensions={{0}}, to_apply={op}"
    return tiles(entry(text, x, regions=region(op, dtype)), x, n=n)[0][()]


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_reductions_of_nan_and_infinity(dtype: str, n: int) -> None:
    line = [1.0] * 50
    assert np.isnan(reduced("maximum", dtype, [*line, NAN, *line], "-inf", n))
    assert np.isnan(reduced("minimum", dtype, [NAN, *line], "inf", n))
    assert np.isnan(reduced("add", dtype, [*line, INF, -INF], "0", n))
    assert reduced("add", dtype, [*line, INF], "0", n) == INF
    assert reduced("maximum", dtype, [], "-inf", n) == -INF
    assert reduced("maximum", dtype, [-INF] * 9, "-inf", n) == -INF
    assert np.isnan(reduced("multiply", dtype, [0.0, INF, *line], "1", n))
    assert reduced("add", dtype, [float(np.finfo(DTYPES[dtype]).max)] * 9, "0", n) == INF


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_denormals_are_kept(dtype: str) -> None:
    least = float(np.finfo(DTYPES[dtype]).smallest_subnormal)
    assert reduced("add", dtype, [least] * 7, "0") == DTYPES[dtype].type(7 * least)
    assert reduced("maximum", dtype, [-1, least], "-inf") == DTYPES[dtype].type(least)
    x = np.full((2, 5), 3 * least, DTYPES[dtype])
    y = np.ones((5, 2), DTYPES[dtype])
    (ours,) = tiles(
        entry(f"ROOT r = {dtype}[2,2] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", x, y), x, y
    )
    np.testing.assert_array_equal(ours, np.full((2, 2), 15 * least, DTYPES[dtype]))


@pytest.mark.parametrize("dtype", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_sums_and_products_of_integers_wrap(dtype: str) -> None:
    info = np.iinfo(DTYPES[dtype])
    for op, x, exact in (
        ("add", [info.max, info.max, info.max, 5], 3 * int(info.max) + 5),
        ("add", [info.min] * 5, 5 * int(info.min)),
        ("multiply", [info.max, info.max, 3], int(info.max) ** 2 * 3),
        ("multiply", [info.min, info.max], int(info.min) * int(info.max)),
    ):
        wrapped = (exact - int(info.min)) % (1 << info.bits) + int(info.min)
        assert int(reduced(op, dtype, x, "0" if op == "add" else "1")) == wrapped, (op, x)
    assert int(reduced("maximum", dtype, [info.min, info.max], str(info.min))) == info.max
    assert int(reduced("minimum", dtype, [info.min, info.max], str(info.max))) == info.min


def test_products_of_nan_infinity_and_large_numbers() -> None:
    x = np.array([[INF, 0, 1], [NAN, 0, 0], [60000, 60000, 0], [1, 1, 1]], np.float16)
    y = np.array([[0], [1], [2]], np.float16)
    for dtype in ("f16", "f32"):
        a, b = x.astype(DTYPES[dtype]), y.astype(DTYPES[dtype])
        text = f"ROOT r = {dtype}[4,1] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        (ours,) = tiles(entry(text, a, b), a, b)
        assert np.isnan(ours[:2]).all()
        assert ours[2:].tolist() == [[60000], [3]]
    text = "ROOT r = f16[1,1] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    a, b = np.full((1, 4), 30000, np.float16), np.ones((4, 1), np.float16)
    assert tiles(entry(text, a, b), a, b)[0][0, 0] == INF
    b[2:] = -1  # partial sums are wider than the result
    assert tiles(entry(text, a, b), a, b)[0][0, 0] == 0


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_only_moves_keeps_every_bit(dtype: str) -> None:
    """The payload of NaN, quiet or signalling, and the sign of zero."""
    kind = np.dtype(f"u{DTYPES[dtype].itemsize}")
    raw = [0x7FC12345, 0x7F800001, 0xFFC00001, 0x80000000, 1, 0x7F800000] if dtype == "f32" else [0x7E01, 0x7C01, 0xFE01, 0x8000, 1, 0x7C00]  # fmt: skip
    x = np.array(raw, kind).reshape(2, 3)
    args = (x.view(DTYPES[dtype]), np.array([[1], [0]], np.int32))
    body = f"""z = {dtype}[] constant(0)
a = {dtype}[3,2] transpose(p0), dimensions={{1,0}}
b = {dtype}[2,5] pad(p0, z), padding=0_0x1_1
c = {dtype}[2,3] reverse(p0), dimensions={{0,1}}
d = {dtype}[2,3] gather(p0, p1), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,3}}
e = {dtype}[4,3] concatenate(p0, p0), dimensions={{0}}
f = {dtype}[2,3] scatter(p0, p1, p0), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=last
g = pred[2,3] constant({{{{true,false,true}},{{false,true,false}}}})
h = {dtype}[2,3] select(g, p0, c)
i = {dtype}[2,3] abs(p0)
j = {dtype}[2,3] negate(p0)
ROOT r = ({dtype}[3,2], {dtype}[2,5], {dtype}[2,3], {dtype}[2,3], {dtype}[4,3], {dtype}[2,3], {dtype}[2,3], {dtype}[2,3], {dtype}[2,3]) tuple(a, b, c, d, e, f, h, i, j)"""
    last = f"last {{\na = {dtype}[] parameter(0)\nROOT b = {dtype}[] parameter(1)\n}}\n"
    found = [v.view(kind) for v in tiles(entry(body, *args, regions=last), *args)]
    sign = kind.type(1 << (8 * kind.itemsize - 1))
    chosen = np.where([[True, False, True], [False, True, False]], x, x[::-1, ::-1])
    wanted = [
        x.T,
        np.pad(x, ((0, 0), (1, 1))),
        x[::-1, ::-1],
        x[::-1],
        np.concatenate([x, x]),
        x[::-1],
        chosen,
        x & ~sign,
        x ^ sign,
    ]
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg="abcdefhij"[i])


def test_nan_in_windows_and_in_running_sums() -> None:
    x = np.array([1, NAN, 2, 3, -INF, 4], np.float32)
    for op, start in (("maximum", "-inf"), ("minimum", "inf"), ("add", "0")):
        text = f"z = f32[] constant({start})\nROOT r = f32[5] reduce-window(p0, z), window={{size=2}}, to_apply={op}"
        (ours,) = tiles(entry(text, x, regions=region(op)), x)
        pairs = np.lib.stride_tricks.sliding_window_view(x, 2)
        wanted = {"maximum": np.max, "minimum": np.min, "add": np.sum}[op](pairs, axis=1)
        np.testing.assert_array_equal(ours, wanted)


# ---- what is refused, and what the message names ----

FANCY = "r {\na = f32[] parameter(0)\nb = f32[] parameter(1)\nv = f32[2] broadcast(a), dimensions={}\nw = f32[2] reverse(v), dimensions={0}\ns = f32[1] slice(w), slice={[0:1]}\nROOT t = f32[] reshape(s)\n}\n"
REFUSED = {
    "a product of s64": ("p = s64[2,2] parameter(0)\nROOT r = s64[2,2] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "dot: operands of s64"),
    "a convolution of integers": ("p = s32[1,4,2] parameter(0)\nq = s32[2,2,3] parameter(1)\nROOT r = s32[1,3,3] convolution(p, q), window={size=2}, dim_labels=b0f_0io->b0f", "convolution: operands of s32"),
    "four spatial dimensions": ("p = f32[1,2,2,2,2,1] parameter(0)\nq = f32[1,1,1,1,1,1] parameter(1)\nROOT r = f32[1,2,2,2,2,1] convolution(p, q), window={size=1x1x1x1}, dim_labels=b0123f_0123io->b0123f", "more than three spatial dimensions"),
    "a region with arrays in it": (FANCY + "ENTRY e {\np = f32[4] parameter(0)\nz = f32[] constant(0)\nROOT x = f32[] reduce(p, z), dimensions={0}, to_apply=r\n}", "reduce: a region with broadcast"),
    "a window with arrays in its region": (FANCY + "ENTRY e {\np = f32[4] parameter(0)\nz = f32[] constant(0)\nROOT x = f32[3] reduce-window(p, z), window={size=2}, to_apply=r\n}", "reduce-window: a region"),
    "a dynamic shape": ("p = f32[<=4] parameter(0)\nROOT r = f32[<=4] negate(p)", "dynamic shape"),
    "an infeed": ("t = token[] after-all()\nROOT r = (f32[2], token[]) infeed(t)", "infeed"),
    "an unknown custom call": ('p = f32[2] parameter(0)\nROOT r = f32[2] custom-call(p), custom_call_target="mystery"', "custom-call: mystery"),
    "a gather over replicas": ("p = f32[2] parameter(0)\nROOT r = f32[4] all-gather(p), replica_groups={{0,1}}, dimensions={0}", "all-gather"),
    "complex results": ("p = c64[2] parameter(0)\nROOT r = c64[2] negate(p)", "c64"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(name: str) -> None:
    text, match = REFUSED[name]
    with pytest.raises(errors.UnsupportedError, match=match):
        hlo.compile(parse(text))
