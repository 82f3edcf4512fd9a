"""The whole of a profile: what is added up elsewhere adds up, and what is written down is what the schema says.

Oracles are sums made here, one row or one variable at a time, or arithmetic on the shapes of the model.
"""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import hlo
from ipu_keras.compiler import compile_module
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.profile.layers import layer_costs, work_by_group
from ipu_keras.profile.liveness import categories
from ipu_keras.profile.schema import CATEGORIES, FIELDS
from ipu_keras.target import Target
from ipu_runtime import program as runtime_program
from ipu_runtime.program import COMPUTE, EXCHANGE
from tests.harness import hlo_of
from tests.profile.programs import two_layers

B, I, H, O = 24, 40, 33, 10  # noqa: E741  batch, inputs, hidden, outputs
SMALL = Target("small", tiles=12)
rng = np.random.default_rng(3)


def floats(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


ARGS = [floats(B, I), floats(I, H), floats(H), floats(H, O)]


NAMES = LayerNames(
    {"IPU.1.": "net/dense", "IPU.2.": "net/head"},
    {1: ("net/dense/kernel", "net/dense"), 2: ("net/dense/bias", "net/dense"), 3: ("net/head/kernel", "net/head")},
)


@pytest.fixture(scope="module")
def exe():
    module = hlo_of(two_layers, *ARGS)[0]
    return compile_module(module, target=SMALL, layers=NAMES, state={1: 1, 2: 2, 3: 3}, name="two layers")


def profile_of(fn, *args, **options):
    return compile_module(hlo_of(fn, *args)[0], **options).profile()


# ---- what adds up ----


def test_layers_and_phases_are_the_whole(exe):
    profile = exe.profile()
    assert sum(cost.cycles for cost in profile.layers) == pytest.approx(profile.cycles, rel=1e-9)
    assert sum(profile.phases.values()) == profile.cycles
    for name in ("flops", "elementwise_ops"):
        assert sum(getattr(cost, name) for cost in profile.layers) == getattr(profile, name) > 0
    vertices = [v for (kind, a, b, _) in exe.program.steps.tolist() if kind == COMPUTE for v in range(a, b)]
    rows = sum(exe.program.group(i).rows for i in vertices)
    assert rows == profile.counts["vertices"] == sum(c.vertices for c in profile.layers)
    assert rows == sum(one.vertices for one in profile.vertex_types)
    own = sum(one.cycles for one in profile.vertex_types)
    assert own + profile.rearrangement_cycles == pytest.approx(profile.phases["compute"])


def test_what_is_sent_is_received(exe):
    exchanged = 0
    for (kind, first, last, _), step, times in zip(
        exe.program.steps.tolist(), exe.profile().steps, exe.profile().times, strict=True
    ):
        if kind != EXCHANGE:
            continue
        into, out = np.zeros(SMALL.tiles, int), np.zeros(SMALL.tiles, int)
        for i in range(first, last):
            g = exe.program.group(i)
            for row in range(g.rows):
                col = [int(c[row if len(c) > 1 else 0]) for c in g.columns]
                nbytes = int(g.params[1]) * math.prod(col[4::3])
                if col[0] != col[1]:
                    out[col[0]] += nbytes
                    into[col[1]] += nbytes
        assert into.sum() == out.sum() == step.bytes_moved == sum(step.moved)
        exchanged += times * into.sum()
    assert exchanged == sum(cost.exchange_bytes for cost in exe.profile().layers) > 0


def test_memory_of_layers_and_counts(exe):
    profile, program = exe.profile(), exe.program
    held = {}
    for category, _, _, cell, n, label in program.variables.tolist():
        layer = program.header["labels"][label].split("|")[0]
        key = (layer, runtime_program.CATEGORIES[category])
        held[key] = held.get(key, 0) + sum(size for _, _, size in program.cells[cell : cell + n].tolist())
    assert {(c.layer, k): v for c in profile.layers for k, v in c.memory.items()} == held
    # Kernel and bias, in 8-byte words on each tile.
    kernel = {c.layer: c.memory["variable"] for c in profile.layers if "variable" in c.memory}
    assert 4 * (I * H + H) <= kernel["net/dense"] <= 4 * (I * H + H) + 2 * 8 * SMALL.tiles
    kinds = program.steps[:, 0].tolist()
    assert profile.counts["variables"] == len(program.variables)
    assert profile.counts["compute_sets"] == kinds.count(COMPUTE) and profile.counts["steps"] == len(kinds)
    assert profile.counts["exchanges"] == kinds.count(EXCHANGE)
    state = sum(one.state_bytes for one in profile.vertex_types)
    assert state == profile.memory.fixed["vertexInstanceState"].sum()
    code = sum(one.code_bytes for one in profile.vertex_types)
    assert code == profile.memory.fixed["vertexCode"].sum() > 0


# ---- operations ----


def test_flops_of_dense_layers(exe):
    layers = {cost.layer: cost for cost in exe.profile().layers}
    # Forward, and the gradient of the weights; the first layer's input has none, the second's has.
    assert layers["net/dense"].flops == 2 * (2 * B * I * H)
    assert layers["net/head"].flops == 3 * (2 * B * H * O)
    forward = profile_of(lambda x, w: x @ w, floats(B, I), floats(I, H))
    assert forward.flops == 2 * B * I * H and forward.elementwise_ops == 0
    assert forward.flops_per_second == pytest.approx(forward.flops / forward.seconds)


def test_flops_of_other_programs():
    conv = lambda x, w: tf.nn.conv2d(x, w, 1, "VALID")  # noqa: E731
    image = profile_of(conv, floats(2, 9, 9, 4), floats(3, 3, 4, 6))
    assert image.flops == 2 * (2 * 7 * 7 * 6) * (3 * 3 * 4)
    fused = profile_of(lambda x, y: tf.tanh(x * y + 1.0), floats(30, 20), floats(30, 20))
    assert (fused.flops, fused.elementwise_ops, fused.utilisation) == (0, 3 * 600, 0.0)

    def looped(n):
        fn = lambda x: tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, tf.tanh(a @ a)), [0, x])  # noqa: E731
        return profile_of(fn, np.eye(24, dtype=np.float32)).flops

    assert looped(7) == 7 * 2 * 24**3


@pytest.mark.parametrize("dtype, macs", [("float32", 16), ("float16", 32)])
def test_utilisation_nears_the_peak_and_never_passes_it(dtype, macs):
    one = Target("one", tiles=1, bytes_per_tile=1 << 24)
    small, large = (
        profile_of(lambda a, b: a @ b, floats(n, 128, dtype=dtype), floats(128, 128, dtype=dtype), target=one)
        for n in (12, 3072)
    )
    for found in (small, large):
        compute = sum(s.compute for s in found.steps if s.kind == COMPUTE)
        assert found.utilisation == pytest.approx(found.flops / (2 * macs * found.cycles))
        assert found.flops / 2 / macs <= compute
        assert all(0 <= cost.utilisation <= 1 for cost in found.layers)
    assert small.utilisation < large.utilisation < 1
    # 3,072 rows are 512 a worker: weights are loaded for a small part of the time. Streams are not the AMP's time.
    busy = sum(s.compute for s in large.steps if s.kind == COMPUTE)
    assert large.flops / 2 / macs > 0.45 * busy


def test_a_layer_in_another_one_s_shadow_is_not_used_above_its_peak():
    def two_products(x, w, y, v):
        with tf.name_scope("IPU.1."):
            a = x @ w
        with tf.name_scope("IPU.2."):
            b = y @ v
        return a, b

    args = [floats(256, 256), floats(256, 256), floats(16, 16), floats(16, 16)]
    names = LayerNames({"IPU.1.": "long", "IPU.2.": "short"}, {})
    found = profile_of(two_products, *args, target=Target("two", tiles=16), layers=names)
    layers = {cost.layer: cost for cost in found.layers}
    assert layers["short"].flops == 2 * 16**3 and layers["long"].flops == 2 * 256**3
    assert 0 < layers["short"].utilisation < layers["long"].utilisation <= 1
    # On tiles of its own the short one would add nothing to the fullest tile: none of the cycles are its.
    path = [label.split("|")[0] for label in found.program.header["labels"]]
    groups = [path[label] for label in found.program.header["group_labels"]]
    steps = [
        step._replace(by_group=[0.0 if groups[first + k] == "short" else c for k, c in enumerate(step.by_group)])
        for step, first in zip(found.steps, found.program.steps[:, 1].tolist(), strict=True)
    ]
    shadowed = {c.layer: c for c in layer_costs(found.program, steps, found.times, work_by_group(found.program))}
    assert shadowed["short"].cycles == 0 < shadowed["short"].utilisation <= 1


# ---- what no source backs ----


def test_unvalidated():
    assert profile_of(lambda x, y: x + y, floats(600), floats(600)).unvalidated == 0
    assert profile_of(lambda a, b: a @ b, floats(20, 20), floats(20, 20)).unvalidated == 0
    bits = profile_of(lambda s: tf.random.stateless_uniform([4096], s), np.array([1, 2], np.int32))
    assert 0 < bits.unvalidated < 1
    by_step = sum(s.unsourced * n for s, n in zip(bits.steps, bits.times, strict=True))
    assert bits.unvalidated == pytest.approx(by_step / bits.cycles)
    assert all(0 <= s.unsourced <= s.compute for s in bits.steps)
    # Not every tile has every codelet: code counts where it is used.
    assert sum(one.code_bytes for one in bits.vertex_types) == bits.memory.fixed["vertexCode"].sum()


def test_unvalidated_is_the_part_of_a_fused_vertex_that_has_no_source():
    one = Target("one", tiles=1, bytes_per_tile=1 << 24)
    # Shifts of 64-bit integers: 21 cycles an element of our own, an addition 11 by the tables; 100 elements a worker.
    shift = lambda x, y: tf.bitwise.left_shift(x + y, y)  # noqa: E731
    x = np.arange(600)
    found = profile_of(shift, x, x, target=one, state={0: None, 1: None})
    (step,) = [s for s in found.steps if s.kind == COMPUTE and s.unsourced]
    loops = step.unsourced / 6 / 100
    assert loops == int(loops) and loops % 21 == 0 and 0 < step.unsourced < step.compute


# ---- liveness and categories ----


def brute_force(program):
    """Bytes by [tile, step] and category, one cell at a time."""
    table = np.zeros((len(runtime_program.CATEGORIES[:5]), program.tile_count, len(program.steps)), np.int64)
    for category, first, last, cell, n, _ in program.variables.tolist():
        for tile, _, nbytes in program.cells[cell : cell + n].tolist():
            table[category, tile, first : last + 1] += nbytes
    return table


@pytest.mark.parametrize("tile", [None, 0, 7])
def test_liveness_counted_one_by_one(exe, tile):
    profile = exe.profile()
    found = profile.liveness if tile is None else profile.live_on(tile)
    tile = profile.memory.fullest_tile if tile is None else tile
    live = brute_force(exe.program).sum(0)
    fixed = sum(profile.memory.fixed.values())
    np.testing.assert_array_equal(found.total, live.sum(0) + fixed.sum())
    np.testing.assert_array_equal(found.on_tile, live[tile] + fixed[tile])
    assert found.tile == tile and found.total.max() == profile.memory.peak_bytes
    assert found.total.argmax() == profile.memory.peak_step
    assert found.largest[0].nbytes == max(t.nbytes for t in found.largest)
    at_peak = [v for v in exe.program.variables.tolist() if v[1] <= profile.memory.peak_step <= v[2]]
    assert len(found.largest) == min(20, len(at_peak))
    with pytest.raises(IndexError, match="tile 12"):
        profile.live_on(12)


@pytest.mark.parametrize("room", [1 << 19, 1])
def test_categories_are_what_a_tile_holds_when_it_is_fullest(exe, room, monkeypatch):
    from ipu_keras.profile import liveness

    monkeypatch.setattr(liveness, "ROOM", room)  # 1: one tile at a time
    memory = exe.profile().memory
    found = {c.name: c for c in categories(exe.program, memory)}
    assert set(found) == set(CATEGORIES)
    np.testing.assert_array_equal(sum(c.by_tile for c in found.values()), memory.by_tile)
    table = brute_force(exe.program)
    fullest = table.sum(0).argmax(1)
    for number, name in enumerate(runtime_program.CATEGORIES[:5]):
        want = table[number, np.arange(SMALL.tiles), fullest]
        np.testing.assert_array_equal(found[name].by_tile, want, name)
    assert (found["gaps"].others >= 0).all() and not found["variable"].others.any()
    assert found["activation"].others.any()


# ---- instructions ----


def test_instructions_have_to_fit_the_executable_part(exe):
    from dataclasses import asdict

    from ipu_keras import errors
    from ipu_keras.compiler.fits import check_memory

    memory = exe.profile().memory
    want = sum(memory.fixed[n] for n in ("vertexCode", "controlCode", "internalExchangeCode", "hostExchangeCode"))
    np.testing.assert_array_equal(memory.executable, want)
    assert memory.executable_limit == 208 * 1024 and memory.fits
    need = int(want.max())
    for limit, fits in ((need, True), (need - 1, False)):
        program = altered(exe.program, target={**asdict(SMALL), "executable_bytes": limit})
        if fits:
            check_memory(program)
            continue
        with pytest.raises(errors.IPUOutOfMemoryError, match="executable bytes") as caught:
            check_memory(program)
        assert (caught.value.need, caught.value.have) == (need, limit)
        assert caught.value.tile == int(want.argmax()) and f"{need:,}" in str(caught.value)
        assert "two layers" in str(caught.value) and "small" in str(caught.value)


def altered(program, target):
    """A program with another target in its header."""
    arrays = {name: getattr(program, name) for name in runtime_program.Program.ARRAYS}
    return runtime_program.Program({**program.header, "target": target}, **arrays)


# ---- as data ----

TYPES = {
    "text": lambda v: isinstance(v, str),
    "integer": lambda v: type(v) is int,
    "number": lambda v: type(v) in (int, float) and math.isfinite(v),
    "truth": lambda v: isinstance(v, bool),
    "text or number": lambda v: type(v) in (str, int, float, bool),
}


def walk(value, path, seen):
    """Every leaf of a JSON value, by the path that the schema gives it."""
    if isinstance(value, dict) and f"{path}.*" in FIELDS:
        value = {"*": list(value.values())}
        for leaf in value["*"]:
            walk(leaf, f"{path}.*", seen)
    elif isinstance(value, dict):
        for name, inner in value.items():
            walk(inner, f"{path}.{name}" if path else name, seen)
    elif isinstance(value, list):
        for inner in value:
            walk(inner, f"{path}[]", seen)
    else:
        assert path in FIELDS, f"{path} is in no table"
        assert TYPES[FIELDS[path].type](value), (path, value)
        seen.add(path)


def test_every_field_is_documented_and_there(exe, tmp_path):
    exe.profile().to_json(tmp_path / "profile.json")

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    data = json.loads((tmp_path / "profile.json").read_text(), parse_constant=refuse)
    seen = set()
    walk(data, "", seen)
    assert seen == set(FIELDS)
    assert (data["schema"], data["version"], data["name"]) == ("ipu_keras.profile", 1, "two layers")
    assert [s["number"] for s in data["steps"]] == list(range(len(exe.program.steps)))
    assert sum(s["cycles"] * s["times"] for s in data["steps"][data["loop_start"] :]) == data["cycles"]
    assert {c["category"] for c in data["memory"]["categories"]} == set(CATEGORIES)
    assert all(s["cycles"] == s["sync"] + s["compute"] + s["exchange"] for s in data["steps"])
    kinds = {s["kind"] for s in data["steps"]}
    assert {"OnTileExecute", "DoExchange", "StreamCopyIn", "StreamCopyOut", "Repeat", "EndRepeat"} == kinds
    # The longest step of a named layer is where the layer says it is.
    for cost in data["layers"]:
        steps = [s for s in data["steps"] if s["layer"] == cost["layer"]]
        assert not cost["cycles"] or cost["layer"] == "" or steps


def test_the_same_before_and_after_a_run_and_from_a_file(exe, tmp_path):
    before = exe.profile().to_dict()
    exe.run(*ARGS)
    assert exe.profile().to_dict() == before
    exe.save(tmp_path / "two.ipu")
    loaded = hlo.load(tmp_path / "two.ipu")
    assert loaded.profile().to_dict() == before
    loaded.run(*ARGS)
    assert json.dumps(loaded.profile().to_dict()) == json.dumps(before)
