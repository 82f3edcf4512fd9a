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


def same(ours, theirs, rtol=1e-5):
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
    same(ipu_jax.compile(step)(parameters, x, y), step(parameters, x, y))


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
        same(ipu_jax.compile(f)(x, n), f(x, n))


def test_random_bits_are_jax_s():
    def f(key):
        a, b = jax.random.split(key)
        return jax.random.normal(a, (5,)), jax.random.bits(b, (3, 3)), jax.random.permutation(b, 7)

    same(ipu_jax.compile(f)(jax.random.key(3)), f(jax.random.key(3)))
    same(ipu_jax.compile(f)(jax.random.PRNGKey(4)), f(jax.random.PRNGKey(4)))


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox", "rng_default"])
@pytest.mark.parametrize("shape", [(7,), (4, 3), (3, 4), (5, 3), (2, 3, 4), (1,), ()])
def test_bit_generators(algorithm, shape):
    """Bits and the new state of each algorithm are XLA's, also when the counter passes 2**32."""
    key = np.array([1, 2, 2**32 - 2, 0], np.uint32)

    def f(k):
        return jax.lax.rng_bit_generator(k, shape, "uint32", getattr(jax.lax.RandomAlgorithm, algorithm.upper()))

    same(ipu_jax.compile(f)(key), jax.jit(f)(key))


def test_arguments_are_structures_and_unused_ones_stay():
    def f(a, rest, *, scale):
        return {"sum": a + rest[0] * scale, "again": a}

    args, scale = (floats(3), [floats(3), {"unused": floats(2, 2)}]), 2.0
    same(ipu_jax.compile(f)(*args, scale=scale), f(*args, scale=scale))


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
