"""Vertex formulas against the text of the hardware notes (section 3); the arithmetic of every case stands here."""

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.profile.cycles import step_cycles
from ipu_keras.target import Target
from ipu_runtime.codelets import amp_model, registry
from ipu_runtime.codelets.amp_model import Amp
from ipu_runtime.codelets.reduce_model import reduce_add_cycles
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS
from ipu_runtime.program import BRANCH, GroupView
from tests.profile.programs import program_of, vertices, zeros

HALF = Amp("f16", "f16", 16, 8, 6)  # 16 units x 32 B at 8 B a cycle: 64 cycles of weights
MIXED = Amp("f16", "f32", 8, 8, 6)  # 8 units: 32
FLOAT = Amp("f32", "f32", 16, 8, 6)  # 64
FAST = Amp("f16", "f16", 16, 16, 6)  # at 16 B: 32


def cycles_of(codelet, params, columns, target=None):
    """Cycles of one vertex, from the numbers of its group."""
    g = GroupView(codelet, 1, np.array(params), [np.array([c]) for c in columns])
    return int(np.broadcast_to(registry.MODELS[codelet].cycles(g, target or Target()), 1)[0])


# ---- 1x1 AMP: (rows, ic, oc, groups, unit) and cycles ----

AMP = {
    # 64 rows: 11 or 10 a worker: 37 + 4 (11 - 3) - 7 = 62 and 58; 6 x 62 = 372 is more than 6 x 58 + 14.
    "fp16.16, one block": ((64, 16, 16, 1, HALF), 50 + 6 * 7 + 13 + 11 + (18 + 7 + 64 + 6 * (37 + 4 * (11 - 3) - 7))),
    "fp16.16, weights at 16 B": ((64, 16, 16, 1, FAST), 545),
    "fp16.16, 512 rows": ((512, 16, 16, 1, FAST), 2345),
    # 3 blocks of input, 2 of output channels, 3 groups; a later pass takes one more a worker.
    "fp16.16, blocks and groups": (
        (64, 48, 32, 3, HALF),
        50 + 6 * (7 + 3 * (3 * 3 - 1))
        + 3 * (13 + 2 * (15 + 2 * (19 + 6 + 64 + 6 * 63)) + 11 + 2 * (18 + 7 + 64 + 6 * 62)),
    ),
    # 6 rows: one each; all workers are the best one: 6 (32 - 7) + 14.
    "fp16.16, the best worker's 14": ((6, 16, 16, 1, HALF), 50 + 42 + 13 + 11 + (18 + 7 + 64 + 6 * (32 - 7) + 14)),
    # 3 rows: three workers have none: 21 - 7; 6 x 25 = 150 is more than 6 x 14 + 14.
    "fp16.16, fewer rows than workers": ((3, 16, 16, 1, HALF), 50 + 42 + 13 + 11 + (18 + 7 + 64 + 6 * (32 - 7))),
    # 100 rows: 17 or 16: 37 + 4 x 14 - 7 = 86; 40 channels are 3 blocks, 20 outputs 3 passes of 8 units.
    "fp16.32, rests are whole blocks": (
        (100, 40, 20, 2, MIXED),
        50 + 6 * (7 + 3 * (3 * 2 - 1))
        + 2 * (13 + 2 * (15 + 3 * (19 + 6 + 32 + 6 * 87)) + 11 + 3 * (18 + 7 + 32 + 6 * 86)),
    ),
    "fp16.32, two rows": ((12, 16, 8, 1, MIXED), 50 + 42 + 13 + 11 + (18 + 7 + 32 + 6 * (41 - 7) + 14)),
    # 20 rows: 4 or 3; zeroing 46 + 8 + 2 + 8 x 4 = 88, a later pass 46 + 8; no steps for blocks (s2 = 0).
    "fp32, blocks and groups": (
        (20, 20, 33, 2, FLOAT),
        50 + 6 * 7 + 2 * (13 + 2 * (15 + 3 * (19 + 6 + 64 + 6 * 54)) + 11 + 3 * (18 + 7 + 64 + 6 * 88)),
    ),
    # 12 rows: 2 each: zeroing 46 + 2 + 16, and the best worker's 14.
    "fp32, two rows": ((12, 8, 16, 1, FLOAT), 50 + 42 + 13 + 11 + (18 + 7 + 64 + 6 * (46 + 2 + 8 * 2) + 14)),
}  # fmt: skip


@pytest.mark.parametrize("name", AMP)
def test_amp_1x1(name):
    args, want = AMP[name]
    assert int(amp_model.amp_1x1(*args)) == want


def test_amp_of_half_partials_is_the_measured_vertex():
    # calibration.md row 8: 584 and 2,381 cycles measured; the estimator's figure is a bound from below.
    target = Target("one", tiles=1, bytes_per_tile=1 << 24, weight_load_bytes_per_cycle=16)
    for n, want, measured in ((64, 545, 584), (512, 2345, 2381)):
        args = zeros(n, 16, dtype="float16"), zeros(16, 16, dtype="float16")
        found = vertices(lambda a, b: a @ b, *args, target=target, options={"matmul_partials": "half"})
        assert found == [("dotPartial", want)]
        assert 0.9 * measured < want < measured


# ---- nx1 AMP: (rows, length, taps, ic, oc, groups, unit); 6 rows: one row for each worker ----

NX1 = {
    # Height 1 only: ko = 1, ki = 3; one row of 10: 17 + 3 + 34 + 4 x 7 - 9 = 73; zeroing of 480 partial sums.
    "height 1, fp16.32": (
        (6, 10, (1, 1, 3), 16, 8, 1, MIXED),
        109 + 110 + (16 + (14 + (14 + (14 + 3 * (12 + 32 + 15 + 3)) + 3 * 6 * 73))) + 6 * (24 + 40),
    ),
    # 2 groups, 2 blocks of input, 3 of output channels, fp32: 17 + 2 (3 + 45 + 8 x 2) - 9 = 136 for two rows of 5.
    "height 1, fp32, blocks and groups": (
        (12, 5, (1, 1, 2), 16, 48, 2, FLOAT),
        109 + 110 + 2 * (16 + 2 * (14 + 3 * (14 + (14 + 2 * (12 + 64 + 15 + 3)) + 2 * 6 * 136)))
        + 6 * (24 + 12 * 5 * 48 * 2 // 6 // 2),
    ),
    # Two taps of a column at once: 8 channels fill the unit; h = 46.
    "height 2": (
        (6, 10, (1, 2, 3), 8, 8, 1, MIXED),
        109 + 110 + (16 + (14 + (14 + (14 + 3 * (12 + 32 + 46 + 3)) + 3 * 6 * 73))) + 6 * (24 + 40),
    ),
    # Four at once: 4 channels fill the unit; h = 60.
    "height 4": (
        (6, 10, (1, 4, 3), 4, 8, 1, MIXED),
        109 + 110 + (16 + (14 + (14 + (14 + 3 * (12 + 32 + 60 + 3)) + 3 * 6 * 73))) + 6 * (24 + 40),
    ),
    # Weights of height 4 always come at 8 B a cycle: 64 cycles for 16 units; fp16 zeroing 26 + 160 / 4.
    "height 4, weights at 16 B": (
        (6, 10, (1, 4, 3), 4, 16, 1, FAST),
        109 + 110 + (16 + (14 + (14 + (14 + 3 * (12 + 64 + 60 + 3)) + 3 * 6 * 73))) + 6 * (26 + 40),
    ),
    # A column of 3 in 2 planes, 16 channels: three passes of height 1 a plane beat two (on twice the blocks) of 2.
    "planes of a column of three": (
        (6, 10, (2, 3, 1), 16, 8, 1, MIXED),
        109 + 110 + (16 + (14 + (14 + 2 * 3 * (14 + (12 + 32 + 15 + 3)) + 6 * 6 * 73))) + 6 * (24 + 40),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NX1)
def test_amp_nx1(name):
    args, want = NX1[name]
    assert int(amp_model.amp_nx1(*args)) == want


# ---- the other ways to multiply ----

OTHERS = {
    # One pass: 4 channels, 2 outputs (a quarter of 8 units), 4 taps: a row of 10 is 15 + 5; weights 16 + 18.
    "slic": (
        amp_model.slic, (6, 10, (1, 1, 4), 4, 2, 1, MIXED), 109 + 110 + (16 + 18 + 6 * (15 + 5)) + 6 * (24 + 20 // 2)
    ),
    # 2 groups x 2 x 3 passes, 3 rows of 7 taps in two steps; two rows of 9 a worker.
    "slic, several passes": (
        amp_model.slic, (12, 9, (1, 3, 7), 6, 5, 2, MIXED),
        109 + 110 + (2 * 2 * 3) * 3 * 2 * (16 + 18 + 6 * 2 * (15 + 4)) + 6 * (24 + 180 // 2),
    ),
    # Groups of one channel go four at a time.
    "slic, depthwise": (
        amp_model.slic, (6, 10, (1, 1, 4), 1, 1, 8, HALF), 109 + 110 + 2 * (16 + 18 + 6 * 20) + 6 * (26 + 80 // 4)
    ),
    # fp32, 3 channels: two words of which one is not whole, 2 cycles each: a point 7 + 2 (7 + 4).
    "hmac fp32": (
        amp_model.hmac, (6, 5, 3, 3, 2, 1, FLOAT),
        58 + 6 * (16 + 3 * (19 + 5 * (7 + 2 * (7 + 4)))) + 6 * (24 + 10 // 2),
    ),
    # 1x1: start 16 - 15, a row 13, supervisor 10 less; 13 points are 3 for the busiest worker; nothing to zero.
    "hmac fp32 1x1": (
        amp_model.hmac, (1, 13, 1, 4, 3, 2, FLOAT), 58 - 10 + 6 * (16 - 15 + 2 * (13 + 3 * (7 + 3 * (7 + 2))))
    ),
    # fp16 partials: 5 outputs are 3 pairs; start 16 - 6; two rows of 4 a worker, 24 of 140 sums to zero.
    "hmac fp16.16": (
        amp_model.hmac, (7, 4, 2, 8, 5, 1, HALF),
        65 + 6 * (16 - 6 + 2 * 2 * (19 + 4 * (7 + 3 * (6 + 2)))) + 6 * (26 + 24 // 4),
    ),
    "hmac fp16.32 1x1": (
        amp_model.hmac, (1, 12, 1, 10, 5, 1, MIXED), 65 - 10 + 6 * (16 - 15 + 13 + 2 * (7 + 5 * (6 + 2 * 3)))
    ),
    # 13 rows are 3 for the busiest worker; 8 and 16 columns are whole vectors, 5 and 6 are not.
    "outer fp32": (amp_model.outer, (13, 8, 2, FLOAT), 6 * (25 + 2 * (11 + 3 * (6 + (8 - 6) // 2)))),
    "outer fp32, odd": (amp_model.outer, (13, 5, 2, FLOAT), 6 * (25 + 2 * (11 + 3 * (10 + 2 * 5)))),
    "outer fp16": (amp_model.outer, (13, 16, 2, HALF), 6 * (25 + 2 * (10 + 3 * (6 + (16 - 12) // 4)))),
    "outer fp16, short": (amp_model.outer, (13, 6, 2, HALF), 6 * (25 + 2 * (10 + 3 * (10 + 15)))),
    # Blocks of 2 x 2 (fp32, 3 cycles) and 4 x 4 (fp16, 4 cycles): row groups over the workers where that is less.
    "transpose fp32": (amp_model.transpose_cycles, (8, 12, "f32"), 7 + 6 * (29 + 18 + 1 * (12 + 3 * (6 - 2)))),
    "transpose fp16": (amp_model.transpose_cycles, (64, 32, "f16"), 7 + 6 * (29 + 18 + 3 * (12 + 4 * (8 - 2)))),
    # Integers: 7 cycles a multiply and 7 an add (3.2), five outputs for the busiest worker.
    "integers": (amp_model.vector, (5, 6, 9), 11 + 6 * (17 + 5 * 9 * (7 + 7))),
    # Blocks of partial sums in interleaved memory: 33 + 6 (20 + (depth + o) x ceil(outs / acc / 6)).
    "ReduceAdd fp32": (reduce_add_cycles, (20, 480, 4), 33 + 6 * (20 + (20 + 8) * 20)),
    "ReduceAdd fp32, a rest": (reduce_add_cycles, (3, 25, 4), 33 + 6 * (20 + (3 + 8) * 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_product_vertex(name):
    formula, args, want = OTHERS[name]
    assert int(formula(*args)) == want


def test_vertical_mac_takes_three_cycles_for_eight_channels():
    # 12 points, two for the busiest worker; 16 channels are two vectors. The rest of the vertex has no source.
    one, two = (int(amp_model.vmac(12, taps, 16, HALF)) for taps in (9, 18))
    assert two - one == 6 * 2 * 9 * 2 * 3
    assert int(amp_model.vmac(12, 9, 24, HALF)) - one == 6 * 2 * 9 * 3 + 6 * (2 * 8 // 4)


@pytest.mark.parametrize(("size", "want"), [(96, 33 + 6 * (20 + (4 + 9) * 2)), (100, 33 + 6 * (20 + (4 + 9) * 3))])
def test_reduce_add_of_half_partials(size, want):
    # 3.5: fp16 partials to a half result, o = 9; 96 are two loops of 8 for the busiest worker, 100 three.
    found = cycles_of(registry.REDUCE, [2, 0b10, OPS["add"], DTYPE_NUMBER["f16"], 0], [0, 4, size, 0, 1 << 16])
    assert found == want


# ---- element-wise, on a chip of one tile: what test_cycles.py has not ----

HALVES = zeros(600, dtype="float16")
ELEMENTWISE = {
    "log fp32": (lambda x: tf.math.log(x), [zeros(600)], 6 * (17 + 50 * 12) + 9 + 11),
    "rsqrt fp32": (lambda x: tf.math.rsqrt(x), [zeros(600)], 6 * (17 + 50 * 8) + 9 + 11),
    "negate fp16": (lambda x: -x, [HALVES], 6 * (17 + 25 * 2) + 9 + 11),
    "erf fp32": (lambda x: tf.math.erf(x), [zeros(12)], 6 * (17 + 2 * 41) + 9 + 11),
    "floor fp16": (lambda x: tf.floor(x), [HALVES], 6 * (17 + 25 * (2 + 4)) + 9 + 11),
    "negate int32": (lambda x: -x, [zeros(600, dtype="int32")], 6 * (17 + 100 * (2 + 4)) + 9 + 11),
    "divide fp16": (lambda x, y: x / y, [HALVES, HALVES], 6 * (26 + 25 * 21) + 11),
    "power fp32": (lambda x, y: x**y, [zeros(60), zeros(60)], 6 * (29 + 10 * 312) + 11),
    "not equal fp16": (tf.not_equal, [HALVES, HALVES], 6 * (26 + 25 * 11) + 11),
    "at least int32": (lambda x, y: x >= y, [zeros(600, dtype="int32")] * 2, 6 * (26 + 25 * 26) + 11),
    "times a scalar int32": (
        lambda x, s: x * s, [zeros(600, dtype="int32"), zeros(dtype="int32")], 6 * (20 + 100 * 6) + 11,
    ),
    "maximum with a scalar fp32": (lambda x, s: tf.maximum(x, s), [zeros(600), zeros()], 6 * (20 + 50 * 3) + 11),
    "less than a scalar fp16": (lambda x, s: x < s, [HALVES, zeros(dtype="float16")], 6 * (20 + 25 * 8) + 11),
    # fp16 times a vector: two loops of 8 channels x (6 + 16 rows + 3).
    "scale columns fp16": (
        lambda x, b: x * b, [zeros(96, 16, dtype="float16"), zeros(16, dtype="float16")],
        13 + 6 * (17 + 5 + 2 * (6 + 16 + 3)),
    ),
    # 10 channels are no whole vectors: 9 an element, 16 rows a worker.
    "bias of ten fp16": (
        lambda x, b: x + b, [zeros(96, 10, dtype="float16"), zeros(10, dtype="float16")],
        13 + 6 * (17 + 5 + 9 * 10 * 16),
    ),
    "cast fp32 to int32": (lambda x: tf.cast(x, "int32"), [zeros(600)], 12 + 6 * (18 + 19 + 100 * 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    fn, args, want = ELEMENTWISE[name]
    assert vertices(fn, *args) == [("map", want)]


def map_of(op, dtype, n, in_place):
    """Cycles of a vertex with one operand of `n` elements."""
    size = {"f32": 4, "f16": 2, "u8": 1, "s64": 8}[dtype]
    params = [1, 1, 1, 0, 0, 1, 512, 4, 1, size, 1, size, 0, OPS[op], DTYPE_NUMBER[dtype], 1, 0, 0, 0]
    return cycles_of(registry.MAP, params, [0, n, 0, 0 if in_place else 1 << 16])


@pytest.mark.parametrize(
    ("op", "dtype", "inner"),
    [("tanh", "f32", 50 * 10), ("tanh", "f16", 25 * 2), ("log", "f16", 25 * 6), ("abs", "f32", 50 * (1 + 4)),
     ("exponential", "f32", 50 * 6)],
)  # fmt: skip
def test_unary_in_place(op, dtype, inner):
    # 3.1: the start is 55 in place, 17 (exp 33) otherwise.
    assert map_of(op, dtype, 600, True) == 6 * (55 + inner) + 9 + 11


@pytest.mark.parametrize(
    ("dtype", "n", "worker"),
    [("f32", 600, 24 + 100 // 2), ("f16", 600, 26 + 100 // 4), ("u8", 240, 28 + 40 // 4), ("u8", 600, 39 + 13),
     ("s64", 60, 5 + 10)],
)  # fmt: skip
def test_fill(dtype, n, worker):
    # 3.4, Fill1D: 100 bytes of a worker are more than 64: 39 + ceil(100 / 8).
    assert map_of("copy", dtype, n, False) == 6 * worker


# ---- tables and windows (3.7, 3.9) ----


def test_dynamic_slice():
    # Three slices of 24: 4 elements a worker, two vectors of fp32, one of fp16.
    for dtype, vectors in (("float32", 2), ("float16", 1)):
        found = vertices(lambda x, i: tf.slice(x, [i, 0], [3, 24]), zeros(10, 24, dtype=dtype), zeros(dtype="int32"))
        assert ("dynamicSlice", 25 + 6 * (39 + 3 * (24 + 2 * vectors))) in found
        # The same 24 in two dimensions inside of the one that moves: still a run each.
        found = vertices(
            lambda x, i: tf.slice(x, [i, 0, 0], [3, 4, 6]), zeros(10, 4, 6, dtype=dtype), zeros(dtype="int32")
        )
        assert ("dynamicSlice", 25 + 6 * (39 + 3 * (24 + 2 * vectors))) in found
    # What moves is innermost: of each of four rows a run of three, one element a worker.
    found = vertices(lambda x, i: tf.slice(x, [0, i], [4, 3]), zeros(4, 10), zeros(dtype="int32"))
    assert ("dynamicSlice", 25 + 6 * (39 + 4 * (24 + 2 * 1))) in found


def test_scatter_of_halves():
    # Rows of 5 halves are 10 bytes: 3 words, of which one is not whole: 20 more an element; two rows a worker.
    add = lambda t, i, u: tf.tensor_scatter_nd_add(t, i[:, None], u)  # noqa: E731
    indices = np.zeros(12, np.int32)
    args = (zeros(100, 5, dtype="float16"), indices, zeros(12, 5, dtype="float16"))
    assert vertices(add, *args)[-1] == ("multiUpdate", 6 * (33 + 2 * (12 + 4 * 2 + 20 * 5)))
    args = (zeros(100, 8, dtype="float16"), indices, zeros(12, 8, dtype="float16"))
    assert vertices(add, *args)[-1] == ("multiUpdate", 6 * (33 + 2 * (12 + 4 * 3)))


def test_pooling_of_halves():
    # 3 x 3 over 9 x 9 with stride 3, 8 channels of fp16 are two vectors: 9 outputs, two for the busiest worker.
    found = vertices(lambda x: tf.nn.max_pool2d(x, 3, 3, "VALID"), zeros(1, 9, 9, 8, dtype="float16"))
    assert found == [("reduceWindow", 13 + 6 * (20 + 13 + 2 * 2 * (4 + 3 * 9)))]


def test_region():
    # An argmax, fp32 with s32: greater, or equal and before; then twice a choice. Six lines of 100: one a worker, 3 an
    # element; a line of 600: 100 a worker, then six found values by one worker.
    f32, s32 = DTYPE_NUMBER["f32"], DTYPE_NUMBER["s32"]
    words = [("compare-gt", f32), ("compare-eq", f32), ("compare-lt", s32), ("and", DTYPE_NUMBER["pred"]),
             ("or", DTYPE_NUMBER["pred"]), ("select", f32), ("select", s32)]  # fmt: skip
    body = [number for op, dtype in words for number in (0, OPS[op], dtype, 0, 0, 0, 0)]
    head = [2, 0, 0, 7, 4, 0, 9, 4, 0, 10, *body]
    assert cycles_of(registry.VARIADIC, [2, 1, *head], [0, 6, 100, 0, 0, 0, 0]) == 11 + 6 * (24 + 3 * 100)
    assert cycles_of(registry.VARIADIC, [1, 0, *head], [0, 600, 0, 0, 0, 0]) == 11 + 6 * (27 + 3 * 100 + 24 + 3 * 6)


def test_sort():
    # 3.10, of one worker (so six times as long, section 2): 7 lines are two turns; a value beside the key: 16 for 8.
    assert cycles_of(registry.SORT, [1, 0, 0, 0, 0, 4], [0, 7, 64, 0, 0]) == 2 * 6 * 8 * (19 * 64 * 6 + 6 * 64 + 2)
    pair = cycles_of(registry.SORT, [2, 0, 0, 0, 0, 4, 4], [0, 6, 100, 0, 0, 0, 0])
    assert pair == 6 * 16 * (19 * 100 * 6 + 6 * 100 + 2)


def test_branch():
    # 3.12: the predicate, one word, is exchanged from one tile to all behind a sync: 1 + 3 for its fragment + 30.
    (step,) = step_cycles(program_of(BRANCH, [(registry.BRANCH, [0], [[0], [0]])], Target("four", tiles=4)))
    assert (step.exchange, step.sync, step.compute) == (1 + 3 + 30, 117, 0)
