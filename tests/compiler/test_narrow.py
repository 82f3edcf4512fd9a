"""64-bit integers in 32 bits where they surely fit: the same numbers, and none where they might not."""

import operator

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from ipu_keras.compiler.passes import run_passes
from ipu_keras.compiler.passes.bounds import Bounds
from ipu_keras.compiler.passes.narrow import narrow_values
from ipu_keras.graph.hlo_proto import import_module
from ipu_keras.graph.ir import Graph, Node
from tests.harness import check, hlo_of

rng = np.random.default_rng(5)
WIDE = {"s64", "u64"}


def wide_work(fn, *args):
    """Operations of 64 bits that a program is left with, by opcode; its results may be wide."""
    graph, bad = import_module(hlo_of(fn, *args)[0])
    assert not bad
    graph = run_passes(graph, fused=False)
    return sorted(
        {
            node.op
            for node in graph.nodes
            if any(v.dtype in WIDE for v in (*node.inputs, *node.results)) and node.op not in ("constant", "convert")
        }
    )


def parameter(dtype):
    return Node("parameter", [], [((3,), dtype)]).out


def constant(*numbers, dtype="s64"):
    return Node("constant", [], [((len(numbers),), dtype)], {"value": np.array(numbers)}).out


INTERVALS = {
    "add": ((2, 7), (-1, 5), (1, 12)),
    "subtract": ((2, 7), (-1, 5), (-3, 8)),
    "multiply": ((-2, 7), (-3, 5), (-21, 35)),
    "maximum": ((2, 7), (-1, 5), (2, 7)),
    "minimum": ((2, 7), (-1, 5), (-1, 5)),
    "divide": ((-6, 7), (0, 2), (-7, 7)),
    "remainder": ((-6, 7), (0, 2), (-7, 7)),
}


@pytest.mark.parametrize("op", INTERVALS)
def test_the_interval_of_a_result(op):
    first, second, want = INTERVALS[op]
    node = Node(op, [constant(*first), constant(*second)], [((2,), "s64")])
    assert Bounds().of(node.out) == want


def test_what_may_wrap_may_be_anything():
    most = constant(0, 2**31 - 1, dtype="s32")
    everything = (-(2**31), 2**31 - 1)
    for op, other in (("add", constant(0, 1, dtype="s32")), ("multiply", most), ("negate", None)):
        inputs = [most] if other is None else [most, other]
        found = Bounds().of(Node(op, inputs, [((2,), "s32")]).out)
        assert found == ((-(2**31) + 1, 0) if op == "negate" else everything)
    least = constant(-(2**31), 0, dtype="s32")
    assert Bounds().of(Node("negate", [least], [((2,), "s32")]).out) == everything
    assert Bounds().of(Node("subtract", [parameter("u32")] * 2, [((3,), "u32")]).out) == (0, 2**32 - 1)
    assert Bounds().of(Node("convert", [parameter("f32")], [((3,), "s64")]).out) == (-(2**63), 2**63 - 1)
    assert Bounds().of(Node("clamp", [constant(0), parameter("s64"), constant(9)], [((1,), "s64")]).out) == (0, 9)


EDGES = np.array([0, 1, 4, 5, 6, -1, 2**31 - 1, 2**31, 2**31 + 5, 2**40, -(2**31), -(2**31) - 1, 2**62, -(2**62)])


def test_labels_against_classes():
    def one_hot(labels):
        return tf.one_hot(tf.cast(labels, tf.int64), 6)

    floats = np.concatenate([EDGES, [np.nan, np.inf, -np.inf, 3.7, -0.2]]).astype(np.float32)
    assert wide_work(one_hot, floats) == []
    check(one_hot, floats)
    check(one_hot, EDGES)
    # A class at the limit itself: 2**31 has become the same number as it, so here nothing is narrow.
    for limit in (2**31 - 1, -(2**31)):
        for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
            check(lambda x: compare(tf.cast(x, tf.int64), tf.constant(limit, tf.int64)), floats)  # noqa: B023
            check(lambda x: compare(tf.cast(x, tf.int64), tf.constant(limit // 2, tf.int64)), floats)  # noqa: B023
            check(lambda x: compare(tf.constant(limit // 2, tf.int64), tf.cast(x, tf.int64)), floats)  # noqa: B023


def test_the_place_of_the_largest():
    def places(x):
        return tf.argmax(x, -1), tf.cast(tf.argmin(x, 0), tf.float32), tf.argmax(x, 1, tf.int32)

    x = rng.integers(0, 9, (7, 40)).astype(np.float32)
    assert wide_work(places, x) == []
    check(places, x)
    # Of wide numbers the numbers stay wide, and so does the region that compares them.
    numbers = rng.choice(EDGES, (5, 12))
    assert wide_work(lambda v: tf.argmax(v, -1), numbers) == ["reduce"]
    check(lambda v: (tf.argmax(v, -1), tf.argmin(v, 1)), numbers)


def test_arithmetic_at_the_limits():
    small = np.array([2**31 - 1, -(2**31), 0, 1, -1, 77], np.int32)

    def adds(x):
        wide = tf.cast(x, tf.int64)
        return wide + 1, wide - 1, -wide, wide * wide, tf.abs(wide), wide // 3, tf.math.floormod(wide, 7)

    check(adds, small)
    check(lambda x: tf.cast(x, tf.int64) * 1000 + 5, np.arange(-128, 128).astype(np.int8))
    assert wide_work(lambda x: tf.cast(x, tf.int64) * 1000 + 5, np.int8([1, 2])) == []
    assert "add" in wide_work(lambda x: tf.cast(x, tf.int64) + 1, small)
    check(lambda x: tf.cast(tf.cast(x, tf.int64) * 3, tf.uint32), np.arange(-5, 5).astype(np.int8))
    check(lambda x: tf.clip_by_value(x, tf.constant(-9, tf.int64), tf.constant(9, tf.int64)) * 2, EDGES)
    check(lambda x: tf.where(tf.cast(x, tf.int64) > 3, tf.constant(2**40, tf.int64), tf.cast(x, tf.int64)), small)


def test_indices_are_narrow_beside_wide_data():
    table = rng.integers(-(2**60), 2**60, (9, 3))
    at = np.array([[0], [8], [3], [1], [20]], np.int32)

    def gather(t, i):
        places = tf.cast(i, tf.int64)
        return tf.gather_nd(t, places), gen_xla_ops.xla_dynamic_slice(t, places[2:4, 0], tf.constant([2, 2], tf.int64))

    check(gather, table, at)
    assert wide_work(gather, table, at) == ["dynamic-slice", "gather"]  # for their data
    assert wide_work(gather, table.astype(np.float32), at) == []


def test_in_the_body_of_a_loop():
    def count(x):
        return tf.while_loop(
            lambda i, t: i < 5,
            lambda i, t: (i + 1, t + tf.reduce_sum(tf.one_hot(tf.cast(x, tf.int64) + i, 4))),
            (tf.constant(0, tf.int64), tf.constant(0.0)),
        )

    check(count, np.array([0.0, 2.0, -1.0], np.float32))


def test_an_operation_without_a_result_may_stand_between():
    # Such as one that hands a value to the host.
    ids, sink = constant(3, 8).node, Node("enqueue", [parameter("f32")], [])
    graph = Graph("g")
    graph.nodes = [ids, sink]
    graph.outputs = [ids.out]
    assert [n.op for n in narrow_values(graph).nodes if n.op == "enqueue"] == ["enqueue"]


@pytest.mark.parametrize("dtype", ["s32", "s64"])
def test_a_long_chain(dtype):
    graph = Graph("g")
    first = constant(1, 2, dtype=dtype)
    graph.nodes = [first.node]
    last = first
    for _ in range(3000):
        graph.nodes.append(Node("add", [last, first], [((2,), dtype)]))
        last = graph.nodes[-1].out
    wide = Node("convert", [last], [((2,), "s64")])
    graph.nodes += [wide, Node("negate", [wide.out], [((2,), "s64")])]
    graph.outputs = [graph.nodes[-1].out]
    found = narrow_values(graph)
    assert [v.dtype for n in found.nodes if n.op in ("add", "negate") for v in n.results] == ["s32"] * 3001
