"""`ipu-keras demo`: the quick demo in a process of its own, and the report's parts."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ipu_keras.cli import demo

PROMISED = {
    "accuracy", "cycles_per_step", "samples_per_second", "max_tile_bytes", "tile_limit_bytes", "total_bytes",
    "compile_seconds", "emulated_step_seconds", "xla_cpu_step_seconds",
}  # fmt: skip


def entry(layer, **phases):
    return SimpleNamespace(layer=layer, phases=phases, cycles=sum(phases.values()))


def test_digits_are_all_there_once():
    (x_train, y_train), (x_test, y_test) = demo.digits()
    assert len(x_train) == demo.TRAIN and len(x_train) + len(x_test) == 1797
    assert len(x_train) % demo.BATCH == 0 and len(x_test) % demo.TEST_BATCH == 0
    assert (len(x_train) // demo.BATCH) % demo.STEPS_PER_EXECUTION == 0
    assert x_train.dtype == np.float32 and x_train.shape[1:] == (8, 8, 1) and 0 <= x_train.min() < x_train.max() == 1
    assert set(y_train) == set(y_test) == set(range(10))


def test_layer_cycles_sorts_and_leaves_out_what_is_no_layer():
    others = [entry(name, forward=900.0) for name in ("", "loss", "optimizer", "metrics/accuracy")]
    profile = SimpleNamespace(
        layers=[*others, entry("m/a", variable=0.6, backward=19.6, forward=15.4), entry("m/b", forward=40.0)]
    )
    rows = demo.layer_cycles(profile)
    assert rows == [
        {"layer": "m/b", "cycles": 40, "phases": {"forward": 40}},
        {"layer": "m/a", "cycles": 36, "phases": {"forward": 15, "backward": 20, "variable": 1}},
    ]
    assert list(rows[1]["phases"]) == ["forward", "backward", "variable"]


def test_compile_times_are_heard_and_not_printed():
    logger = logging.getLogger("ipu_keras")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with demo.CompileTimes() as times:
        logger.info("compiled %s in %.2f s (%.2f s of it tracing and lowering)", "digits.train_step", 1.25, 0.5)
        logger.info("compiled %s in %.2f s (%.2f s of it tracing and lowering)", "digits.train_step", 1.0, 0.5)
        logger.info("something else")
    assert times.seconds == {"digits.train_step": 2.25}
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def report():
    return {
        "target": "gc200", "accuracy": 0.98, "epochs": 3, "batch_size": 32, "cycles_per_step": 1000,
        "samples_per_second": 42400.0, "max_tile_bytes": 2048, "tile_limit_bytes": 638976, "total_bytes": 3 << 20,
        "always_live_bytes": 100, "peak_bytes": 200,
        "layers": [{"layer": "m/a", "cycles": 250, "phases": {"forward": 250}}],
        "compile_seconds": 1.5, "emulated_step_seconds": 0.02, "xla_cpu_step_seconds": 0.01, "slower_than_xla_cpu": 2.0,
        "timed_executions": 20, "steps_per_execution": 15, "seconds": 33.0,
    }  # fmt: skip


def test_text_and_json_reports(monkeypatch, capsys):
    def measure(target, quick):
        print("progress")
        return report()

    monkeypatch.setattr(demo, "_measure", measure)
    demo.demo(as_json=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == report() and captured.out.count("\n") == 1 and captured.err == "progress\n"
    out = io.StringIO()
    demo.demo(out=out)
    text = out.getvalue()
    for part in ("progress", "0.9800", "2.0 KiB of 624.0 KiB", "3.0 MiB", "1,000 cycles", "42,400 images/s", "m/a",
                 "forward 250", "25%", "2.0 times XLA"):  # fmt: skip
        assert part in text, part


@pytest.mark.slow
def test_quick_demo():
    compiler = pytest.importorskip("ipu_keras.compiler")
    assert hasattr(compiler, "compile_module"), "the compiler is not there"
    done = subprocess.run(
        [sys.executable, "-m", "ipu_keras", "demo", "--quick", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "IPU_RUNTIME_STRICT": "0"},  # as a user runs it
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout)
    assert PROMISED <= set(measured)
    assert all(measured[key] > 0 for key in PROMISED)
    assert measured["max_tile_bytes"] <= measured["tile_limit_bytes"]
    assert 0 < measured["always_live_bytes"] <= measured["peak_bytes"]
    assert len(measured["layers"]) == 5
    assert {"forward", "backward"} <= {phase for row in measured["layers"] for phase in row["phases"]}
    assert "45/45" in done.stderr, "Keras's progress bar"


def test_unknown_target_names_the_nearest():
    done = subprocess.run(
        [sys.executable, "-m", "ipu_keras", "demo", "--target", "gc20", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and not done.stdout
    assert "gc200" in done.stderr.splitlines()[-1]
