"""Checks what people install: builds sdist and wheel, and uses the wheel from outside the tree in empty environments.

1. The sdist is built, and the wheel from the sdist, so that a file missing from either shows.
2. In a new environment with everything: the command line, the demo (--quick), a small model whose executable is saved.
3. In a second one with only what ipu_runtime needs (no TensorFlow): that executable is loaded and run; equal bits.

    python tools/check_wheel.py [--work FOLDER] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME_NEEDS = ["numpy"]
DEMO_KEYS = {
    "accuracy": float,
    "cycles_per_step": int,
    "samples_per_second": float,
    "max_tile_bytes": int,
    "tile_limit_bytes": int,
    "total_bytes": int,
    "compile_seconds": float,
    "emulated_step_seconds": float,
    "xla_cpu_step_seconds": float,
}

SAVE = """
import numpy as np, tensorflow as tf
from ipu_keras import hlo
rng = np.random.default_rng(0)
x, w = rng.normal(size=(8, 20)).astype(np.float32), rng.normal(size=(20, 10)).astype(np.float32)
@tf.function(jit_compile=True)
def step(x, w):
    return tf.nn.softmax(tf.matmul(x, w)), tf.reduce_sum(x)
module = step.experimental_get_compiler_ir(tf.constant(x), tf.constant(w))(stage="hlo_serialized")
executable = hlo.compile(module, target="gc200")
results = executable.run(x, w)
expected = step(tf.constant(x), tf.constant(w))
for got, want in zip(results, expected):
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
executable.save("softmax.ipu")
np.savez("softmax.npz", x=x, w=w, **{f"result{i}": r for i, r in enumerate(results)})
print("saved", len(open("softmax.ipu", "rb").read()), "bytes")
"""

LOAD = """
import importlib.util, sys
for name in ("tensorflow", "keras"):
    assert importlib.util.find_spec(name) is None, name + " is installed here, so nothing is shown"
import numpy as np
from ipu_runtime.engine import Engine
from ipu_runtime.format import load
data = np.load("softmax.npz")
for strict in (False, True):
    engine = Engine(load("softmax.ipu"), None, strict)
    results = engine.run({0: data["x"][None], 1: data["w"][None]})
    assert sorted(results) == [0, 1]
    for i, result in results.items():
        assert result[0].tobytes() == data[f"result{i}"].tobytes(), f"result {i} differs"
assert not [name for name in sys.modules if name.startswith("ipu_keras")], "the runtime imported the compiler"
from ipu_keras import hlo
assert hlo.load("softmax.ipu").profile().cycles > 0
print("loaded, run and profiled without TensorFlow, equal bits")
"""


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command outside the tree, with no trace of the tree in the environment; shows the output of a failure."""
    print("+", " ".join(part if "\n" not in part else "(script)" for part in command), flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
        raise SystemExit(f"check_wheel: exit {done.returncode} from: {' '.join(command)}")
    return done


def new_environment(folder: Path, *packages: str, options: tuple[str, ...] = ()) -> Path:
    """Makes a virtual environment with the packages; gives the folder of its programs."""
    run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run([str(programs / "python"), "-m", "pip", "install", "--quiet", *options, *packages], folder.parent)
    return programs


def check_demo(programs: Path, outside: Path) -> None:
    """The command line answers quickly and the quick demo prints one JSON object with every key."""
    command = str(programs / "ipu-keras")
    run([command, "--help"], outside)  # the first call also compiles the byte code
    start = time.perf_counter()
    run([command, "--help"], outside)
    seconds = time.perf_counter() - start
    print(f"  ipu-keras --help: {seconds:.2f} s")
    if seconds > 1.0:
        raise SystemExit(f"check_wheel: ipu-keras --help took {seconds:.2f} s, it must answer within one")
    run([str(programs / "python"), "-m", "ipu_keras", "targets"], outside)
    start = time.perf_counter()
    done = run([command, "demo", "--quick", "--json"], outside)
    report = json.loads(done.stdout)
    print(f"  ipu-keras demo --quick --json: {time.perf_counter() - start:.1f} s, {report}")
    for key, kind in DEMO_KEYS.items():
        value = report.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not kind(value) > 0:
            raise SystemExit(f"check_wheel: the demo's report has {key} = {value!r}")


def main() -> None:
    """Runs the three checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="folder to work in (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    options = parser.parse_args()
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="check-wheel-", dir=options.work)).resolve()
    outside = work / "outside"
    outside.mkdir()
    try:
        run([sys.executable, "-m", "build", "--outdir", str(work / "dist"), str(ROOT)], work)
        (wheel,) = (work / "dist").glob("*.whl")
        (sdist,) = (work / "dist").glob("*.tar.gz")
        print(f"  {sdist.name} {sdist.stat().st_size:,} bytes; {wheel.name} {wheel.stat().st_size:,} bytes")

        full = new_environment(work / "full", str(wheel))
        check_demo(full, outside)
        print(" ", run([str(full / "python"), "-c", SAVE], outside).stdout.strip())

        bare = new_environment(work / "bare", *RUNTIME_NEEDS)
        run([str(bare / "python"), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], work)
        print(" ", run([str(bare / "python"), "-c", LOAD], outside).stdout.strip())
        print("check_wheel: passed")
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
