"""Custom targets: each field changes what its text says, by hand-made amounts, and nothing else."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras.target import Target
from ipu_runtime.codelets import amp_model, registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS
from ipu_runtime.program import COMPUTE, EXCHANGE, STREAM_IN, GroupView
from tests.profile.programs import copies, exp_vertices, program_of, retimed, run_of, vertices, zeros

BASE = Target("base", tiles=4, bytes_per_tile=1 << 22, fp8_in_fp16_out_conv_units=16)
F32, F16 = DTYPE_NUMBER["f32"], DTYPE_NUMBER["f16"]


def dot(dtype, partials):
    """64 rows of one block of [16 | 8, 16]."""
    depth = 8 if dtype == F32 else 16
    return (
        registry.DOT,
        [dtype, 0, 0, amp_model.METHODS.index("amp"), partials],
        [[0], [1], [64], [16], [depth], *[[0]] * 3],
    )


# What is on one tile or crosses to another, by a name, and its step's cycles on the base target.
STEPS = {
    # 600 words in two fragments to tile 1.
    "exchange": (EXCHANGE, [copies([0, 2], [1, 1], [0], [0, 1200], run_of(300))]),
    "on the tile": (EXCHANGE, [copies([1], [1], [0], [400], run_of(200))]),
    "stream": (STREAM_IN, [copies([0], [0], [0], [0], run_of(10_000))]),
    "half": (COMPUTE, [dot(F16, F16)]),
    "mixed": (COMPUTE, [dot(F16, F32)]),
    "float": (COMPUTE, [dot(F32, F32)]),
    # 64 rows of one block of [32, 16]: 46 + 21 + 46 + 131 + 64 + 6 x (17 + 27 + 4 x 8 - 5).
    "quarter": (COMPUTE, [(registry.QUARTER_PRODUCT, [0, 0], [[0], [1], [64], [32], [16], *[[0]] * 5])]),
    "exp": (COMPUTE, [exp_vertices([0], [1200])]),
}

CHANGES = {
    # field: (value, {step: cycles more})
    "exchange_bytes_per_cycle": (8, {"exchange": 300 - 600}),
    "fragment_cycles": (5, {"exchange": 2 * (5 - 3)}),
    "exchange_fixed_cycles": (50, {"exchange": 50 - 30}),
    "sync_cycles": (200, {"exchange": 200 - 117}),
    "memcpy_bytes_per_cycle": (4, {"on the tile": 200 - 100}),
    # 40,000 bytes of a link of 1.4 GB/s at 1.325 GHz are 37,858 cycles.
    "host_bytes_per_second": (2.8e9, {"stream": 18_929 - 37_858}),
    "host_fixed_cycles": (700, {"stream": 100}),
    "clock_hz": (2.65e9, {"stream": 75_715 - 37_858}),
    # A unit's weights are 32 B: 512 or 256 B at 16 B a cycle.
    "weight_load_bytes_per_cycle": (16, {"half": 32 - 64, "mixed": 2 * (16 - 32), "float": 32 - 64,
                                         "quarter": 32 - 64}),
    # 16 columns on 8 units are two passes, on 16 one. A pass: 18 + 7 + its weights + its rows.
    "fp16_in_fp16_out_conv_units": (8, {"half": 2 * (25 + 32 + 372) - (25 + 64 + 372)}),
    "fp16_in_fp32_out_conv_units": (16, {"mixed": (25 + 64 + 372) - 2 * (25 + 32 + 372)}),
    "fp8_in_fp16_out_conv_units": (8, {"quarter": 2 * (46 + 131 + 32 + 426) - (46 + 131 + 64 + 426)}),
    "fp32_in_fp32_out_conv_units": (8, {"float": 2 * (25 + 32 + 1200) - (25 + 64 + 1200)}),
    # 64 rows are 22 or 21 for each of 3: 37 + 4 x 19 - 7 = 106; fp32 zeroing 46 + 8 x 19 + 2 + 8 x 22 = 376. The
    # vertex's own 6 x 7 is 3 x 7. exp of 400 a worker: 200 loops of 6.
    "workers": (3, {
        "half": 3 * 7 + max(3 * 106, 3 * 102 + 14) - (42 + 372),
        "mixed": 3 * 7 + 2 * max(3 * 106, 3 * 102 + 14) - (42 + 2 * 372),
        "float": 3 * 7 + max(3 * 376, 3 * 360 + 14) - (42 + 1200),
        # The supervisor's loops take 2 w + 9, 6 w + 10 and 20 w + 11; 22 or 21 rows: 115 or 111 cycles.
        "quarter": (15 + 28 + 71 + max(3 * 115, 3 * 111 + 14)) - (21 + 46 + 131 + 426),
        "exp": 3 * (33 + 200 * 6) - 6 * (33 + 100 * 6),
    }),
    # What costs no cycles of a program that is there already.
    "fragment_price": (40.0, {}), "bytes_per_tile": (1 << 20, {}), "executable_bytes": (1 << 20, {}), "name": ("x", {}),
    "link_bytes_per_second": (1e9, {}), "streaming_bytes_per_second": (1e9, {}), "tiles": (8, {}),
}  # fmt: skip


def test_every_field_has_a_case():
    assert set(CHANGES) == {f.name for f in dataclasses.fields(Target)}


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_changes_what_it_says(field):
    value, changes = CHANGES[field]
    for name, (kind, groups) in STEPS.items():
        program = program_of(kind, groups, BASE)
        (before,), (after,) = retimed(program), retimed(program, **{field: value})
        assert after.total - before.total == changes.get(name, 0), name


# ---- three workers instead of six: every vertex class, by the formulas with 3 for 6 ----

HALF_THE_WORKERS = Target("three workers", tiles=1, bytes_per_tile=1 << 24, workers=3)
INDICES = np.zeros(12, np.int32)  # four for each of three

WORKERS = {
    "tanh": (lambda x: tf.tanh(x), [zeros(600)], 3 * (17 + 100 * 12) + 9 + 11),
    "add": (lambda x, y: x + y, [zeros(600), zeros(600)], 3 * (29 + 100 * 3) + 11),
    "scalar": (lambda x: x * 3.0, [zeros(600)], 3 * (20 + 100 * 2) + 11),
    "bias": (lambda x, b: x + b, [zeros(96, 16), zeros(16)], 13 + 3 * (17 + 5 + 16 * (3 + 2 * 32 + 5))),
    "scale rows": (lambda x, b: x * b, [zeros(96, 16), zeros(96, 1)], 3 * (15 + 32 * (7 + 3 * 8)) + 11),
    "cast": (lambda x: tf.cast(x, "float16"), [zeros(600)], 12 + 3 * (18 + 19 + 50 * 2)),
    "select": (lambda p, x, y: tf.where(p, x, y), [zeros(600, dtype="bool"), zeros(600), zeros(600)],
               11 + 3 * (5 + 6 + 5 * 200)),
    "one sum": (lambda x: tf.reduce_sum(x), [zeros(1200)], 11 + 3 * (17 + 2 * 300)),
    "rows": (lambda x: tf.reduce_sum(x, 1), [zeros(12, 100)], 11 + 3 * (17 + 12 * 4 + 4 * 50)),
    "columns": (lambda x: tf.reduce_max(x, 0), [zeros(50, 24)], 11 + 3 * (16 + 4 * (3 + 8 + 3 + 49))),
    "ReduceAdd": (lambda x: tf.reduce_sum(x, 0), [zeros(4, 96)], 33 + 3 * (20 + (4 + 8) * 8)),
    "gather": (lambda t, i: tf.gather(t, i), [zeros(100, 16), INDICES], 3 * (30 + 4 * (19 + 2 * 8))),
    "scatter": (lambda t, i, u: tf.tensor_scatter_nd_add(t, i[:, None], u), [zeros(100, 16), INDICES, zeros(12, 16)],
                3 * (32 + 4 * (12 + 4 * 15))),
    "pooling": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [zeros(1, 8, 8, 4)],
                13 + 3 * (20 + 13 * 2 + 6 * 2 * (4 + 3 * 4))),
    "dynamic slice": (lambda x, i: tf.slice(x, [i, 0], [3, 24]), [zeros(10, 24), zeros(dtype="int32")],
                      25 + 3 * (39 + 3 * (24 + 2 * 4))),
    "integers": (lambda a, b: a @ b, [zeros(5, 9, dtype="int32"), zeros(9, 6, dtype="int32")],
                 11 + 3 * (17 + 10 * 9 * 14)),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKERS)
def test_three_workers(name):
    fn, args, want = WORKERS[name]
    assert want in [cycles for _, cycles in vertices(fn, *args, target=HALF_THE_WORKERS)]


def test_sorting_with_three_workers():
    # 12 lines of 64: twice the turns, each of them half as long.
    group = GroupView(registry.SORT, 1, np.array([1, 0, 0, 0, 0, 4]), [np.array([v]) for v in (0, 12, 64, 0, 0)])
    six, three = (
        registry.MODELS[registry.SORT].cycles(group, dataclasses.replace(BASE, workers=w)).item() for w in (6, 3)
    )
    assert six == three == 2 * 6 * 8 * (19 * 64 * 6 + 6 * 64 + 2)


def test_philox_with_three_workers():
    group = GroupView(registry.PHILOX, 1, np.array([1, 1, 1]), [np.array([v]) for v in (0, 0, 48, 0, 32)])
    rates = dataclasses.replace(BASE, workers=3)
    assert registry.MODELS[registry.PHILOX].cycles(group, rates).tolist() == [11 + 3 * (24 + 4 * 10 * 24)]


def test_reduce_add_of_halves_with_three_workers():
    columns = [np.array([v]) for v in (0, 4, 96, 0, 1 << 16)]
    group = GroupView(registry.REDUCE, 1, np.array([2, 0b10, OPS["add"], F16, 0]), columns)
    rates = dataclasses.replace(BASE, workers=3)
    assert np.broadcast_to(registry.MODELS[registry.REDUCE].cycles(group, rates), 1).tolist() == [
        33 + 3 * (20 + 13 * 4)
    ]
