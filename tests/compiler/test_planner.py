"""The planner against a search over every split, priced here one by one; what it promises against what is charged."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_keras.compiler import compile_module
from ipu_keras.compiler.plan.product import Product, grains, plans
from ipu_keras.compiler.plan.reduction import reduce_cost
from ipu_keras.compiler.plan.traffic import score
from ipu_keras.profile.cycles import step_cycles
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.amp_model import amp_of, product_cycles, transpose_cycles
from ipu_runtime.program import EXCHANGE
from tests.harness import hlo_of
from tests.profile.programs import zeros

SIZE = {"f16": 2, "f32": 4}


def carry(nbytes, runs, per_byte, size, target):
    """Bytes on the wire, and three slots for each run; or one run, put in order at bytes x 5/4 / min(8, size)."""
    return nbytes * per_byte + min(target.fragment_cycles * runs, target.fragment_price + nbytes * 5 / 4 / min(8, size))


def price(p, target, groups, rows, outs, channels):
    """(score, bytes, exchange, vertex) of a matrix product cut so often in groups, rows, output and input channels."""
    n_block, c_block = grains(p.dtype, p.partials, target)
    g, m = math.ceil(p.groups / groups), math.ceil(p.outs[0] / rows)
    n = min(p.oc, math.ceil(math.ceil(p.oc / n_block) / outs) * n_block)
    c = min(p.ic, math.ceil(math.ceil(p.ic / c_block) / channels) * c_block)
    size, word = SIZE[p.dtype], 1 / target.exchange_bytes_per_cycle
    # Cut channels make each row a run; of rows that come turned, cut rows make each channel one. Weights likewise.
    runs_in = g * ((c if rows > 1 else 1) if p.turned[0] else (m if channels > 1 else 1))
    runs_w = g * ((n if channels > 1 else 1) if p.turned[1] else (c if outs > 1 else 1))
    exchange = target.sync_cycles + target.exchange_fixed_cycles
    exchange += (1 - 1 / outs) * carry(g * m * c * size, runs_in, word / (2 - outs % 2), size, target)
    exchange += (1 - 1 / rows) * carry(g * c * n * size, runs_w, word, size, target)
    amp = amp_of(target, p.dtype, p.partials)
    methods = ["amp", "hmac"] + ["outer"] * (p.ic == 1 and not p.turned[0])
    if p.dtype == "f16" and p.ic == p.oc == 1 and p.groups % 4 == 0 and g % 4 == 0 and not any(p.turned):
        methods.append("vmac")
    vertex = min(int(product_cycles(method, 1, m, (1, 1, 1), c, n, g, amp)) for method in methods)
    if p.turned[0]:
        vertex += g * int(transpose_cycles(c, m, p.dtype, target.workers))
    if p.turned[1]:
        vertex += g * int(transpose_cycles(n, c, p.dtype, target.workers))
    partial = SIZE[p.partials]
    reduce, code, results = (float(v) for v in reduce_cost(np.array(channels), np.array(g * m * n), partial, target))
    if p.dtype != p.partials:  # the results become fp16: 2 cycles for four
        reduce += 12 + 6 * (18 + 19 + 2 * math.ceil(math.ceil(results / 6) / 4))
    nbytes = g * (m * c + c * n) * size + g * m * n * partial * (2 if channels > 1 else 1)
    return score(exchange + vertex + reduce, code, target), nbytes, exchange, vertex


def every_split(p, target):
    n_block, c_block = grains(p.dtype, p.partials, target)
    most = (p.groups, p.outs[0], math.ceil(p.oc / n_block), math.ceil(p.ic / c_block))
    counts = itertools.product(*(range(1, min(n, target.tiles) + 1) for n in most))
    return [each for each in counts if math.prod(each) <= target.tiles]


def product(dtypes, groups, m, k, n, turned=(False, False)):
    return Product(*dtypes, groups, 1, k, n, (m,), (m,), (1,), True, turned)


DTYPES = [("f16", "f16"), ("f16", "f32"), ("f32", "f32")]
products = st.builds(
    product, st.sampled_from(DTYPES), st.sampled_from([1, 1, 1, 2, 3, 4]), st.integers(1, 48), st.integers(1, 48),
    st.integers(1, 48), st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip


@given(products, st.integers(4, 16))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_split_is_cheaper_than_the_plan(p, tiles):
    target = Target("few", tiles=tiles, bytes_per_tile=1 << 20)
    best = plans(p, target)[0]
    mine = price(p, target, best.parts.groups, best.parts.outer, best.parts.oc, best.parts.ic)
    assert (best.exchange, best.vertex, best.tile_bytes) == (round(mine[2]), mine[3], mine[1])
    splits = {split: price(p, target, *split)[0] for split in every_split(p, target)}
    # Cut once more without shorter pieces, input channels give their sums to more tiles to add up: 3 % at most.
    same = [cost for (*_, channels), cost in splits.items() if channels == best.parts.ic]
    assert mine[0] <= min(same) + 1 and mine[0] <= 1.03 * min(splits.values())


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize(("groups", "ic", "oc"), [(1, 40, 20), (3, 5, 70), (8, 1, 1)])
def test_no_split_of_a_convolution_is_cheaper(dtypes, groups, ic, oc, monkeypatch):
    p = Product(*dtypes, groups, 2, ic, oc, (8, 9), (6, 7), (3, 3))
    target = Target("few", tiles=11, bytes_per_tile=1 << 20)
    n_block, c_block = grains(*dtypes, target)
    counts = (groups, 2, 6, 7, math.ceil(oc / n_block), math.ceil(ic / c_block), 3)
    best = plans.__wrapped__(p, target)[0]
    monkeypatch.setattr("ipu_keras.compiler.plan.product._axes", lambda p, t: [np.arange(1, n + 1) for n in counts])
    every = plans.__wrapped__(p, target)[0]
    assert score(best.cycles, best.reduce_code, target) <= 1.03 * score(every.cycles, every.reduce_code, target)
    assert best.fits and best.exchange >= 117 + 30 and best.vertex * 11 * target.macs_per_cycle(*dtypes) >= p.macs


@given(products, st.integers(4, 16), st.integers(256, 8192))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_plans_keep_to_the_memory_or_need_the_least(p, tiles, nbytes):
    target = Target("small", tiles=tiles, bytes_per_tile=nbytes)
    found = plans(p, target, 0.5)
    priced = [price(p, target, *split) for split in every_split(p, target)]
    fitting = [cost for cost, size, *_ in priced if size <= 0.5 * nbytes]
    for plan in found:
        assert plan.fits == (plan.tile_bytes <= 0.5 * nbytes) == bool(fitting)
    best = found[0]
    if fitting:
        parts = best.parts
        assert price(p, target, parts.groups, parts.outer, parts.oc, parts.ic)[0] <= 1.03 * min(fitting)
    else:
        assert best.tile_bytes == min(size for _, size, *_ in priced)


@given(products, st.integers(2, 8), st.integers(1, 1000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_more_tiles_or_memory_are_never_dearer(p, tiles, kilobytes):
    # Every split of the smaller chip is one of the larger chip, at the same price.
    def best(count, room):
        target = Target("any", tiles=count, bytes_per_tile=room)
        plan = plans(p, target)[0]
        return plan.fits, score(plan.cycles, plan.reduce_code, target)

    for smaller, larger in (
        (best(tiles, 1 << 20), best(2 * tiles, 1 << 20)),
        (best(tiles, 1024 * kilobytes), best(tiles, 2048 * kilobytes)),
    ):
        if smaller[0]:
            assert larger[0] and larger[1] <= smaller[1] + 1


@given(st.builds(product, st.sampled_from(DTYPES), st.integers(1, 64), st.integers(1, 8192), st.integers(1, 8192),
                 st.integers(1, 8192)), st.sampled_from([1, 64, 1472]))  # fmt: skip
@settings(max_examples=15, deadline=None, derandomize=True)
def test_no_plan_beats_the_peak_rate(p, tiles):
    target = Target("any", tiles=tiles, bytes_per_tile=1 << 40)
    for plan in plans(p, target):
        assert math.prod(plan.parts) <= tiles
        assert plan.vertex * tiles * target.macs_per_cycle(p.dtype, p.partials) >= p.macs


def test_adding_up_partial_sums():
    # 4 partial sums of 96 fp32: each of 4 tiles gets 3 x 24 words in 3 fragments, then adds 4 blocks of 24.
    target = Target()
    cycles, code, block = reduce_cost(np.array(4), np.array(96), 4, target)
    # Its own 24 are copied beside them, at 8 B a cycle.
    assert cycles == 3 * 24 + 3 * 3 + 117 + 30 + 24 * 4 / 8 + 33 + 6 * (20 + (4 + 8) * 1)
    assert (code, block) == (3 * 12, 24)
    assert reduce_cost(np.array(1), np.array(96), 4, target) == (0, 0, 96)


# ---- cost = charge ----


def charged(fn, *args, tiles=16, state=None, **options):
    """(the plan, cycles charged before its vertex, of its vertex, after it, and of that what arranges)."""
    target = Target("few", tiles=tiles, bytes_per_tile=1 << 20)
    exe = compile_module(hlo_of(fn, *args)[0], target=target, options=options, state=state)
    header, program = exe.program.header, exe.program
    ((label, number),) = header["products"]
    before = vertex = after = arranging = 0
    for (kind, first, last, _), step in zip(program.steps.tolist(), step_cycles(program), strict=True):
        if not {header["group_labels"][i] for i in range(first, last)} == {label}:
            continue
        codelets = {program.group(i).codelet for i in range(first, last)}
        if codelets & {registry.DOT, registry.CONV}:
            vertex += step.total
        elif not vertex:
            before += step.total
        else:
            after += step.total
            arranging += step.compute * (kind == EXCHANGE)
    return header["plans"][number]["plans"][0], before, vertex, after, arranging


def dot(a, b):
    return tf.tanh(tf.tanh(a) @ tf.tanh(b))


def conv(x, w):
    return tf.tanh(tf.nn.conv2d(tf.tanh(x), tf.tanh(w), 1, "SAME"))


def weights_in_two_places(x, w):
    return tf.tanh(tf.tanh(x) @ w), tf.exp(w)


CHARGES = {
    "one block": (dot, [zeros(16, 16), zeros(16, 16)]),
    "rests": (dot, [zeros(40, 33), zeros(33, 48)]),
    "deep": (dot, [zeros(8, 400), zeros(400, 16)]),
    "large": (dot, [zeros(64, 600), zeros(600, 64)]),
    "tall": (dot, [zeros(300, 64), zeros(64, 64)]),
    "fp16": (dot, [zeros(64, 600, dtype="float16"), zeros(600, 64, dtype="float16")]),
    "transposed": (lambda a, b: tf.tanh(tf.matmul(tf.tanh(a), tf.tanh(b), transpose_a=True, transpose_b=True)),
                   [zeros(48, 40), zeros(32, 48)]),
    "convolution": (conv, [zeros(2, 12, 12, 16), zeros(3, 3, 16, 32)]),
    "convolution, split sums": (conv, [zeros(1, 4, 4, 64), zeros(3, 3, 64, 16)]),
    "convolution fp16": (conv, [zeros(2, 12, 12, 16, dtype="float16"), zeros(3, 3, 16, 32, dtype="float16")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHARGES)
def test_what_is_planned_is_what_is_charged(name):
    fn, args = CHARGES[name]
    plan, before, vertex, after, arranging = charged(fn, *args)
    # Operands come by the very exchange that was priced, and the vertex is the planned one.
    assert (before, vertex) == (plan["exchange"], plan["vertex"])
    # Where the sums go is decided later: what is put in order for it is on top.
    assert 0.99 * plan["reduce"] <= after <= 1.01 * plan["reduce"] + 2 * 3 + arranging


def test_a_weight_that_lies_for_another_use_is_priced_where_it_lies():
    plan, before, vertex, *_ = charged(weights_in_two_places, zeros(24, 64), zeros(64, 40), state={1: None})
    assert (before, vertex) == (plan["exchange"], plan["vertex"])
