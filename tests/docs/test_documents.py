"""The code in the README and the first example run as they are printed; the other examples: tests/examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code_or_file: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *code_or_file],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "IPU_RUNTIME_STRICT": "0", **environment},  # as a user runs it
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)


@pytest.mark.slow
def test_readme(tmp_path):
    training, module, saved = blocks("README.md")
    counted = "import ipu_keras\nassert ipu_keras.executions() == 10, ipu_keras.executions()\n"
    output = run(["-c", training + counted], tmp_path)
    assert "accuracy" in output
    compared = "import numpy\nnumpy.testing.assert_allclose(result, step(x, w).numpy(), rtol=1e-5)\n"
    same = "numpy.testing.assert_array_equal(result, before)\n"
    output = run(["-c", module + compared + "before = result\n" + saved + same], tmp_path)
    cycles, largest = map(int, output.split())
    assert cycles > 0 and largest > 0


@pytest.mark.slow
def test_quickstart_function(tmp_path):
    (function,) = [block for block in blocks("docs/quickstart.md") if "def double" in block]
    assert "[2. 2. 2.]" in run(["-c", function], tmp_path)


def test_quickstart_jax(tmp_path):
    pytest.importorskip("jax", reason="the extra 'jax' is not installed")
    (slope,) = [block for block in blocks("docs/quickstart.md") if "jax.grad" in block]
    assert "[ 3. 12.]" in run(["-c", slope], tmp_path)


@pytest.mark.slow
def test_first_example(tmp_path):
    output = run([str(ROOT / "examples" / "train_digits.py")], tmp_path, EXAMPLE_EPOCHS="2", EXAMPLE_SAVE="saved.keras")
    assert "accuracy" in output
    assert (tmp_path / "saved.keras").stat().st_size > 0


def test_documents_link_to_files_that_exist():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name} links to {link}"
