"""Executable files: round trip, damage, and files that somebody wrote on purpose."""

import errno
import hashlib
import json
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import hlo
from ipu_keras.errors import ExecutableFormatError
from ipu_runtime.format import MAGIC
from ipu_runtime.program import COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT, Program
from tests.harness import hlo_of

rng = np.random.default_rng(0)
ARGS = [rng.normal(size=s).astype(np.float32) for s in ((4, 6, 6, 3), (3, 3, 3, 4), (20, 5))]
INDEX = np.array([3, 19, 3], np.int32)
NONE = np.zeros(0, np.int32)


def model(image, kernel, table, index, seed):
    with tf.GradientTape() as tape:
        tape.watch([kernel, table])
        y = tf.nn.max_pool2d(tf.nn.conv2d(image, kernel, 1, "SAME"), 2, 2, "SAME")
        z = tf.nn.softmax(tf.matmul(tf.gather(table, index), table, transpose_b=True))
        noise = tf.random.stateless_uniform((3, 20), seed)
        loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(z * noise) + tf.cast(tf.argmax(z, 1)[0], tf.float32)
    return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, [kernel, table])]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    args = [*ARGS, INDEX, np.array([1, 2], np.int32)]
    exe = hlo.compile(hlo_of(model, *args)[0], target=hlo.Target("small", tiles=32))
    path = tmp_path_factory.mktemp("exe") / "model.ipu"
    exe.save(path)
    return exe, path, args


def test_round_trip_gives_the_same_bits(saved):
    exe, path, args = saved
    loaded = hlo.load(path)
    for name in Program.ARRAYS:
        np.testing.assert_array_equal(getattr(loaded.program, name), getattr(exe.program, name))
    for a, b in zip(exe.run(*args), loaded.run(*args), strict=True):
        assert a.tobytes() == b.tobytes()
    assert loaded.profile().cycles == exe.profile().cycles


EMPTY = {
    "product": (lambda a, b: (a @ b, b @ a + 1.0), [(4, 0), (0, 4)]),
    "reduction": (lambda a: (tf.reduce_sum(a, 0), tf.reduce_max(a, 0), tf.sort(a, 0)), [(0, 4)]),
    "movement": (lambda a, b: (tf.concat([a, b], 0), tf.transpose(a), tf.gather(b, NONE)), [(0, 4), (2, 4)]),
    "loop": (lambda a: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x + 1.0), (0, a)), [(0, 4)]),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("state", [None, 0])
def test_arrays_without_elements_come_back(tmp_path, name, state):
    fn, shapes = EMPTY[name]
    args = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    module, theirs = hlo_of(fn, *args)
    exe = hlo.compile(module, target=hlo.Target("small", tiles=8), state=None if state is None else {state: None})
    exe.save(tmp_path / "model.ipu")
    loaded = hlo.load(tmp_path / "model.ipu")
    # A superstep of nothing is none: each that there is has work, and the profile knows it.
    kinds = (COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT)
    assert all(last > first for kind, first, last, _ in loaded.program.steps.tolist() if kind in kinds)
    assert loaded.profile().cycles == exe.profile().cycles
    engine = loaded.engine(strict=True)
    for param in () if state is None else (state,):
        engine.write_state(param, args[param])
        np.testing.assert_array_equal(engine.read_state(param), args[param])
    ours = engine.run({i: a[None] for i, a in enumerate(args) if i != state})
    for k, wanted in enumerate(tf.nest.flatten(theirs(*args))):
        np.testing.assert_allclose(ours[k][0], wanted, rtol=1e-5, strict=True)


def test_a_file_that_cannot_be_written_leaves_nothing(saved, tmp_path, monkeypatch):
    exe, path, _ = saved
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode  # readable by whom the user wants
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        exe.save(tmp_path / "folder")
    written = Path.write_bytes

    def full(self, data):
        written(self, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "write_bytes", full)
        exe.save(plain)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["folder", "plain"] and not plain.stat().st_size


def test_truncated_anywhere(saved, tmp_path):
    _, path, _ = saved
    raw = path.read_bytes()
    cut = tmp_path / "cut"
    for n in [0, 1, 7, 8, 15, 16, 47, 48, 49, 100, len(raw) // 2, len(raw) - 1]:
        cut.write_bytes(raw[:n])
        with pytest.raises(ExecutableFormatError):
            hlo.load(cut)


def test_altered_anywhere(saved, tmp_path):
    _, path, _ = saved
    raw = bytearray(path.read_bytes())
    bad = tmp_path / "bad"
    for at in np.random.default_rng(1).integers(0, len(raw), 60).tolist():
        changed = bytearray(raw)
        changed[at] ^= 1 << (at % 8)
        bad.write_bytes(changed)
        with pytest.raises(ExecutableFormatError):
            hlo.load(bad)


def test_other_versions_and_other_files(saved, tmp_path):
    _, path, _ = saved
    raw = path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(raw[:8] + struct.pack("<I", 99) + raw[12:])
    with pytest.raises(ExecutableFormatError, match="version 99"):
        hlo.load(other)
    other.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(ExecutableFormatError, match="not an executable"):
        hlo.load(other)
    with pytest.raises(OSError):
        hlo.load(tmp_path / "missing")


def signed(header, body):
    payload = json.dumps(header).encode() + body
    head = MAGIC + struct.pack("<II", 1, len(json.dumps(header).encode()))
    return head + hashlib.sha256(payload).digest() + payload


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("program"),
        lambda h: h["program"].pop("target"),
        lambda h: h["program"]["target"].update(tiles=-3),
        lambda h: h["program"]["target"].update(tiles="many"),
        lambda h: h["program"].update(used_bytes=1 << 60),
        lambda h: h["program"].update(slots=77),
        lambda h: h["program"]["feeds"][0].update(shape=[1 << 40, 1 << 40]),
        lambda h: h["program"]["feeds"][0].update(shape=[1]),
        lambda h: h["program"]["feeds"][0].update(dtype="f64"),
        lambda h: h["arrays"]["data"].__setitem__(2, 10**12),
        lambda h: h["arrays"]["data"].__setitem__(1, [-5]),
        lambda h: h["arrays"].pop("cells"),
        lambda h: h["program"].update(labels=5),
    ],
)
def test_a_signed_file_with_a_wrong_header(saved, tmp_path, change):
    _, path, _ = saved
    raw = path.read_bytes()
    length = struct.unpack_from("<I", raw, 12)[0]
    header = json.loads(raw[48 : 48 + length])
    change(header)
    made = tmp_path / "made"
    made.write_bytes(signed(header, raw[48 + length :]))
    with pytest.raises(ExecutableFormatError):
        hlo.load(made)


FUZZ = """
import sys, numpy as np
from ipu_runtime.engine import Engine
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.format import load
from ipu_runtime.program import Program
from ipu_runtime.validate import validate
import copy
program = load(sys.argv[1])
rng = np.random.default_rng(int(sys.argv[2]))
NUMPY = dict(f32="f4", s32="i4", s64="i8", u32="u4", u64="u8", pred="?", f16="f2")
refused = ran = 0
for trial in range(300):
    changed = copy.copy(program)
    changed._views = {}
    name = ["params", "data", "columns", "groups", "steps"][trial % 5]
    array = getattr(program, name).copy()
    at = tuple(rng.integers(0, n) for n in array.shape)
    array[at] = rng.choice([-1, 0, 1, 2, 7, 255, 65536, 2**31 - 1, -(2**31), int(array[at]) + 1, int(array[at]) - 1])
    setattr(changed, name, array)
    try:
        validate(changed)
    except ExecutableFormatError:
        refused += 1
        continue
    try:
        engine = Engine(changed, threads=1, strict=False)
    except ExecutableFormatError:
        refused += 1
        continue
    engine.run({f["param"]: np.ones([1, *f["shape"]], NUMPY[f["dtype"]]) for f in program.header["feeds"]})
    ran += 1
print(refused, ran)
"""


def test_no_altered_program_can_crash_the_process(saved):
    # Each number of the program changed in turn and signed anew: refused, or run to its end with wrong results.
    _, path, _ = saved
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FUZZ), str(path), "5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, ran = map(int, done.stdout.split())
    assert refused + ran == 300 and refused > 50
