"""Compiled programs on disk: another process takes them, and whatever a compilation depends on makes another file."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy
from ipu_keras.compiler import cache
from ipu_keras.compiler.executable import Executable
from ipu_keras.errors import ConfigError

SCRIPT = """
import keras, numpy as np, logging
from ipu_keras import IPUStrategy
logging.getLogger("ipu_keras").setLevel(logging.INFO)
logging.getLogger("ipu_keras").addHandler(logging.StreamHandler())
keras.utils.set_random_seed(1)
x = np.random.rand(8, 4).astype("f")
with IPUStrategy().scope():
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
print("weights", [w.tolist() for w in model.get_weights()])
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path / 'cache'}")
    return tmp_path / "cache"


@pytest.mark.slow
def test_another_process_takes_it(folder, monkeypatch):
    outputs = []
    for strict in ("1", "1", "0"):  # a program without guard bytes is another one
        monkeypatch.setenv("IPU_RUNTIME_STRICT", strict)
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        (weights,) = re.findall("^weights.*", done.stdout, re.M)
        outputs.append((weights, done.stderr.count("taken from the executable cache")))
    assert len({weights for weights, _ in outputs}) == 1
    assert [taken for _, taken in outputs] == [0, 1, 0] and len(list(folder.iterdir())) == 2


def test_a_damaged_file_is_made_again(folder, caplog):
    strategy, function = IPUStrategy(), tf.function(lambda x: x + 1)
    strategy.run(function, args=(tf.constant([1.0, 2.0]),))
    program = strategy.executable(function).program
    kept = cache.place(b"some module", {})
    assert kept.load() is None and not caplog.text
    kept.save(program)
    assert Executable(kept.load()).run(np.float32([3, 4]))[0].tolist() == [4, 5]
    kept.path.write_bytes(kept.path.read_bytes()[:-1])
    assert kept.load() is None and "compiled again" in caplog.text


def test_what_makes_another_program(folder):
    paths = [cache.place(*given).path for given in ((b"a", {"x": 1}), (b"b", {"x": 1}), (b"a", {"x": 2}))]
    assert len(set(paths)) == 3 and cache.place(b"a", {"x": 1}).path == paths[0]


def test_no_folder_can_be_there(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path / 'file' / 'cache'}")
    with pytest.raises(ConfigError, match="executable_cache_path"):
        cache.place(b"some module", {})
