"""Collectives over the shards of one replica."""

import numpy as np
import pytest

from ipu_keras.ops import within_replica_ops
from tests.api.ops.device import gradients, run, same

RNG = np.random.default_rng(4)
SHARDS = [RNG.normal(size=5).astype(np.float32) for _ in range(3)]
REDUCED = {"ADD": np.add, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


def test_all_gather():
    uneven = [SHARDS[0], SHARDS[1][:2]]
    same(run(lambda a, b: within_replica_ops.all_gather([a, b]), *uneven), [np.concatenate(uneven)] * 2, 0, 0)
    rows = [s[None] for s in SHARDS]
    same(run(lambda *s: within_replica_ops.all_gather(s, axis=1), *rows), [np.concatenate(rows, 1)] * 3, 0, 0)


@pytest.mark.parametrize("op", REDUCED)
def test_reductions(op):
    total = REDUCED[op].reduce(np.array(SHARDS, np.float64))
    name = f"COLLECTIVE_OP_{op}"
    same(run(lambda *s: within_replica_ops.all_reduce(list(s), name), *SHARDS), [total] * 3)
    parts = np.pad(total, (0, 1)).reshape(3, 2)
    same(run(lambda *s: within_replica_ops.reduce_scatter(list(s), name), *SHARDS), list(parts))


def test_truth_values_and_gradients():
    bits = [np.array([True, True, False]), np.array([True, False, False])]
    for op, function in (("AND", np.logical_and), ("OR", np.logical_or)):
        found = run(lambda a, b, op=op: within_replica_ops.all_reduce([a, b], f"COLLECTIVE_OP_LOGICAL_{op}"), *bits)
        np.testing.assert_array_equal(found, [function(*bits)] * 2)
    _, slopes = gradients(lambda *s: within_replica_ops.reduce_scatter(list(s), "COLLECTIVE_OP_ADD")[2], *SHARDS)
    same(slopes, [np.array([0, 0, 0, 0, 1.0])] * 3)


def test_refusals():
    for call, text in (
        (lambda: within_replica_ops.all_reduce(SHARDS, "COLLECTIVE_OP_MEAN"), "op is"),
        (lambda: within_replica_ops.all_reduce([SHARDS[0], SHARDS[1][:2]], "COLLECTIVE_OP_ADD"), "one shape"),
        (lambda: within_replica_ops.reduce_scatter([s[None] for s in SHARDS], "COLLECTIVE_OP_ADD"), "one dimension"),
        (lambda: within_replica_ops.all_gather([]), "input_shards"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
