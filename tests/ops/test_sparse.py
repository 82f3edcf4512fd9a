"""Block-sparse products on the tiles: numbers against float64 and the dense product, memory and cycles by density."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.compiler.passes.sparse import pack, rewrite_sparse_dot, unpack
from ipu_keras.compiler.plan.sparse import Buckets
from ipu_keras.debug import compare
from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend.trace import trace
from ipu_keras.graph.ir import Node
from ipu_keras.ops import sparse
from ipu_keras.target import TARGETS, Target
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.sparse_model import sparse_cycles
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.opcodes import DTYPE_NUMBER
from ipu_runtime.program import COMPUTE, EXCHANGE, GroupView
from ipu_runtime.validate.codelets import SHAPES
from tests.api.ops.device import gradients, run

RNG = rng = np.random.default_rng(11)
GC200 = TARGETS["gc200"]
TOLERANCE = {np.float32: 1e-6, np.float16: 1.5e-3}


def normal(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def mask_of(rows, columns, density=0.4):
    """Random, with an empty row, an empty column and a full row."""
    mask = rng.random((rows, columns)) < density
    mask[0] = True
    mask[2], mask[:, 3] = False, False
    return mask


def dense_of(values, indices, shape):
    """The matrix, block by block; what is outside it is left out."""
    edge, found = values.shape[1], np.zeros(shape)
    for block, (row, column) in zip(values.astype(np.float64), indices, strict=True):
        if 0 <= row < shape[0] // edge and 0 <= column < shape[1] // edge:
            found[row * edge : (row + 1) * edge, column * edge : (column + 1) * edge] += block
    return found


def expected(x, values, indices, shape, transpose=False):
    """The product and, for the wave that `gradients` sums with, both gradients, in float64."""
    matrix, x = dense_of(values, indices, shape), x.astype(np.float64)
    matrix = matrix.T if transpose else matrix
    y = x @ matrix
    wave = np.cos(np.arange(y.size, dtype=np.float32)).astype(np.float64).reshape(y.shape)
    slopes = x.reshape(-1, x.shape[-1]).T @ wave.reshape(-1, y.shape[-1])
    slopes = slopes.T if transpose else slopes
    edge = values.shape[1]
    blocks = np.zeros(values.shape)
    for i, (row, column) in enumerate(indices):
        if 0 <= row < shape[0] // edge and 0 <= column < shape[1] // edge:
            blocks[i] = slopes[row * edge : (row + 1) * edge, column * edge : (column + 1) * edge]
    return y, wave @ matrix.T, blocks


def close(ours, exact, tolerance):
    """Within a share of the largest value."""
    result, slopes = ours
    for a, b in zip([result, *slopes], exact, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def compiled(fn, *shapes, weights=(), dtype=tf.float16, target=GC200, **options):
    """A program that is only looked at."""
    traced = trace(fn, tuple(tf.TensorSpec(s, dtype) for s in shapes))
    state = dict.fromkeys(weights)
    return compile_module(
        traced.module, target=target, options=options, state=state, layers=traced.names, execute=False
    )


def on_chip(exe):
    """Cycles of vertices and exchanges, without the host's streams."""
    return sum(step.total for step in exe.profile().steps if step.kind in (COMPUTE, EXCHANGE))


def stored(exe):
    """Bytes of weights on all tiles."""
    program = exe.program
    owner = np.repeat(program.variables[:, 0], program.variables[:, 4])
    return int(program.cells[owner == 0, 2].sum())


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", [1, 4, 8, 16])
def test_static_product_and_both_gradients(edge, dtype):
    pattern = sparse.pattern_from_mask(np.kron(mask_of(5, 7), np.ones((edge, edge))), edge)
    x, values = normal(6, 5 * edge, dtype=dtype), normal(*pattern.values_shape, dtype=dtype)
    fn = lambda x, v: sparse.static_matmul(x, v, pattern)  # noqa: E731
    exact = expected(x, values, pattern.indices, pattern.shape)
    close(gradients(fn, x, values), exact, TOLERANCE[dtype])
    close(gradients(fn, x, values, host=True), exact, TOLERANCE[dtype])
    # The dense product of the same zeros, on the same tiles.
    dense = lambda x, v: x @ sparse.to_dense(v, pattern)  # noqa: E731
    close(gradients(dense, x, values), exact, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", [1, 4, 8, 16])
def test_dynamic_product_and_both_gradients(edge, dtype):
    shape = 5 * edge, 7 * edge
    rows, columns = np.nonzero(mask_of(5, 7))
    # In no order; one place twice; two unused blocks, by different numbers.
    indices = rng.permutation(np.array([*zip(rows, columns, strict=True), (0, 0), (-1, -1), (2, 7)], np.int32))
    x, values = normal(6, shape[0], dtype=dtype), normal(len(indices), edge, edge, dtype=dtype)
    fn = lambda x, v, i: sparse.dynamic_matmul(x, v, i, shape)  # noqa: E731
    exact = expected(x, values, indices, shape)
    close(gradients(fn, x, values, indices), exact, TOLERANCE[dtype])
    close(gradients(fn, x, values, indices, host=True), exact, TOLERANCE[dtype])


@pytest.mark.parametrize("edge", [1, 8])
def test_transposed_with_leading_dimensions_and_blocks_in_any_order(edge):
    rows, columns = np.nonzero(mask_of(6, 5))
    order = rng.permutation(len(rows))
    pattern = sparse.BlockPattern((6 * edge, 5 * edge), edge, rows[order], columns[order])
    values = normal(*pattern.values_shape)
    for transpose in (False, True):
        x = normal(2, 3, pattern.shape[transpose])
        exact = expected(x, values, pattern.indices, pattern.shape, transpose)
        fn = lambda x, v: sparse.static_matmul(x, v, pattern, transpose)  # noqa: B023, E731
        close(gradients(fn, x, values), exact, 1e-6)
        fn = lambda x, v: sparse.dynamic_matmul(x, v, pattern.indices, pattern.shape, transpose)  # noqa: B023, E731
        close(gradients(fn, x, values), exact, 1e-6)


def test_columns_whose_sums_are_on_many_tiles():
    """One block column of 60 blocks: no tile has all of it, and the gradient's rows are spread likewise."""
    for shape in ((60, 1), (1, 60)):
        pattern = sparse.pattern_from_mask(np.ones(shape) * (rng.random(shape) < 0.9), 1)
        pattern = sparse.BlockPattern((shape[0] * 8, shape[1] * 8), 8, pattern.rows, pattern.columns)
        x, values = normal(70, pattern.shape[0]), normal(*pattern.values_shape)
        exact = expected(x, values, pattern.indices, pattern.shape)
        close(gradients(lambda x, v: sparse.static_matmul(x, v, pattern), x, values), exact, 2e-6)  # noqa: B023


def test_gradients_of_gradients():
    pattern = sparse.pattern_from_mask(mask_of(5, 6), 1)
    x, values = normal(3, 5), normal(*pattern.values_shape)

    def second(matmul):
        def fn(x, v):
            with tf.GradientTape() as outer:
                outer.watch([x, v])
                with tf.GradientTape() as inner:
                    inner.watch([x, v])
                    loss = tf.reduce_sum(matmul(x, v) ** 3)
                slopes = inner.gradient(loss, [x, v])
                total = tf.add_n([tf.reduce_sum(tf.sin(s)) for s in slopes])
            return outer.gradient(total, [x, v])

        return fn

    ours = run(second(lambda x, v: sparse.static_matmul(x, v, pattern)), x, values)
    theirs = second(lambda x, v: x @ sparse.to_dense(v, pattern))(tf.constant(x), tf.constant(values))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


def test_inside_loops_and_branches():
    pattern = sparse.random_pattern((16, 16), 4, 0.5)
    x, values = normal(3, 16), normal(*pattern.values_shape)

    def fn(x, v):
        step = lambda i, h: (i + 1, tf.tanh(sparse.static_matmul(h, v, pattern)))  # noqa: E731
        looped = tf.while_loop(lambda i, h: i < 3, step, (0, x))[1]
        return tf.cond(looped[0, 0] > 0, lambda: sparse.static_matmul(looped, v, pattern, True), lambda: looped * 2)

    for sign in (1, -1):
        host = np.asarray(fn(tf.constant(sign * x), tf.constant(values)))
        np.testing.assert_allclose(run(fn, sign * x, values), host, rtol=1e-4, atol=1e-5)


def executed(fn, *arrays, weights=(), **options):
    traced = trace(fn, tuple(tf.TensorSpec(a.shape, a.dtype) for a in arrays))
    exe = compile_module(traced.module, target=Target("few", tiles=16), options=options, state=dict.fromkeys(weights))
    return exe, exe.run(*arrays)


@pytest.mark.parametrize("edge", [1, 16])
def test_half_sums_are_rounded_block_by_block(edge):
    """One column of three blocks of ones: 2048 + 1 + 1 is 2048 where each sum is rounded, 2050 where only the last."""
    pattern = sparse.BlockPattern((3 * edge, edge), edge, (0, 1, 2), (0, 0, 0))
    x = np.zeros((1, 3 * edge), np.float16)
    x[0, [0, edge, 2 * edge]] = 2048, 1, 1
    values = np.zeros(pattern.values_shape, np.float16)
    values[:, 0, 0] = 1
    fn = lambda x, v: sparse.static_matmul(x, v, pattern)  # noqa: E731
    found = {}
    for option in ("half", "float"):
        # One tile: else sums of other tiles are added in another order.
        traced = trace(fn, tuple(tf.TensorSpec(a.shape, a.dtype) for a in (x, values)))
        exe = compile_module(traced.module, target=Target("one", tiles=1), options={"matmul_partials": option})
        found[option] = float(np.asarray(exe.run(x, values)).reshape(-1)[0])
    assert found == {"half": 2048 if edge > 1 else 2050, "float": 2050}


# --- planning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("wanted", [1, 3, 7, 50])
def test_buckets_hold_each_block_once_and_name_its_slots(wanted, whole):
    pattern = sparse.pattern_from_mask(mask_of(9, 8), 1).indices.astype(np.int64)
    cut = Buckets(pattern, (9, 8), wanted, whole)
    assert cut.starts[0] == 0 and cut.stops[-1] == len(pattern) and (cut.starts[1:] == cut.stops[:-1]).all()
    for side, names in zip(cut.sides, pattern.T, strict=True):
        for i, bucket in enumerate(cut.of_block):
            at = side.first[bucket] + side.local[i]
            assert side.bucket[at] == bucket and side.block[at] == names[i]
    if whole:
        assert (np.sort(cut.sides[1].block) == np.arange(8)).all()  # a column is on one tile, also an empty one
    sizes = cut.stops - cut.starts
    assert whole or sizes.max() - sizes.min() <= 1


def test_passes_share_one_division_so_that_blocks_stay():
    pattern = sparse.random_pattern((256, 256), 16, 0.25)

    def step(x, v):
        with tf.GradientTape() as tape:
            tape.watch([x, v])
            loss = tf.reduce_sum(sparse.static_matmul(x, v, pattern) ** 2)
        return tape.gradient(loss, [x, v])

    exe = compiled(step, (64, 256), pattern.values_shape, weights=[1])
    assert [plan["op"] for plan in exe.program.header["plans"]] == ["sparse-dot"]
    assert len(exe.program.header["products"]) == 3
    assert "non-zero blocks / " in exe.explain_plans()


# --- cycles, memory -----------------------------------------------------------------------------------------------


def test_cycles_by_hand():
    one = lambda *a, **k: int(np.max(sparse_cycles(*a, target=GC200, **k)))  # noqa: E731
    slots = 3, 2
    # 10 blocks of 16 in 2 columns, 24 rows: 4 for each worker, 19 + 3 x 4 cycles a block, 64 to load it.
    assert one("forward", True, "f16", "f16", 16, 10, 24, slots) == 30 + 6 * 13 + 2 * (6 + 17) + 10 * (16 + 64 + 6 * 31)
    # The transposed product has the 3 rows as outputs; fp32: 19 + 3 x 8, 32 to load, 3 x 24 x 8 sums of 4 B zeroed.
    blocks = 30 + 6 * 13 + 3 * (6 * 4 + 17) + 10 * (16 + 32 + 6 * 43)
    assert one("transposed", True, "f32", "f32", 8, 10, 24, slots) == blocks + 6 * (12 + math.ceil(3 * 24 * 4 / 6))
    # fp16, blocks of 4, 12 rows: 2 for each worker.
    assert one("forward", True, "f16", "f16", 4, 10, 12, slots) == 30 + 6 * 17 + 2 * (6 + 17) + 10 * (16 + 4 + 6 * 9)
    # fp16 with fp32 sums: eight units, so two passes of a block of 16; 25 + 2 x 4 - 3 each.
    block = 64 + 3 + 12 * 2 + 6 * 2 * (25 + 8 - 3)
    assert one("forward", False, "f16", "f32", 16, 10, 12, slots) == (
        40 + 46 + 56 + 2 + 2 + 6 * 23 + 10 * block + 6 * (12 + math.ceil(2 * 12 * 16 * 4 / 8 / 6))
    )
    # Elements: 60 in 12 columns, so each worker has 2 columns of 5; 20 rows are two vectors of eight and a rest.
    assert one("forward", True, "f16", "f16", 1, 60, 20, (9, 12)) == 6 * (33 + 2 * (11 + 2 * (14 + 4 * 3) + 9 + 4 * 2))
    assert one("forward", True, "f32", "f32", 1, 60, 4, (9, 12)) == 6 * (30 + 2 * (6 + 4 * 3))
    assert one("forward", False, "f32", "f32", 1, 60, 6, (9, 12)) == 120 + 6 * (27 + 2 * (12 + 12 + 8 + 3) + 10 * 5)
    # Gradients of elements: 11 + 20 / 4 cycles for each of a worker's 10.
    assert one("sampled", True, "f16", "f16", 1, 60, 20, (9, 12)) == 37 + 38 + 26 + 6 * (33 + 2 * 6 + 10 * 16)
    # Gradients of blocks of 16 by the AMP: 32 rows are two loads of 234.
    supervisor = 23 + 8 + 2 * 22 + 10 * (10 + 15 + 4 + 2 * (8 + 234))
    assert one("sampled", True, "f16", "f16", 16, 10, 32, slots) == 101 + supervisor + 6 * (10 + 10 * (2 * 33 - 4))


def test_cycles_without_a_source_are_marked():
    def group(mode, dtype, edge, static):
        params = [mode, DTYPE_NUMBER[dtype], DTYPE_NUMBER["f32"], edge, 2, static]
        return GroupView(registry.SPARSE, 1, np.array(params), [np.array([v]) for v in (0, 5, 8, 3, 2, 0, 0, 0, 0)])

    for view, known in [
        (group(0, "f32", 16, 1), True), (group(0, "f16", 16, 0), True), (group(0, "f32", 8, 0), True),
        (group(0, "f32", 16, 0), False), (group(2, "f32", 16, 1), False), (group(2, "f32", 4, 1), True),
    ]:  # fmt: skip
        cycles = registry.MODELS[registry.SPARSE].cycles(view, GC200)
        part = registry.unsourced(view, GC200, cycles)
        assert (part is None) if known else (part == cycles).all()


@pytest.mark.parametrize("edge", [1, 16])
def test_memory_cycles_and_operations_scale_with_density(edge):
    k, m, n = (1024, 1024, 64) if edge > 1 else (256, 256, 64)
    found = []
    for density in (1 / 16, 1 / 8, 1 / 4):
        pattern = sparse.random_pattern((k, m), edge, density)
        fn = lambda x, v: sparse.static_matmul(x, v, pattern)  # noqa: B023, E731
        exe = compiled(fn, (n, k), pattern.values_shape, weights=[1], target=dataclasses.replace(GC200, tiles=16))
        profile = exe.profile()
        found.append((stored(exe), on_chip(exe), profile.flops))
        assert profile.flops == 2 * n * k * m * density
        assert k * m * density * 2 <= stored(exe) < k * m * density * 2 * 1.05 + 16 * 8
    for small, large in itertools.pairwise(found):
        assert 1.5 < large[1] / small[1] < 2.2, found


def test_at_a_sixteenth_blocks_of_16_are_faster_than_dense_and_single_elements_are_not():
    k, m, n = 2048, 2048, 256
    cycles = {"dense": on_chip(compiled(lambda x, w: x @ w, (n, k), (k, m), weights=[1], matmul_partials="half"))}
    for edge in (1, 16):
        pattern = sparse.random_pattern((k, m), edge, 1 / 16)
        fn = lambda x, v: sparse.static_matmul(x, v, pattern)  # noqa: B023, E731
        exe = compiled(fn, (n, k), pattern.values_shape, weights=[1], matmul_partials="half")
        cycles[edge] = on_chip(exe)
        # What was planned is what is charged, but for bringing X from the host's spread.
        plan = exe.program.header["plans"][0]["plans"][0]
        planned = plan["exchange"] + plan["vertex"] + plan["reduce"]
        assert 0.8 < planned / cycles[edge] < 1.1, (planned, cycles)
    assert cycles[16] < cycles["dense"] / 2 and cycles[1] > cycles["dense"], cycles


# --- refusals -----------------------------------------------------------------------------------------------------


def test_positions_outside_a_tile_are_left_out():
    """A file's constants are anybody's: a position that names no slot reads and writes nothing."""
    pattern = sparse.BlockPattern((8, 8), 4, (0, 1), (0, 1))
    fn = lambda x, v: sparse.static_matmul(x, v, pattern)  # noqa: E731
    exe, before = executed(fn, np.ones((2, 8), np.float32), np.ones((2, 4, 4), np.float32))
    assert (np.asarray(before) == 4).all()
    exe.program.blob[:] = 0xFF
    after = exe.engine().run({0: np.ones((1, 2, 8), np.float32), 1: np.ones((1, 2, 4, 4), np.float32)})
    assert (np.asarray(after[0]) == 0).all()


@pytest.mark.parametrize(
    ("at", "value"), [(0, 3), (0, -1), (1, DTYPE_NUMBER["s32"]), (2, DTYPE_NUMBER["f16"]), (3, 5), (4, 1), (5, 2)]
)
def test_a_file_with_other_parameters_is_refused(at, value):
    params = [0, DTYPE_NUMBER["f32"], DTYPE_NUMBER["f32"], 4, 2, 1]
    columns = [np.array([v]) for v in (0, 5, 8, 3, 2, 0, 0, 0, 0)]
    SHAPES[registry.SPARSE](GroupView(registry.SPARSE, 1, np.array(params), columns))
    params[at] = value
    with pytest.raises(ExecutableFormatError):
        SHAPES[registry.SPARSE](GroupView(registry.SPARSE, 1, np.array(params), columns))
    with pytest.raises(ExecutableFormatError):
        SHAPES[registry.SPARSE](GroupView(registry.SPARSE, 1, np.array(params), columns[:-1]))


def test_calls_that_say_something_else_are_refused():
    pattern = np.array([[0, 0], [1, 1]], np.int32)
    np.testing.assert_array_equal(unpack(pack(pattern)), pattern)
    good = {"mode": "forward", "block": 4, "shape": [8, 8], "pattern": pack(pattern)}

    def made(config, x=(2, 8), dtype="f32"):
        inputs = [Node("parameter", [], [(shape, dtype)]).out for shape in (x, (2, 4, 4))]
        text = config if isinstance(config, str) else json.dumps(config)
        node = Node("custom-call", inputs, [((2, 8), dtype)], {"config": text})
        return rewrite_sparse_dot(type("B", (), {"add_node": staticmethod(lambda n: n.results)}), node)

    assert made(good)[0].node.op == "sparse-dot"
    wrong = [
        "", "[]", {}, {**good, "block": 5}, {**good, "mode": "backward"}, {**good, "shape": [8, 9]},
        {**good, "shape": 8}, {**good, "pattern": "???"}, {**good, "pattern": pack([[0, 0], [1, 2]])},
        {**good, "pattern": pack([[0, 0]])}, {**good, "pattern": None},
    ]  # fmt: skip
    for config in wrong:
        assert made(config) is None, config
    assert made(good, x=(2, 4)) is None and made(good, dtype="s32") is None


def test_arguments_that_do_not_fit():
    pattern = sparse.pattern_from_mask(np.eye(8), 4)
    x, values = tf.ones((2, 8)), tf.ones(pattern.values_shape)
    for make, words in [
        (lambda: sparse.BlockPattern((8, 8), 5, (0,), (0,)), "block_size is 5"),
        (lambda: sparse.BlockPattern((8, 6), 4, (0,), (0,)), r"do not divide the shape \(8, 6\)"),
        (lambda: sparse.BlockPattern((8, 8), 4, (0, 2), (0, 0)), r"block 1 is at \(2, 0\)"),
        (lambda: sparse.BlockPattern((8, 8), 4, (-1,), (0,)), r"block 0 is at \(-1, 0\)"),
        (lambda: sparse.BlockPattern((8, 8), 4, (1, 0, 1), (0, 0, 0)), r"block \(1, 0\) is given 2 times"),
        (lambda: sparse.BlockPattern((8, 8), 4, (), ()), "no block"),
        (lambda: sparse.BlockPattern((8, 8), 4, (0, 1), (0,)), "2 rows and 1 columns"),
        (lambda: sparse.pattern_from_mask(np.zeros((8, 8)), 4), "no block"),
        (lambda: sparse.pattern_from_mask(np.zeros(8), 4), r"shape \[rows, columns\]"),
        (lambda: sparse.random_pattern((8, 8), 4, 0), "density is 0"),
        (lambda: sparse.prune(np.eye(8), 4, 1.5), "density is 1.5"),
        (lambda: sparse.values_from_dense(tf.ones((4, 8)), pattern), "has shape"),
        (lambda: sparse.to_dense(tf.ones((3, 4, 4)), pattern), r"shape \[2, 4, 4\]"),
        (lambda: sparse.static_matmul(tf.ones((2, 9)), values, pattern), "8 rows of the matrix"),
        (lambda: sparse.static_matmul(x, tf.cast(values, tf.float16), pattern), "values are float16"),
        (lambda: sparse.static_matmul(tf.cast(x, tf.float64), tf.cast(values, tf.float64), pattern), "x is float64"),
        (lambda: sparse.static_matmul(x, values, np.eye(8)), "must be a BlockPattern"),
        (lambda: sparse.dynamic_matmul(x, values, [[0, 0]], (8, 8)), r"shape \[2, 2\]"),
        (lambda: sparse.dynamic_matmul(x, values, [[0.0, 0.0]] * 2, (8, 8)), "must be integers"),
        (lambda: sparse.dynamic_matmul(x, tf.ones((2, 3, 3)), [[0, 0]] * 2, (9, 9)), "block_size is 3"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            make()
    with pytest.raises(UnsupportedError, match="to_dense"):
        compare(lambda x: sparse.static_matmul(x, tf.ones(pattern.values_shape), pattern), np.ones((2, 8), np.float32))
    with pytest.raises(UnsupportedError, match="custom-call"):
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        call = lambda x: gen_xla_ops.xla_custom_call_v2([x], "ipu_keras.sparse_dot", "{}", False, [x.dtype], [x.shape])  # noqa: E731
        compiled(call, (2, 8))
