"""Rounding to fp16: to nearest even, at random, and what an overflow becomes; on every instruction set."""

import numpy as np
import pytest
from gfloat import RoundMode, round_float
from gfloat.formats import format_info_binary16

from ipu_runtime import _vec
from ipu_runtime._vec import convert

rng = np.random.default_rng(11)
ISAS = _vec.isas()
LARGEST = np.float16(65504)


def numbers(n=20000):
    """Floats of every size that fp16 has, and beyond, with all fp16 numbers and the midpoints between them."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    codes = np.sort(codes[np.isfinite(codes)].astype(np.float32))
    halfway = (codes[1:].astype(np.float64) + codes[:-1]) / 2
    near = np.nextafter(halfway.astype(np.float32), np.float32(np.inf))
    spread = rng.normal(size=n).astype(np.float32) * np.exp2(rng.integers(-30, 20, size=n)).astype(np.float32)
    special = np.float32([np.inf, -np.inf, 65519.996, 65520, 1e38, -1e38, 0.0, -0.0])
    return np.concatenate([codes, halfway.astype(np.float32), near, spread, special])


def same_bits(x, y):
    assert x.dtype == y.dtype == np.float16
    np.testing.assert_array_equal(x.view(np.uint16), y.view(np.uint16))


@pytest.mark.parametrize("isa", ISAS)
def test_nearest_even_against_numpy_and_gfloat(isa):
    x = numbers()
    with np.errstate(over="ignore"):
        same_bits(convert("f16", "f32", x, isa=isa), x.astype(np.float16))
    some = np.concatenate([x[:: len(x) // 3000], x[-8:]])
    oracle = [round_float(format_info_binary16, float(v), RoundMode.TiesToEven) for v in some]
    same_bits(convert("f16", "f32", some, isa=isa), np.float16(oracle))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("overflow", "becomes"), [("inf", np.inf), ("clip", LARGEST), ("nan", np.nan)])
def test_only_finite_results_overflow(isa, overflow, becomes):
    x = np.float32([65519.99, 65520, -65520, 7e4, -1e38, 65504, np.inf, -np.inf, np.nan, 1])
    found = convert("f16", "f32", x, isa=isa, overflow=overflow)
    wanted = np.float16([LARGEST, becomes, -becomes, becomes, -becomes, LARGEST, np.inf, -np.inf, np.nan, 1])
    np.testing.assert_array_equal(found, wanted)
    # 300 times 300 has an fp32 result; exp(95) is beyond fp32 too, though its operand is finite. A pole is no overflow.
    half = lambda *v: np.float16(v)  # noqa: E731
    product = _vec.apply("multiply", "f16", half(300, -300, np.inf), half(300, 300, 2), isa=isa, overflow=overflow)
    np.testing.assert_array_equal(product, half(becomes, -becomes, np.inf))
    grown = _vec.apply("exponential", "f16", half(95, 12, np.inf, 1), isa=isa, overflow=overflow)
    np.testing.assert_array_equal(grown[:3], half(becomes, becomes, np.inf))
    power = _vec.apply("power", "f16", half(-200, 0), half(3, -1), isa=isa, overflow=overflow)
    np.testing.assert_array_equal(power, half(-becomes, np.inf))
    quotient = _vec.apply("divide", "f16", half(1, 6e4), half(0, 0.5), isa=isa, overflow=overflow)
    np.testing.assert_array_equal(quotient, half(np.inf, becomes))


@pytest.mark.parametrize("isa", ISAS)
def test_at_random_a_number_becomes_a_neighbour(isa):
    x = numbers()
    found = convert("f16", "f32", x, isa=isa, stochastic=True, key=77)
    exact = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = x.astype(np.float16)
        inside = np.abs(exact) < 65504
        apart = np.where(nearest.astype(np.float64) > exact, -np.inf, np.inf).astype(np.float16)
        other = np.nextafter(nearest, apart)
    fits = nearest == exact
    same_bits(found[fits & (nearest != 0)], nearest[fits & (nearest != 0)])  # no bits are cut off: nothing is random
    assert ((found == nearest) | (found == other))[inside].all()
    beyond = np.abs(exact) >= 65536
    np.testing.assert_array_equal(found[beyond], np.sign(exact[beyond]) * np.inf)
    assert np.array_equal(np.signbit(found), np.signbit(x))


@pytest.mark.parametrize("value", [1.0 + 0.3 / 1024, 100.03, -0.7003, 3.2e-7, 5.55e-5, 1e-8, 40000.7])
def test_at_random_is_unbiased_with_the_right_variance(value):
    """A fraction p of the step between two fp16 numbers is rounded up with probability p, independently."""
    n = 1_000_000
    x = np.full(n, value, np.float32)
    exact = float(x[0])
    found = convert("f16", "f32", x, stochastic=True, key=123).astype(np.float64)
    low, high = sorted(set(found.tolist()))
    p = (exact - low) / (high - low)
    step = high - low
    assert abs(found.mean() - exact) < 4 * step * np.sqrt(p * (1 - p) / n)
    # The variance of the sample variance of n Bernoulli draws: (mu4 - sigma^4) / n.
    sigma2, mu4 = p * (1 - p), p * (1 - p) * (1 - 3 * p * (1 - p))
    assert abs(found.var() / step**2 - sigma2) < 4 * np.sqrt(max(mu4 - sigma2**2, 1e-12) / n)
    up = (found == high).astype(np.float64) - p
    for apart in (1, 2, 64, 127, 128, 129, 256):  # one draw serves two numbers: they must not know of each other
        assert abs((up[apart:] * up[:-apart]).mean()) < 4.5 * sigma2 / np.sqrt(n - apart), apart


def test_random_bits_depend_on_key_and_place_alone():
    x = np.float32(rng.normal(size=5000))
    a = convert("f16", "f32", x, stochastic=True, key=1)
    for isa in ISAS:
        same_bits(a, convert("f16", "f32", x, stochastic=True, key=1, isa=isa))
    b = convert("f16", "f32", x, stochastic=True, key=2)
    c = convert("f16", "f32", x, stochastic=True, key=1 << 40)
    assert 0.2 < (a != b).mean() < 0.6 and 0.2 < (a != c).mean() < 0.6 and 0.2 < (b != c).mean() < 0.6


@pytest.mark.parametrize("overflow", ["inf", "clip", "nan"])
def test_the_ends_of_the_ranges_are_the_same_on_every_instruction_set(overflow):
    """Around the largest number a random bit makes the overflow; around 2^-14 results cease to be subnormal."""
    ends = [0x477FDFFF, 0x477FE000, 0x477FE001, 0x477FE002, 0x477FFFFF, 0x47800000, 0x387FFFFF, 0x38800000, 1, 0]
    for bits in [*ends, 0x7F800000, 0x7FC00000]:
        for sign in (0, 1 << 31):
            x = np.full(1 << 16, bits | sign, np.uint32).view(np.float32)
            found = [convert("f16", "f32", x, isa=isa, stochastic=True, key=7, overflow=overflow) for isa in ISAS]
            for other in found[1:]:
                same_bits(found[0], other)
