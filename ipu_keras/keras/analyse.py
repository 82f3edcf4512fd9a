"""`analyse`: a model's step compiled for its profile, from the shapes of a batch, without running anything."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ipu_keras.compiler.executable import Executable
from ipu_keras.errors import DataError
from ipu_keras.keras.session import Signature

__all__ = ["analyse", "inputs_of"]

KINDS = ("train", "test", "predict")


def analyse(model: Any, kind: str = "train", batch: Any = None) -> Executable:
    """Compiles a model's step for batches of the given shapes; nothing runs, and no device is made.

    The model may be made with ``execute=True`` or ``execute=False``; with the latter its variables take no memory.
    ``ipu_keras.executable(model, kind)`` gives the same program afterwards, and `fit` uses it.

    Args:
        model: a model made in ``IPUStrategy(...).scope()``; compiled, for ``"train"`` and ``"test"``.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
        batch: what `fit` would hand to one step: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, nested as the model
            takes it. Its leaves are arrays, of which only shape and dtype are looked at, or anything else with a full
            `shape` and a `dtype`: tf.TensorSpec, keras.InputSpec, KerasTensor. May be left out for ``"predict"`` if
            ``model.inputs`` have full shapes.

    Returns:
        The Executable: ``profile()``, ``save(path)``.

    Raises:
        DataError: the model is not made in a scope, or the batch has no full shapes.
        UnsupportedError: lists what the tiles cannot run, by layer.
        IPUOutOfMemoryError: a tile overflows; has the memory report. See the option ``allow_out_of_memory``.

    Example:
        >>> with IPUStrategy(execute=False).scope():
        ...     model = keras.Sequential([keras.layers.Dense(10)])
        ...     model.compile("adam", "mse")
        >>> batch = (tf.TensorSpec((32, 784)), tf.TensorSpec((32, 10)))
        >>> analyse(model, "train", batch).profile().memory.fits
        True
    """
    if kind not in KINDS:
        raise DataError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    name = getattr(model, "name", model)
    if not hasattr(model, "_ipu_strategy"):
        raise DataError(f"{name!r} is no model for an IPU: make it in the scope of an IPUStrategy.")
    if kind != "predict" and not getattr(model, "compiled", True):
        raise DataError(
            f"model {name!r} has no loss and no optimizer yet: call its compile() before analyse({kind!r})."
        )
    if batch is None:
        batch = inputs_of(model) if kind == "predict" else None
    if batch is None:
        wanted = "(x, y), as fit gets them" if kind != "predict" else "the model's input"
        raise DataError(f"analyse needs the batch of a {kind} step: {wanted}, as arrays or tf.TensorSpec.")
    structure = batch if isinstance(batch, tuple) else (batch,)
    getattr(model, f"make_{kind}_function")()
    program = getattr(model, f"{kind}_function").compiled(structure, _signature(structure, f"{name}.{kind}_step"))
    found: Executable = program.executable
    return found


def inputs_of(model: Any) -> Any:
    """The input that a model was made with, nested as it takes it; None where it is known from data alone.

    Args:
        model: a Keras model.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    # A Sequential that has not been called has no `input`; it has one anyway.
    return getattr(model, "input", inputs[0])


def _signature(structure: Any, what: str) -> Signature:
    return tuple([None if leaf is None else _spec(leaf, what) for leaf in tf.nest.flatten(structure)])


def _spec(leaf: Any, what: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype that a leaf has on the device."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise DataError(
            f"{what}: a {type(leaf).__name__} in the batch has no shape and dtype; give an array or a spec."
        )
    shape = tf.TensorShape(leaf.shape)
    dtype = tf.as_dtype(leaf.dtype or keras.config.floatx())
    if dtype == tf.string:
        raise DataError(f"{what}: the batch has string tensors; a device has none.")
    if not shape.is_fully_defined():
        raise DataError(
            f"{what}: the batch has the shape {shape}, and a device program has fixed shapes: give the batch size and "
            "every other dimension."
        )
    return tuple(shape.as_list()), np.dtype((tf.float32 if dtype == tf.float64 else dtype).as_numpy_dtype)
