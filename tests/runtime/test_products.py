"""The matrix products of the vector kernels: every edge of their blocks, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_runtime import _vec

ISAS = _vec.isas()
DTYPES = ["float32", "float64"]
EXTENTS = [1, 2, 5, 6, 7, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 97]
DEPTHS = [0, 1, 3, 4, 16, 255, 256, 257, 600]


def stored(x: np.ndarray, turned: bool, spare: int) -> np.ndarray:
    """The same matrix: transposed in memory, or with unused elements after each row."""
    if turned:
        return np.ascontiguousarray(x.T).T
    wide = np.full((x.shape[0], x.shape[1] + spare), np.nan, x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_products_of_whole_numbers_are_exact(isa, dtype):
    """All pairs of extents, each with one depth and one way of storing; sums of whole numbers have one value only."""
    rng = np.random.default_rng(0)
    for m in EXTENTS:
        for n in EXTENTS:
            k = int(rng.choice(DEPTHS))
            ta, tb = rng.random(2) < 0.5
            a, b, c = (rng.integers(-8, 9, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
            # NumPy has no strides for a single column or for no rows: nothing is stored the other way round then.
            x = stored(a, bool(ta) and k > 1 and m > 1, 3)
            y = stored(b, bool(tb) and k > 1 and n > 1, 5)
            whole = a.astype(np.int64) @ b.astype(np.int64)
            message = f"{m} x {k} x {n}, transposed {ta} {tb}"
            np.testing.assert_array_equal(_vec.gemm(x, y, isa=isa), whole, message)
            np.testing.assert_array_equal(_vec.gemm(x, y, add_to=c, isa=isa), c.astype(np.int64) + whole, message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_an_element_is_one_chain_over_the_depth(isa, dtype):
    """However a product is cut up, an element has the same bits; and it is the sum in order, rounded at each term."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((61, 300), (300, 45)))
    whole = _vec.gemm(a, b, isa=isa)
    np.testing.assert_array_equal(_vec.gemm(stored(a, True, 0), stored(b, True, 0), isa=isa), whole)
    np.testing.assert_array_equal(_vec.gemm(a[7:10], b[:, 20:21], isa=isa), whole[7:10, 20:21])
    np.testing.assert_array_equal(_vec.gemm(a[:, 100:], b[100:], _vec.gemm(a[:, :100], b[:100], isa=isa), isa), whole)
    if dtype == "float32":
        # In float64 the product of two floats is exact, so that each step rounds once, as a fused one does; rounding
        # the sum to 53 bits first changes a float in one of 2^29 cases. The baseline rounds the product as well.
        chain = np.zeros((61, 45), np.float32)
        for d in range(300):
            term = a[:, d, None].astype(np.float64) * b[d].astype(np.float64)
            chain = (chain + (term.astype(np.float32) if isa == "baseline" else term)).astype(np.float32)
        np.testing.assert_array_equal(whole, chain)


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_stays_where_it_is(isa):
    """A panel is filled up with zeros: an infinity beside them must not make a NaN of a neighbour."""
    a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    a[1, 2], b[0, 4] = np.inf, np.nan
    expected = np.full((5, 7), 3, np.float32)
    expected[1], expected[:, 4] = np.inf, np.nan
    for x in (a, stored(a, True, 0)):
        for y in (b, stored(b, True, 0)):
            np.testing.assert_array_equal(_vec.gemm(x, y, isa=isa), expected)
