"""What a person's function has returned: the model, and the shapes of a batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.cli.usage import UsageError, UserError
from ipu_keras.keras.analyse import inputs_of

__all__ = ["batch_of", "leading", "resized"]


def batch_of(made: Any, path: str, function: str, kind: str) -> tuple[Any, Any]:
    """Model and batch.

    Args:
        made: what the function has returned.
        path: of the file, for messages.
        function: its name, for messages.
        kind: ``"train"``, ``"test"`` or ``"predict"``.

    Raises:
        UserError: it is neither a model nor a model and a batch.
    """
    wanted = "a Keras model, or (model, batch) where batch is x or (x, y) as arrays or tf.TensorSpec"
    parts = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    if not parts or len(parts) > 2 or not hasattr(parts[0], "make_predict_function"):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UserError(f"{path}: {function}() returned {kinds or 'nothing'}; it has to return {wanted}.")
    model, batch = parts[0], parts[1] if len(parts) == 2 else None
    if batch is None and kind == "predict":
        batch = inputs_of(model)
    if batch is None:
        raise UserError(
            f"{path}: {function}() returned a model and no batch, and a {kind} step needs the shapes of one: return "
            f"{wanted}."
        )
    if kind == "predict" and isinstance(batch, tuple) and batch:
        batch = batch[0]  # the labels are for the other kinds
    return model, batch


def resized(batch: Any, size: int | None) -> Any:
    """The batch's specs with another first dimension.

    Args:
        batch: nested arrays or specs.
        size: of the batch; None leaves it as it is.

    Raises:
        UsageError: the batch leaves its size open, and there is none.
    """

    def one(leaf: Any) -> Any:
        shape = None if leaf is None else tf.TensorShape(getattr(leaf, "shape", None))
        if shape is None or not shape.rank or (size is None and shape[0] is not None):
            return leaf
        if size is None:
            raise UsageError(f"the batch has the shape {shape}: say --batch-size B")
        return tf.TensorSpec((size, *shape[1:]), leaf.dtype or tf.float32)

    return tf.nest.map_structure(one, batch)


def leading(batch: Any) -> int | None:
    """Samples of a batch; None if its arrays do not agree.

    Args:
        batch: nested arrays or specs.
    """
    shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(batch) if hasattr(leaf, "shape")]
    sizes = {shape[0] for shape in shapes if shape.rank}
    return sizes.pop() if len(sizes) == 1 else None
