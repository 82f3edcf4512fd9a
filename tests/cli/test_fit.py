"""`ipu-keras fit`: verdict, figures, exit codes, and what is said of a wrong file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_keras.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]

FILE = """
import os
import keras, numpy as np, tensorflow as tf
from beside import UNITS

print("a line of the file's own")
assert os.environ["KERAS_BACKEND"] == "tensorflow"


def model(units=UNITS, batch=None):
    net = keras.Sequential([keras.Input((16,)), keras.layers.Dense(units, "relu", name="wide"), keras.layers.Dense(4)])
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net, batch or (np.zeros((8, 16), np.float32), np.zeros(8, np.int32))


def large():
    return model(1 << 24)


def open_batch():
    return model(batch=(tf.TensorSpec((None, 16)), tf.TensorSpec((None,), tf.int32)))


def alone():
    return model()[0]


def nothing():
    pass


def raises():
    return {}["no such key"]


class Wrong(keras.layers.Layer):
    def call(self, x):
        return self.no_such_weight * x


def raises_in_a_layer():
    net = keras.Sequential([Wrong()])
    net.compile("sgd", "mse")
    return net, (tf.TensorSpec((8, 16)), tf.TensorSpec((8, 16)))


def leaves():
    raise SystemExit(3)


if __name__ == "__main__":
    raise AssertionError("run as a script")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text("UNITS = 12\n")
    path = tmp_path / "net.py"
    path.write_text(FILE)
    return str(path)


def fit(capsys, *arguments):
    code = cli.main(["fit", *arguments])
    return code, *capsys.readouterr()


def report_of(capsys, *arguments):
    code, out, _ = fit(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_a_model_that_fits(file, capsys):
    code, report = report_of(capsys, file)
    assert code == cli.OK and report["fits"] and report["target"] == "gc200" and report["kind"] == "train"
    assert 0 < report["max_tile_bytes"] < report["tile_limit_bytes"] and report["tiles_over"] == 0
    assert sum(report["fullest_tile_categories"].values()) == report["max_tile_bytes"]
    assert sum(report["phases"].values()) == report["cycles_per_step"] > 0
    assert report["samples_per_second"] == pytest.approx(8 / report["seconds_per_step"])
    assert "sequential/wide" in {re.sub(r"_\d+", "", row["layer"]) for row in report["layers"]}
    assert report["problem"] is None


def test_figures_are_those_of_the_program_that_runs(file, capsys):
    import keras
    import numpy as np

    from ipu_keras import IPUStrategy, executable

    _, report = report_of(capsys, file)
    with IPUStrategy(options={"guard_bytes": 0}).scope():
        layers = [keras.Input((16,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(4)]
        model = keras.Sequential(layers)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((8, 16), np.float32), np.zeros(8, np.int32), batch_size=8, verbose=0)
    profile = executable(model).profile()
    assert report["cycles_per_step"] == profile.cycles
    assert report["max_tile_bytes"] == profile.memory.max_tile_bytes
    assert report["total_bytes"] == profile.memory.total_bytes


def test_a_model_that_does_not_fit(file, capsys):
    code, out, _ = fit(capsys, file + ":large")
    assert code == cli.FAILED
    assert "DOES NOT FIT gc200" in out and "wide" in out and "would help" in out and "cycles a train step" in out
    code, report = report_of(capsys, file + ":large")
    assert code == cli.FAILED and not report["fits"] and report["tiles_over"] > 0
    assert report["max_tile_bytes"] > report["tile_limit_bytes"] and "would help" in report["problem"]
    assert sum(report["fullest_tile_categories"].values()) == report["max_tile_bytes"]


def test_kind_batch_size_and_target(file, capsys):
    _, train = report_of(capsys, file)
    code, predict = report_of(capsys, file + ":alone", "--kind", "predict", "--batch-size", "32", "--target", "bow")
    assert code == cli.OK and predict["kind"] == "predict" and predict["batch_size"] == 32
    assert predict["target"] == "bow" and predict["cycles_per_step"] < train["cycles_per_step"]
    _, same = report_of(capsys, file, "--kind", "predict", "--batch-size", "32", "--target", "bow")
    assert same["cycles_per_step"] == predict["cycles_per_step"]
    assert (
        report_of(capsys, file + ":open_batch", "--batch-size", "8")[1]["cycles_per_step"] == train["cycles_per_step"]
    )


def test_several_ipus(file, capsys):
    """Without stages, IPUs are replicas: as many samples more, and the sums of gradients to pay for."""
    _, one = report_of(capsys, file)
    code, two = report_of(capsys, file, "--ipus", "2")
    assert code == cli.OK and two["batch_size"] == 2 * one["batch_size"]
    assert one["cycles_per_step"] < two["cycles_per_step"]


def test_wrong_usage(file, capsys):
    for arguments, text in [
        ([file + ":open_batch"], "say --batch-size"),
        ([file + ":absent"], "no function 'absent'. It has model, "),
        ([file + ".txt"], "there is no file"),
        ([file, "--ipus", "0"], "at least 1"),
        ([file, "--batch-size", "0"], "at least 1"),
    ]:
        code, out, err = fit(capsys, *arguments, "--json")
        assert code == cli.USAGE and not out, arguments
        assert text in err and err.splitlines()[-1].startswith("ipu-keras fit: "), arguments
    for arguments in (["fit"], ["fit", file, "--kind", "fly"], ["fit", file, "--batch-size", "few"]):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        assert left.value.code == cli.USAGE


def test_errors_of_the_file_are_its_own(file, capsys):
    for function, text in [
        ("raises", "KeyError: 'no such key'"),
        ("raises_in_a_layer", "no_such_weight"),
        ("leaves", "exit code 3"),
        ("nothing", "returned NoneType"),
        ("alone", "returned a model and no batch"),
    ]:
        code, out, err = fit(capsys, f"{file}:{function}", "--json")
        assert code == cli.FAILED and not out and text in err, (function, err)
        assert "ipu_keras/cli" not in err and "\x1b" not in err
    assert 'net.py", line' in fit(capsys, f"{file}:raises")[2]
    Path(file).write_text("def model(:\n")
    code, _, err = fit(capsys, file)
    assert code == cli.FAILED and "SyntaxError" in err and "ipu_keras/cli" not in err
    code, _, err = fit(capsys, file, "--target", "gc20")
    assert code == cli.FAILED and "Did you mean 'gc200'?" in err


def test_an_error_of_ours_is_not_hidden(file, monkeypatch):
    def bug(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("ipu_keras.compiler.entry.Entry.program", bug)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fit", file])


def documented():
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "fit.md").read_text(), re.S)


def test_in_a_process_of_its_own_with_the_documented_file(tmp_path):
    (tmp_path / "net.py").write_text(documented()[0])
    command = [sys.executable, "-m", "ipu_keras", "fit", "net.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == cli.OK, done.stderr
    assert json.loads(done.stdout)["fits"]


def test_the_documented_way_in_python(capsys):
    names = {}
    for block in documented():
        exec(block, names)
    cycles, largest, limit = map(int, capsys.readouterr().out.split())
    assert cycles > 0 and 0 < largest < limit


def test_categories_and_gaps_are_all_that_the_fullest_tile_needs():
    import tensorflow as tf

    from ipu_keras import hlo
    from ipu_keras.cli.report import GAPS, step_report

    specs = [tf.TensorSpec((8, 64)), tf.TensorSpec((64, 32))]
    product = tf.function(lambda x, w: tf.nn.softmax(x @ w), jit_compile=True).experimental_get_compiler_ir(*specs)
    exe = hlo.compile(product(stage="hlo_serialized"), options={"guard_bytes": 64})
    report = step_report(exe, 3)
    assert report["fullest_tile_categories"][GAPS] >= 64
    assert sum(report["fullest_tile_categories"].values()) == exe.profile().memory.max_tile_bytes
    assert report["samples_per_second"] is None and len(report["layers"]) <= 3
