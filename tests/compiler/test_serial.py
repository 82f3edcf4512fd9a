"""Serial splits: products that no plan within availableMemoryProportion can do at once, done in a loop over pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_keras import hlo
from ipu_keras.compiler.fits import bytes_on_tile
from ipu_keras.compiler.passes import serial
from ipu_keras.compiler.plan.product import Product, has_plan, plans
from ipu_keras.errors import IPUOutOfMemoryError
from ipu_keras.target import TARGETS, Target
from tests.ops.hlo_text import parameters, parse, xla

SMALL = Target("small", tiles=4, bytes_per_tile=1 << 17)
RNG = np.random.default_rng(2)

PRODUCTS = {
    "rows and columns": ((48, 40), (40, 64), "dot", "lhs_contracting_dims={1}, rhs_contracting_dims={0}", (48, 64)),
    "both transposed": ((40, 48), (64, 40), "dot", "lhs_contracting_dims={0}, rhs_contracting_dims={1}", (48, 64)),
    "batch and two free dimensions": (
        (3, 6, 8, 20), (3, 20, 32), "dot",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={3}, rhs_contracting_dims={1}", (3, 6, 8, 32),
    ),
    "images": (
        (6, 9, 9, 8), (3, 3, 8, 24), "convolution",
        "window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f", (6, 5, 5, 24),
    ),
    "images, in groups": (
        (6, 9, 9, 8), (3, 3, 2, 24), "convolution",
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=4", (6, 9, 9, 24),
    ),
    "the gradient of weights": (
        (8, 10, 10, 6), (8, 8, 8, 10), "convolution", "window={size=8x8}, dim_labels=f01b_i01o->01bf", (3, 3, 6, 10),
    ),
}  # fmt: skip


def module(name, dtype):
    a, b, op, attributes, shape = PRODUCTS[name]
    x, w = (RNG.normal(size=each).astype({"f32": np.float32, "f16": np.float16}[dtype]) for each in (a, b))
    dims = ",".join(map(str, shape))
    return parameters(x, w) + f"ROOT r = {dtype}[{dims}] {op}(p0, p1), {attributes}", (x, w)


def compiled(source, share, target=SMALL):
    return hlo.compile(parse(source), target=target, options={"available_memory_proportion": share})


def pieces(exe):
    (plan,) = exe.program.header["plans"]
    assert plan["plans"][0]["fits"]
    return plan.get("serial", 1)


def a_share_that_splits(source):
    """The largest of some shares that no plan without a serial split keeps within."""
    for share in 0.5 ** np.arange(2, 9, 0.25):
        exe = compiled(source, float(share))
        if not exe.program.header["plans"][0]["plans"][0]["fits"]:
            break
        if pieces(exe) > 1:
            return exe
    raise AssertionError("no share of memory made a serial split")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_numbers_are_those_of_the_whole_product(name, dtype):
    source, (x, w) = module(name, dtype)
    whole, split = compiled(source, 0.6), a_share_that_splits(source)
    assert pieces(whole) == 1
    (expected,) = xla(source, x, w)
    (one,), (other,) = whole.run(x, w), split.run(x, w)
    # Pieces of rows and columns sum over the same depth; a plan may cut that otherwise.
    tolerance = {"f32": 1e-5, "f16": 4e-3}[dtype] * np.abs(expected).max()
    for found in (one, other):
        np.testing.assert_allclose(found.astype(np.float64), np.float64(expected), rtol=0, atol=tolerance)


def test_in_the_body_of_a_loop_and_on_a_side_of_a_branch():
    x, w = RNG.normal(size=(48, 40)).astype(np.float32), RNG.normal(size=(40, 40)).astype(np.float32) / 8
    dot = "dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = f"""
more {{
  s = (s32[], f32[48,40], f32[40,40]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}}
turn {{
  s = (s32[], f32[48,40], f32[40,40]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[48,40] get-tuple-element(s), index=1
  w = f32[40,40] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[48,40] {dot}
  ROOT t = (s32[], f32[48,40], f32[40,40]) tuple(next, y, w)
}}
yes {{
  p = (f32[48,40], f32[40,40]) parameter(0)
  x = f32[48,40] get-tuple-element(p), index=0
  w = f32[40,40] get-tuple-element(p), index=1
  ROOT y = f32[48,40] {dot}
}}
no {{
  p = (f32[48,40], f32[40,40]) parameter(0)
  ROOT x = f32[48,40] get-tuple-element(p), index=0
}}
ENTRY main {{
  p0 = f32[48,40] parameter(0)
  p1 = f32[40,40] parameter(1)
  p2 = pred[] parameter(2)
  zero = s32[] constant(0)
  first = (s32[], f32[48,40], f32[40,40]) tuple(zero, p0, p1)
  last = (s32[], f32[48,40], f32[40,40]) while(first), condition=more, body=turn
  x = f32[48,40] get-tuple-element(last), index=1
  pair = (f32[48,40], f32[40,40]) tuple(x, p1)
  ROOT r = f32[48,40] conditional(p2, pair, pair), true_computation=yes, false_computation=no
}}"""
    exe = compiled(text, 0.02)
    assert pieces(exe) > 1 and len(exe.program.header["products"]) == 2  # both by one plan
    for flag in (np.True_, np.False_):
        np.testing.assert_allclose(exe.run(x, w, flag)[0], xla(text, x, w, flag)[0], rtol=0, atol=1e-5)


def test_a_piece_needs_less_memory_and_a_turn_costs_what_its_plan_says():
    source, _ = module("rows and columns", "f32")
    whole, split = compiled(source, 0.6), a_share_that_splits(source)
    most = [max(sum(bytes_on_tile(exe.program, tile)) for tile in range(SMALL.tiles)) for exe in (whole, split)]
    assert most[1] < most[0]
    (plan,) = split.program.header["plans"]
    count, best = plan["serial"], plan["plans"][0]
    assert f"in {count} serial pieces" in split.explain_plans()
    once = [step.compute for step in split.profile().steps]
    assert best["vertex"] in once
    assert split.profile().phases["compute"] - sum(once) >= (count - 1) * best["vertex"]


def smallest(split, monkeypatch, side, tiles, sizes):
    """The fewest bytes of a tile in which a product of squares compiles and gives what it should."""
    x, w = (RNG.normal(size=(side, side)).astype(np.float32) for _ in range(2))
    text = parameters(x, w) + (
        f"ROOT r = f32[{side},{side}] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    with monkeypatch.context() as patch:
        if not split:
            patch.setattr(serial, "_too_large", lambda *_: False)
        for size in sizes:
            try:
                exe = hlo.compile(parse(text), target=Target("any", tiles=tiles, bytes_per_tile=size))
            except IPUOutOfMemoryError:
                continue
            (found,) = exe.run(x, w)
            np.testing.assert_allclose(found, x.astype(np.float64) @ w, atol=1e-3)
            return size
    raise AssertionError("never")


def test_it_fits_where_it_would_not(monkeypatch):
    """The operands lie on the tiles in any case; at once, a tile would need too much of them a second time."""
    sizes = range(64 << 10, 256 << 10, 16 << 10)
    with_split, without = (smallest(split, monkeypatch, 384, 32, sizes) for split in (True, False))
    assert with_split < 0.8 * without, (with_split, without)


def test_a_split_that_needs_more_is_not_made(monkeypatch):
    """Few tiles hold little but the loop's own code."""
    sizes = range(8 << 10, 40 << 10, 512)
    assert smallest(True, monkeypatch, 48, 4, sizes) <= smallest(False, monkeypatch, 48, 4, sizes)


@pytest.mark.parametrize(("size", "dtype"), [(4096, "f32"), (8192, "f16")])
def test_large_products_fit_the_chip(size, dtype, monkeypatch):
    shape = f"{dtype}[{size},{size}]"
    text = (
        f"p0 = {shape} parameter(0)\np1 = {shape} parameter(1)\n"
        f"ROOT r = {shape} dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    exe = hlo.compile(parse(text), execute=False)
    assert pieces(exe) > 1
    phases = exe.profile().phases
    device = sum(cycles for phase, cycles in phases.items() if phase != "host")
    chip = TARGETS["gc200"]
    least = size**3 / (chip.tiles * chip.macs_per_cycle(dtype))
    assert least <= device < 2 * least
    with monkeypatch.context() as patch, pytest.raises(IPUOutOfMemoryError):
        patch.setattr(serial, "_too_large", lambda *_: False)
        hlo.compile(parse(text), execute=False)


def test_what_fits_is_left_alone_and_what_no_split_helps_stays_whole():
    source, _ = module("rows and columns", "f32")
    for share in (0.6, 0.0, 1e-6):
        exe = compiled(source, share)
        assert "serial" not in exe.program.header["plans"][0] and len(exe.program.header["plans"]) == 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_the_quick_answer_whether_there_is_a_plan_is_never_a_wrong_yes(data):
    number = st.integers(1, 3000)
    dtype = data.draw(st.sampled_from(["f32", "f16"]))
    m, n, k = data.draw(number), data.draw(number), data.draw(number)
    product = Product(dtype, "f32", data.draw(st.integers(1, 6)), 1, k, n, (m,), (m,), (1,))
    share = data.draw(st.sampled_from([0.6, 0.05, 0.005]))
    chip = TARGETS["gc200"]
    assert has_plan(product, chip, share) == any(plan.fits for plan in plans(product, chip, share))
