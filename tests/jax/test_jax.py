"""JAX's door: functions, gradients and random numbers on the tiles equal what JAX computes on the CPU."""

import numpy as np
import pytest

from ipu_keras import errors, hlo

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")
jnp = jax.numpy

from ipu_keras import jax as ipu_jax  # noqa: E402

RNG = np.random.default_rng(2)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def assert_same(ours, theirs, rtol=1e-5):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        b = np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def loss(parameters, x, y):
    h = jax.nn.gelu(x @ parameters["w"] + parameters["b"])
    logits = jax.nn.log_softmax(h @ parameters["v"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))


def test_a_training_step_with_gradients():
    parameters = {"w": floats(6, 9), "b": floats(9), "v": floats(9, 4)}
    x, y = floats(8, 6), RNG.integers(0, 4, 8)
    step = jax.value_and_grad(loss)
    assert_same(ipu_jax.compile(step)(parameters, x, y), step(parameters, x, y))


def test_control_flow_and_scans():
    def f(x, n):
        total, lines = jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(4), x)
        total = jax.lax.fori_loop(0, n, lambda i, t: t * 0.5 + i, total)
        return (
            jax.lax.cond(total.sum() > 0, lambda t: t, lambda t: -t, total),
            lines,
            jax.lax.switch(n, [jnp.sin, jnp.cos], x),
        )

    for n in (0, 1):
        x = floats(5, 4)
        assert_same(ipu_jax.compile(f)(x, n), f(x, n))


def test_random_bits_are_jax_s():
    def f(key):
        a, b = jax.random.split(key)
        return jax.random.normal(a, (5,)), jax.random.bits(b, (3, 3)), jax.random.permutation(b, 7)

    assert_same(ipu_jax.compile(f)(jax.random.key(3)), f(jax.random.key(3)))
    assert_same(ipu_jax.compile(f)(jax.random.PRNGKey(4)), f(jax.random.PRNGKey(4)))


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox", "rng_default"])
@pytest.mark.parametrize("shape", [(7,), (4, 3), (3, 4), (5, 3), (2, 3, 4), (1,), ()])
def test_bit_generators(algorithm, shape):
    """Bits and the new state of each algorithm are XLA's, also when the counter passes 2**32."""
    key = np.array([1, 2, 2**32 - 2, 0], np.uint32)

    def f(k):
        return jax.lax.rng_bit_generator(k, shape, "uint32", getattr(jax.lax.RandomAlgorithm, algorithm.upper()))

    assert_same(ipu_jax.compile(f)(key), jax.jit(f)(key))


def test_arguments_are_structures_and_unused_ones_stay():
    def f(a, rest, *, scale):
        return {"sum": a + rest[0] * scale, "again": a}

    args, scale = (floats(3), [floats(3), {"unused": floats(2, 2)}]), 2.0
    assert_same(ipu_jax.compile(f)(*args, scale=scale), f(*args, scale=scale))


def test_one_program_for_each_shape():
    f = ipu_jax.compile(lambda x: x * 2)
    assert f.executable(floats(3)) is f.executable(floats(3))
    assert f.executable(floats(3)) is not f.executable(floats(4))
    assert f.executable(floats(3)).profile().cycles > 0


def test_what_cannot_run_is_refused_by_name():
    with pytest.raises(errors.UnsupportedError, match="bf16"):
        ipu_jax.compile(lambda x: x.astype(jnp.bfloat16) + 1)(floats(3))


def test_stablehlo_becomes_hlo():
    x = floats(4, 4)
    lowered = jax.jit(lambda x: jnp.tanh(x @ x)).lower(x)
    module = ipu_jax.hlo_from_stablehlo(str(lowered.compiler_ir("stablehlo")))
    (result,) = hlo.compile(module).run(x)
    np.testing.assert_allclose(result, np.tanh(x @ x), rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.UnsupportedError):
        ipu_jax.hlo_from_stablehlo("not a module")


def test_linear_algebra():
    a = floats(4, 4) + 4 * np.eye(4, dtype=np.float32)
    spd = a @ a.T

    def f(a, spd, b):
        q, r = jnp.linalg.qr(a)
        solved = jax.scipy.linalg.solve_triangular(a, b, lower=True)
        lu, pivots, order = jax.lax.linalg.lu(a)
        rest = jnp.linalg.inv(a), jnp.linalg.solve(a, b), jnp.linalg.det(a), jnp.linalg.svd(a)[1], lu, pivots, order
        return jnp.linalg.cholesky(spd), q, r, jnp.linalg.eigh(spd)[0], solved, *rest

    b = floats(4, 2)
    assert_same(ipu_jax.compile(f)(a, spd, b), f(a, spd, b), rtol=1e-3)


def test_top_k_goes_by_the_total_order():
    x = np.array([[0.0, -0.0, 1, -0.0, 0.0, -1], [np.nan, 3, -np.inf, np.inf, 3, -3]], np.float32)
    ours, theirs = ipu_jax.compile(lambda x: jax.lax.top_k(x, 6))(x), jax.lax.top_k(x, 6)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 4, 6), (3, 6, 4)])
def test_lu_with_pivots(shape):
    a = floats(*shape)
    a[..., 0, 0] = 0  # the first pivot is not on the diagonal
    f = jax.lax.linalg.lu
    ours = ipu_jax.compile(lambda a: f(a))(a)
    for got, want in zip(ours, f(a), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_products_of_two_dtypes():
    def f(x, n):
        return jax.lax.dot_general(x, n, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    x, n = floats(3, 4), RNG.integers(-5, 5, (4, 2)).astype(np.int32)
    assert_same(ipu_jax.compile(f)(x, n), f(x, n))


def test_numbers_that_take_their_neighbours_dtype_have_a_program_of_their_own():
    f = ipu_jax.compile(lambda a, b: a + b)
    small = np.array([1, 2], np.int8)
    for b in (3, np.int32(1000), 4, np.int32(5)):
        assert_same(f(small, b), jax.jit(lambda a, b: a + b)(small, b))
    half = np.array([1, 2], np.float16)
    for b in (2.0, np.float32(2), 3.0):
        assert_same(f(half, b), jax.jit(lambda a, b: a + b)(half, b))


def test_keys_of_all_kinds_go_in_and_come_out():
    f = ipu_jax.compile(lambda k: (jax.random.split(k), jax.random.uniform(k, (3,))))
    for kind in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = jax.random.key(3, impl=kind)
        (keys, numbers), (expected, theirs) = f(key), (jax.random.split(key), jax.random.uniform(key, (3,)))
        assert jax.random.key_impl(keys) == jax.random.key_impl(expected)
        np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(expected))
        np.testing.assert_allclose(numbers, theirs, rtol=1e-6)


def test_effects_on_the_host_are_refused():
    def shout(x):
        jax.debug.print("here {}", x)
        return x * 2

    with pytest.raises(errors.UnsupportedError, match="effects"):
        ipu_jax.compile(shout)(floats(3))


@pytest.mark.parametrize(
    "f",
    [
        lambda z: jnp.cumsum(z).real,
        lambda z: z.at[np.array([0, 0])].add(z[:2]).real,
        lambda z: jnp.linalg.cholesky(z[:, None] * z[None].conj() + jnp.eye(4)).real,
    ],
)
def test_complex_operations_without_a_rule_are_refused_by_name(f):
    with pytest.raises(errors.UnsupportedError, match="c64"):
        ipu_jax.compile(lambda x: f(x + 1j * x))(floats(4))


def test_a_barrier_says_nothing():
    f = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())
    x = floats(4)
    assert_same(ipu_jax.compile(jax.grad(f))(x), jax.grad(f)(x))
