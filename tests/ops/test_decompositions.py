"""Operations that are written with others: Fourier transforms, linear algebra, random bits, numbers of fewer bits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import check, run_both
from tests.ops.hlo_text import same

RNG = np.random.default_rng(5)


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def definite(*shape: int) -> np.ndarray:
    a = reals(*shape, shape[-1])
    return a @ np.swapaxes(a, -1, -2) + 3 * np.eye(shape[-1], dtype=np.float32)


def parts(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.math.real(z), tf.math.imag(z)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 67, 96, 130, 384])
def test_fft_of_any_length_is_that_of_float64(n: int) -> None:
    """The oracle is NumPy's transform in double precision; the error may not exceed twice that of XLA's own."""
    x = reals(3, n)
    ours, xla = run_both(lambda x: (*parts(tf.signal.fft(tf.complex(x, 1 - x))), *parts(tf.signal.rfft(x))), x)
    z = np.fft.fft(x.astype(np.float64) + 1j * (1 - x.astype(np.float64)))
    r = np.fft.rfft(x.astype(np.float64))
    for got, theirs, true in zip(ours, xla, (z.real, z.imag, r.real, r.imag), strict=True):
        scale = np.abs(z).max()
        assert np.abs(got - true).max() <= 2 * np.abs(theirs - true).max() + 2e-7 * scale * max(1, np.log2(n))


def test_inverse_transforms_and_several_dimensions() -> None:
    x, y = reals(2, 6, 8), reals(2, 6, 5)
    check(lambda x: parts(tf.signal.ifft(tf.complex(x, x + 1))), x)
    check(lambda x: parts(tf.signal.fft2d(tf.complex(x, x + 1))), x)
    check(lambda x: parts(tf.signal.ifft3d(tf.complex(x, x + 1))), x)
    check(lambda x: parts(tf.signal.rfft2d(x)), x)
    check(lambda y: tf.signal.irfft(tf.complex(y, 2 * y)), y)
    check(lambda y: tf.signal.irfft2d(tf.complex(y, 2 * y)), y)
    check(lambda y: tf.signal.irfft(tf.complex(y, 2 * y), [7]), y)
    check(lambda y: tf.signal.irfft(tf.complex(y, 2 * y), [1]), y)


def test_arithmetic_of_complex_numbers() -> None:
    a, b, c = reals(4, 3), reals(4, 3), reals(3, 5)

    def products(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> list[tf.Tensor]:
        z, w, m = tf.complex(a, b), tf.complex(b, a + 2), tf.complex(c, c * c)
        values = [
            z * w,
            z / w,
            z - w,
            tf.exp(z),
            tf.matmul(z, m),
            tf.reduce_sum(z, 0),
            tf.math.conj(z)[1:],
            tf.cast(a, z.dtype),
        ]
        values.append(tf.where(tf.abs(z) > 1, z, w))
        return [part for v in values for part in parts(v)] + [
            tf.abs(z),
            tf.abs(0 * z),
            tf.math.angle(z),
            z == w,
            z != w,
        ]

    check(products, a, b, c)


def test_a_loop_carries_complex_numbers() -> None:
    def powers(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        z = tf.complex(x, x * 0.5)
        return parts(tf.while_loop(lambda i, w: i < 4, lambda i, w: (i + 1, w * z), (0, tf.ones_like(z)))[1])

    check(powers, reals(5))


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 6)])
def test_cholesky(shape: tuple[int, ...]) -> None:
    check(tf.linalg.cholesky, definite(*shape), rtol=1e-4)


def test_cholesky_of_an_indefinite_matrix_is_nan() -> None:
    (ours,), _ = run_both(tf.linalg.cholesky, np.array([[1, 2], [2, 1]], np.float32))
    assert np.isnan(ours).any()


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_triangular_solve_reads_one_triangle(lower: bool, adjoint: bool) -> None:
    a, b = reals(2, 5, 5) + 4 * np.eye(5, dtype=np.float32), reals(2, 5, 3)
    other = np.triu_indices(5, 1) if lower else np.tril_indices(5, -1)
    a[:, other[0], other[1]] = np.nan
    check(lambda a, b: tf.linalg.triangular_solve(a, b, lower=lower, adjoint=adjoint), a, b, rtol=1e-4)


@pytest.mark.parametrize("shape", [(5, 5), (2, 6, 4), (2, 4, 6), (1, 1)])
def test_qr_is_a_factorisation_with_lapacks_signs(shape: tuple[int, ...]) -> None:
    a = reals(*shape)
    ours, theirs = run_both(tf.linalg.qr, a)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(ours[0] @ ours[1], a, atol=1e-5)
    full, _ = run_both(lambda a: tf.linalg.qr(a, full_matrices=True), a)
    np.testing.assert_allclose(full[0] @ full[1], a, atol=1e-5)
    eye = np.swapaxes(full[0], -1, -2) @ full[0]
    np.testing.assert_allclose(eye, np.broadcast_to(np.eye(eye.shape[-1]), eye.shape), atol=1e-5)


def test_inverse_and_solve() -> None:
    a, b = definite(2, 4), reals(2, 4, 2)
    check(tf.linalg.inv, a, rtol=1e-3, atol=1e-5)
    check(tf.linalg.solve, a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_eigenvalues_and_vectors_of_symmetric_matrices(n: int) -> None:
    a = reals(2, n, n)
    a = a + np.swapaxes(a, -1, -2)
    a[1] = np.eye(n)  # all eigenvalues alike
    (values, vectors), _ = run_both(tf.linalg.eigh, a)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a.astype(np.float64)), atol=2e-5)
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None, :], atol=5e-5)
    np.testing.assert_allclose(np.swapaxes(vectors, -1, -2) @ vectors, np.broadcast_to(np.eye(n), a.shape), atol=1e-5)


def test_bits_read_as_wider_and_narrower_numbers() -> None:
    x = np.array([[1.0, -2.5, np.inf], [np.nan, 0.0, -0.0]], np.float32)
    check(lambda x: tf.bitcast(x, tf.uint8), x)
    check(lambda x: tf.bitcast(x, tf.int16), x)
    check(lambda b: tf.bitcast(b, tf.float32), x.view(np.uint8).reshape(2, 3, 4))
    check(lambda b: tf.bitcast(b, tf.int64), x[:, :2].copy().view(np.int32))


def test_switch_takes_the_last_branch_for_an_index_outside() -> None:
    def choose(i: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.switch_case(i, [lambda: x + 1, lambda: x * 10, lambda: x * x, lambda: -x])

    for i in (-3, 0, 1, 2, 3, 9):
        check(choose, np.int32(i), reals(4))


def test_an_update_by_difference_or_quotient_meets_its_entry_in_order() -> None:
    x, i, u = reals(5, 2), np.array([[1], [3], [1]], np.int32), reals(3, 2)
    check(tf.tensor_scatter_nd_sub, x, i, u)
    check(tf.tensor_scatter_nd_min, x, i, u)


@pytest.mark.parametrize("exponent, mantissa", [(8, 7), (5, 10), (4, 3), (5, 2), (8, 0), (2, 23)])
def test_reduced_precision_has_the_bits_of_xla(exponent: int, mantissa: int) -> None:
    jax = pytest.importorskip("jax")
    import ipu_keras.hlo as hlo

    tricky = [0.0, -0.0, 1.0, 1.0625, 1.1875, 65504, 65520, 1e-8, 3e38, -3e38, np.inf, -np.inf, np.nan, 240, 248, 57344]
    x = np.concatenate(
        [np.array(tricky, np.float32), reals(64) * np.exp2(RNG.integers(-20, 20, 64)).astype(np.float32)]
    )
    f = jax.jit(lambda x: jax.lax.reduce_precision(x, exponent, mantissa))
    module = f.lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (ours,) = hlo.compile(module).run(x)
    np.testing.assert_array_equal(ours.view(np.uint32) & 0x7FFFFFFF, np.asarray(f(x)).view(np.uint32) & 0x7FFFFFFF)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(np.asarray(f(x))))


@pytest.mark.parametrize("dtype", ["u8", "u16"])
@pytest.mark.parametrize(("algorithm", "words"), [("rng_philox", 3), ("rng_philox", 2), ("rng_three_fry", 2)])
@pytest.mark.parametrize("shape", ["5", "33,7", ""])
def test_narrow_random_bits_are_those_of_xla(dtype: str, algorithm: str, words: int, shape: str) -> None:
    state = np.arange(3, 3 + words, dtype=np.uint64) * np.uint64(0x123456789ABCDEF)
    same(
        f"""p0 = u64[{words}] parameter(0)
        ROOT made = (u64[{words}], {dtype}[{shape}]) rng-bit-generator(p0), algorithm={algorithm}""",
        state,
    )


def test_dropout_of_fp16_draws_the_masks_of_xla() -> None:
    ours, theirs = run_both(
        lambda x: tf.nn.experimental.stateless_dropout(x, 0.4, seed=[5, -6]), np.ones((40, 9), np.float16)
    )
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert 0.3 < (ours[0] == 0).mean() < 0.5
