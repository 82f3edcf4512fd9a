"""`ipu-keras fit`: does a model fit the chip, and how fast would its step be? Nothing is trained, nothing runs.

The module imports TensorFlow only when a model is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, TextIO

from ipu_keras.cli.script import load_function, user_errors
from ipu_keras.cli.usage import UsageError
from ipu_keras.target import resolve

__all__ = ["fit"]

DEAREST = 8
"""Layers that are listed."""


def fit(
    place: str,
    target: str = "gc200",
    ipus: int = 1,
    kind: str = "train",
    batch_size: int | None = None,
    as_json: bool = False,
    out: TextIO | None = None,
) -> bool:
    """Compiles the step of a model that a person's file makes, and prints its memory and cycles.

    Args:
        place: ``MODEL.py`` or ``MODEL.py:function``; without a function it is `model`. The function takes nothing and
            returns a model, or a model and a batch.
        target: name of the chip.
        ipus: chips of the device: pipeline stages have one each, what is left makes replicas.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
        batch_size: first dimension of every array of the batch; None leaves it as it is.
        as_json: print one JSON object; all else goes to stderr.
        out: where the report goes; None for stdout.

    Returns:
        Whether the program fits.

    Raises:
        UsageError: there is no such file or function, or a number that cannot be.
        UserError: the file, its function or the model raised; has the end of the traceback.
        IPUError: the step cannot be compiled.
    """
    if ipus < 1:
        raise UsageError(f"--ipus {ipus}: must be at least 1")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: must be at least 1")
    path, _, function = place.partition(":") if not os.path.exists(place) else (place, "", "")
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path!r}")
    chip = resolve(target)  # before anything is imported that takes time
    out = out or sys.stdout
    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        executable, samples = _compile(path, function or "model", chip, kind, batch_size, ipus)
    from ipu_keras.cli.report import step_report, text

    report = step_report(executable, DEAREST, samples)
    report = {"model": place, "kind": kind, **report}
    print(json.dumps(report) if as_json else "\n".join(text(report)), file=out)
    out.flush()
    return bool(report["fits"])


def _compile(
    path: str, function: str, chip: Any, kind: str, batch_size: int | None, ipus: int
) -> tuple[Any, int | None]:
    """The executable, and the samples of an iteration if the batch says how many."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow as tf

    from ipu_keras import IPUStrategy, analyse
    from ipu_keras.cli.batches import batch_of, leading, resized

    tf.get_logger().setLevel("ERROR")
    # Strict mode's guard bytes are the emulation's, not the chip's.
    options = {"allow_out_of_memory": True, "guard_bytes": 0}
    with IPUStrategy(target=chip, execute=False, options=options, ipus=ipus).scope():
        with user_errors(path):
            made = load_function(path, function)()
        model, batch = batch_of(made, path, function, kind)
        batch = resized(batch, batch_size)
        with user_errors(path, ours="ipu_keras/compiler"):
            executable = analyse(model, kind, batch)
    samples, program = leading(batch), executable.program
    return executable, None if samples is None else samples * program.micro_batches * program.replicas
