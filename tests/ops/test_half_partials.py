"""Partial sums in fp16: every bit replayed, and what the option does not touch.

Operands are whole numbers, so that sums in fp32 are exact whatever their order: only the roundings to fp16 are left.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.compiler.layout import even
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from tests.harness import hlo_of, run_both
from tests.ops.replay import added, blocks

rng = np.random.default_rng(5)
BLOCK = 16  # input channels of an fp16 AMP block


def whole(*shape, most=20):
    return rng.integers(-most, most + 1, size=shape).astype(np.float16)


def tiles_of(fn, *args, tiles=16, **options):
    """The only result, the parts of the only product's plan, and how many stages add its partial sums."""
    target = Target("few", tiles=tiles, bytes_per_tile=1 << 20)
    exe = compile_module(hlo_of(fn, *args)[0], target=target, options=options)
    ((_, number),) = exe.program.header["products"]
    parts = exe.program.header["plans"][number]["plans"][0]["parts"]
    stages = int((exe.program.groups[:, 0] == registry.REDUCE).sum())
    (out,) = exe.run(*args)
    return out, parts, stages


def product_of(a, b, parts, stages):
    """The replay of [m, k] x [k, n]."""
    a, b, k = a.astype(np.float64), b.astype(np.float64), a.shape[1]
    starts, stops = even(k, parts["ic"], BLOCK)
    return added(
        [blocks([a[:, i : min(i + BLOCK, hi)] @ b[i : min(i + BLOCK, hi)] for i in range(lo, hi, BLOCK)])
         for lo, hi in zip(starts.tolist(), stops.tolist(), strict=True)], stages,
    )  # fmt: skip


def same_bits(a, b):
    assert a.dtype == b.dtype == np.float16 and np.isfinite(a).all()
    np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


# (m, k, n, tiles); the parts of k and the stages that its sums take are the planner's.
PRODUCTS = [(48, 160, 40, 4), (7, 33, 5, 16), (8, 400, 16, 16), (3, 1000, 24, 16), (4, 4000, 8, 64), (1, 70, 1, 2)]


@pytest.mark.parametrize(("m", "k", "n", "tiles"), PRODUCTS)
def test_product(m, k, n, tiles):
    a, b = whole(m, k), whole(k, n)
    half, parts, stages = tiles_of(lambda x, y: x @ y, a, b, tiles=tiles, matmul_partials="half")
    same_bits(half, product_of(a, b, parts, stages))
    # Float partial sums are exact here, and rounded once; they do not hear of the option.
    floats, _, _ = tiles_of(lambda x, y: x @ y, a, b, tiles=tiles)
    same_bits(floats, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))
    if k > 100:
        assert (half != floats).any()


def test_the_shapes_cover_split_sums():
    found = [tiles_of(lambda x, y: x @ y, whole(m, k), whole(k, n), tiles=t, matmul_partials="half")[1:]
             for m, k, n, t in PRODUCTS]  # fmt: skip
    assert {1} < {parts["ic"] for parts, _ in found} and max(parts["ic"] for parts, _ in found) >= 16


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
def test_transposed_operands(turned):
    a, b = whole(24, 200), whole(200, 20)
    stored = [np.ascontiguousarray(v.T) if t else v for v, t in zip((a, b), turned, strict=True)]

    def fn(x, y):
        # Negated first, so that they lie as they are stored and are turned on the tiles.
        return tf.matmul(-x, -y, transpose_a=turned[0], transpose_b=turned[1])

    half, parts, stages = tiles_of(fn, *stored, matmul_partials="half")
    same_bits(half, product_of(a, b, parts, stages))


def test_groups():
    a, b = whole(3, 10, 64), whole(3, 64, 12)
    half, parts, stages = tiles_of(lambda x, y: x @ y, a, b, matmul_partials="half")
    for i in range(3):
        same_bits(half[i], product_of(a[i], b[i], parts, stages))


@pytest.mark.parametrize(("channels", "outputs", "tiles"), [(20, 8, 8), (64, 3, 16), (5, 16, 4)])
def test_convolution(channels, outputs, tiles):
    # A block of input channels does not cross a tap; taps outside the image add nothing.
    x, w = whole(2, 6, 5, channels), whole(3, 3, channels, outputs)
    half, parts, stages = tiles_of(
        lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x, w, tiles=tiles, convolution_partials="half"
    )
    wide = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    weights = w.astype(np.float64)
    partials = []
    for c0, c1 in zip(*(e.tolist() for e in even(channels, parts["ic"], BLOCK)), strict=True):
        for t0, t1 in zip(*(e.tolist() for e in even(3, parts["taps"])), strict=True):
            partials.append(
                blocks(
                    wide[:, i : i + 6, j : j + 5, c : min(c + BLOCK, c1)] @ weights[i, j, c : min(c + BLOCK, c1)]
                    for i in range(t0, t1)
                    for j in range(3)
                    for c in range(c0, c1, BLOCK)
                )
            )
    same_bits(half, added(partials, stages))
    floats, _, _ = tiles_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), x, w, tiles=tiles)
    exact = sum(wide[:, i : i + 6, j : j + 5] @ weights[i, j] for i in range(3) for j in range(3))
    same_bits(floats, exact.astype(np.float16))


def test_a_rounding_for_each_block():
    # 2048 + 1 rounds back to 2048: what comes after the large block is lost, one block at a time.
    a = np.ones((1, 64), np.float16)
    b = np.zeros((64, 1), np.float16)
    b[0], b[16], b[32], b[48] = 2048, 1, 1, 1
    half, parts, _ = tiles_of(lambda x, y: x @ y, a, b, tiles=1, matmul_partials="half")
    floats, _, _ = tiles_of(lambda x, y: x @ y, a, b, tiles=1)
    assert parts["ic"] == 1 and half.item() == 2048 and floats.item() == 2052  # 2051 to even


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("k", [64, 1000])
def test_float_partials_are_as_close_as_xla(dtype, k):
    a, b = rng.normal(size=(12, k)).astype(dtype), rng.normal(size=(k, 9)).astype(dtype)
    (ours,), (theirs,) = run_both(lambda x, y: x @ y, a, b, target=Target("few", tiles=16, bytes_per_tile=1 << 20))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error, bound = (np.abs(v.astype(np.float64) - exact).max() for v in (ours, theirs))
    assert math.isfinite(error) and error <= 2 * bound
