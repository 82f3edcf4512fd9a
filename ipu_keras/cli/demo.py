"""`ipu-keras demo`: a small ConvNet on real handwritten digits, trained on an emulated IPU.

The benchmarks use its model, too. The module imports TensorFlow only when something is built or run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from ipu_keras.target import resolve

__all__ = ["demo"]

# 1,440 of the 1,797 digits train in 45 batches of 32, the other 357 test in 7 batches of 51: no digit is left out.
TRAIN, BATCH, TEST_BATCH = 1440, 32, 51
STEPS_PER_EXECUTION = 15
EPOCHS = 12
TIMED_EXECUTIONS = 20


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """((images, labels) to train, (images, labels) to test): scikit-learn's digits, 8 x 8 pixels from 0 to 1."""
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.images))
    images = (bunch.images[order, :, :, None] / 16.0).astype(np.float32)
    labels = bunch.target[order].astype(np.int32)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def convnet(steps_per_execution: int = STEPS_PER_EXECUTION, **compile_options: Any) -> Any:
    """The compiled model.

    Args:
        steps_per_execution: for `compile`.
        compile_options: more arguments of `compile`.
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv_1"),
            layers.BatchNormalization(name="norm_1"),
            layers.ReLU(name="relu_1"),
            layers.Conv2D(32, 3, padding="same", use_bias=False, name="conv_2"),
            layers.BatchNormalization(name="norm_2"),
            layers.ReLU(name="relu_2"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dropout(0.3, name="dropout"),
            layers.Dense(10, name="dense"),
        ],
        name="digits",
    )
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
        **compile_options,
    )
    return model


class CompileTimes(logging.Handler):
    """Collects the seconds of each compilation that the session logs while the context is open."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seconds: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the time from the record.

        Args:
            record: of the logger ``ipu_keras``.
        """
        if str(record.msg).startswith("compiled %s in %.2f s") and isinstance(record.args, tuple):
            name, seconds = str(record.args[0]), float(record.args[1])  # type: ignore[arg-type]
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def __enter__(self) -> CompileTimes:
        logger = logging.getLogger("ipu_keras")
        self._level, self._propagate = logger.level, logger.propagate
        logger.addHandler(self)
        if logger.getEffectiveLevel() > logging.INFO:
            # Heard here, but not printed by a handler that did not print it before.
            logger.setLevel(logging.INFO)
            logger.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        logger = logging.getLogger("ipu_keras")
        logger.removeHandler(self)
        logger.setLevel(self._level)
        logger.propagate = self._propagate


def execution_times(models: list[Any], data: Any, executions: int) -> list[list[float]]:
    """Seconds of training executions, the models taking turns.

    Args:
        models: compiled models with the same steps_per_execution.
        data: a dataset that repeats without end.
        executions: how many of each model are timed after its first.

    Returns:
        For each model the seconds of its first execution, which may compile, and of the others.
    """
    for model in models:
        model.make_train_function()
    iterators = [iter(data) for _ in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(executions + 1):
        for model, iterator, seconds in zip(models, iterators, times, strict=True):
            start = time.perf_counter()
            logs = model.train_function(iterator)
            float(logs["loss"])  # waits for the result
            seconds.append(time.perf_counter() - start)
    return times


def _phase(name: str) -> tuple[int, str]:
    """Orders phases: forward, backward, then others by name."""
    return (("forward", "backward").index(name) if name in ("forward", "backward") else 2, name)


def layer_cycles(profile: Any) -> list[dict[str, Any]]:
    """Cycles of each Keras layer in one step, costliest first: layer, cycles, and cycles by phase (forward, ...).

    Args:
        profile: of an executable.
    """
    rows = [
        {
            "layer": cost.layer,
            "cycles": round(cost.cycles),
            "phases": {p: round(cost.phases[p]) for p in sorted(cost.phases, key=_phase)},
        }
        for cost in profile.layers
        if cost.layer and cost.layer not in {"loss", "optimizer"} and not cost.layer.startswith("metrics")
    ]
    return sorted(rows, key=lambda row: (-row["cycles"], row["layer"]))


@contextlib.contextmanager
def _stdout_as(stream: TextIO) -> Iterator[None]:
    """During a block everything that Python prints goes to the stream."""
    with contextlib.redirect_stdout(stream):
        yield


def demo(
    target: str = "gc200", quick: bool = False, as_json: bool = False, out: TextIO | None = None
) -> dict[str, Any]:
    """Trains, tests, profiles, and times the emulation against XLA on the CPU; prints the report.

    Args:
        target: name of the chip.
        quick: one epoch and few timed executions.
        as_json: print one JSON object; all else goes to stderr.
        out: where the report goes; None for stdout.

    Returns:
        The report, as printed with `as_json`.
    """
    resolve(target)  # before anything is imported that takes time
    out = out or sys.stdout
    with _stdout_as(sys.stderr if as_json else out):
        report = _measure(target, quick)
    if as_json:
        print(json.dumps(report), file=out)
    else:
        print("\n".join(_text(report)), file=out)
    out.flush()
    return report


def _measure(target: str, quick: bool) -> dict[str, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    started = time.perf_counter()
    print("Importing TensorFlow and Keras ...", flush=True)
    import keras
    import tensorflow as tf

    from ipu_keras import IPUStrategy

    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(1)
    (x_train, y_train), (x_test, y_test) = digits()
    print(f"Training on {len(x_train):,} handwritten digits (scikit-learn), testing on {len(x_test)}; target {target}.")
    print("The first execution compiles the step.", flush=True)
    with CompileTimes() as compile_times:
        with IPUStrategy(target=target).scope():
            model = convnet()
            model.fit(x_train, y_train, batch_size=BATCH, epochs=1 if quick else EPOCHS)
            # One batch is one execution here: 7 test batches are not a multiple of the 15 of training.
            accuracy = _accuracy(model, x_test, y_test)
    from ipu_keras.keras.programs import executable

    profile = executable(model).profile()

    print("Timing training steps, this emulation and XLA on the CPU in turn ...", flush=True)
    twin = convnet(jit_compile=True)
    twin.set_weights(model.get_weights())
    data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(BATCH, drop_remainder=True).repeat()
    ours, xlas = execution_times([model, twin], data, 2 if quick else TIMED_EXECUTIONS)
    our_step, xla_step = (statistics.median(times[1:]) / STEPS_PER_EXECUTION for times in (ours, xlas))
    memory = profile.memory
    return {
        "target": target,
        "accuracy": accuracy,
        "epochs": 1 if quick else EPOCHS,
        "batch_size": BATCH,
        "cycles_per_step": int(profile.cycles),
        "samples_per_second": BATCH / profile.seconds,
        "max_tile_bytes": int(memory.max_tile_bytes),
        "tile_limit_bytes": int(memory.limit),
        "total_bytes": int(memory.total_bytes),
        "always_live_bytes": int(memory.always_live_bytes),
        "peak_bytes": int(memory.peak_bytes),
        "layers": layer_cycles(profile)[:5],
        "compile_seconds": compile_times.seconds.get(f"{model.name}.train_step", 0.0),
        "emulated_step_seconds": our_step,
        "xla_cpu_step_seconds": xla_step,
        "slower_than_xla_cpu": our_step / xla_step,
        "timed_executions": len(ours) - 1,
        "steps_per_execution": STEPS_PER_EXECUTION,
        "seconds": time.perf_counter() - started,
    }


def _accuracy(model: Any, x: Any, y: Any) -> float:
    """Share of the test digits that are classified right, through `predict`."""
    logits = model.predict(x, batch_size=TEST_BATCH, verbose=0)
    return float((logits.argmax(axis=-1) == y).mean())


def _bytes(count: float) -> str:
    """A number of bytes for people, such as ``12.3 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def _text(report: dict[str, Any]) -> list[str]:
    """The report's lines."""
    r = report
    lines = [
        "",
        f"Test accuracy      {r['accuracy']:.4f} after {r['epochs']} epoch(s)",
        f"Memory             largest tile {_bytes(r['max_tile_bytes'])} of {_bytes(r['tile_limit_bytes'])}, "
        f"all tiles {_bytes(r['total_bytes'])}",
        f"                   always live {_bytes(r['always_live_bytes'])}, at the peak {_bytes(r['peak_bytes'])}",
        f"Estimate for {r['target']:5} {r['cycles_per_step']:,} cycles a training step, "
        f"{r['samples_per_second']:,.0f} images/s (batch {r['batch_size']})",
        "Costliest layers   " + _layer_line(r["layers"][0], r) if r["layers"] else "Costliest layers   none",
        *("                   " + _layer_line(row, r) for row in r["layers"][1:]),
        f"Emulation          {1e3 * r['emulated_step_seconds']:.2f} ms a step, {r['slower_than_xla_cpu']:.1f} times "
        f"XLA on this CPU ({1e3 * r['xla_cpu_step_seconds']:.2f} ms)",
        f"                   compiled in {r['compile_seconds']:.1f} s; all of the demo {r['seconds']:.0f} s",
    ]
    return lines


def _layer_line(row: dict[str, Any], report: dict[str, Any]) -> str:
    phases = ", ".join(f"{phase} {cycles:,}" for phase, cycles in row["phases"].items())
    return f"{row['layer']:24} {row['cycles']:>9,} cycles ({row['cycles'] / report['cycles_per_step']:.0%}): {phases}"
