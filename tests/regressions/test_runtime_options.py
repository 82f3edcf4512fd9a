"""Once wrong: the runtime and its options."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, hlo
from ipu_keras.errors import ConfigError
from ipu_keras.target import Target
from ipu_runtime import format as file_format
from ipu_runtime.codelets import registry
from ipu_runtime.errors import ExecutableFormatError
from tests.harness import hlo_of


def matmul():
    return hlo_of(lambda a: tf.nn.softmax(a @ a + a), np.ones((40, 40), np.float32))[0]


def test_extents_whose_product_wraps_are_refused(tmp_path):
    image, kernel = np.ones((1, 4, 4, 1), np.float32), np.ones((3, 3, 1, 1), np.float32)
    program = hlo.compile(
        hlo_of(lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), image, kernel)[0], target=Target(tiles=1)
    ).program
    first = int(next(g for g in program.groups if g[0] == registry.CONV)[4])
    values = {1: 1 << 24, 2: 1 << 24, 3: 1 << 19, 4: 1 << 19}  # groups, batch, input and output channels
    for d in range(2):
        values.update({5 + 4 * d: 1 << 8, 6 + 4 * d: 1 << 8, 7 + 4 * d: 1, 8 + 4 * d: 0})
    for column, value in values.items():
        program.data = np.append(program.data, np.int32(value))
        program.columns[first + column] = (len(program.data) - 1, 1)
    file_format.save(program, tmp_path / "crafted")
    with pytest.raises(ExecutableFormatError):  # running it is a segmentation fault
        file_format.load(tmp_path / "crafted")


@pytest.mark.parametrize("guard", [3, -8, "x"])
def test_guard_bytes_are_checked(guard):
    with pytest.raises(ConfigError):
        hlo.compile(matmul(), options={"guard_bytes": guard})


def test_tiles_are_whole():
    with pytest.raises(ConfigError):
        Target(tiles=2.5)


def test_strict_strategy_has_guard_bytes(monkeypatch):
    import keras

    monkeypatch.setenv("IPU_RUNTIME_STRICT", "0")
    with IPUStrategy(strict=True).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.train_on_batch(np.ones((2, 4), np.float32), np.ones((2, 2), np.float32))
    assert model.train_function.session.latest.executable.options["guard_bytes"] > 0


LEAK = """
import numpy as np, tensorflow as tf, sys
sys.path.insert(0, ".")
from ipu_keras import hlo
from tests.harness import hlo_of
f = lambda a: [tf.tanh(a * float(i)) @ a + i for i in range(1, 60)]
exe = hlo.compile(hlo_of(f, np.ones((9, 9), np.float32))[0])
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4
for i in range(80):
    exe.engine(threads=1, strict=False)
    if i == 19:
        before = rss()
print((rss() - before) / 60)
"""


def test_an_engine_gives_its_memory_back():
    env = {**os.environ, "IPU_RUNTIME_STRICT": "0"}
    run = subprocess.run([sys.executable, "-c", LEAK], capture_output=True, text=True, env=env, check=True, timeout=120)
    assert float(run.stdout.split()[-1]) < 50  # KiB an engine
