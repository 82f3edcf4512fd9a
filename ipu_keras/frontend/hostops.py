"""Finds what a step holds that no device program can: host callbacks, strings, iterators, float64 variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.layers import LayerNames

__all__ = ["check"]

_CALLBACKS = {
    "PyFunc": "a call of Python (tf.numpy_function)",
    "PyFuncStateless": "a call of Python (tf.numpy_function)",
    "EagerPyFunc": "a call of Python (tf.py_function)",
    "Print": "printing (tf.compat.v1.Print)",
    "PrintV2": "printing (tf.print)",
    "IteratorGetNext": "a tf.data iterator inside the step",
    "IteratorGetNextSync": "a tf.data iterator inside the step",
    "IteratorGetNextAsOptional": "a tf.data iterator inside the step",
    "ReadFile": "reading a file",
    "WriteFile": "writing a file",
    "WriteSummary": "writing a summary (tf.summary)",
    "WriteScalarSummary": "writing a summary (tf.summary)",
    "WriteHistogramSummary": "writing a summary (tf.summary)",
    "WriteImageSummary": "writing a summary (tf.summary)",
}
# Nodes that carry strings beside the ones above: reported once, through their consumer.
_QUIET = {"Const", "StringFormat", "Identity", "Placeholder", "NoOp", "Assert"}


def check(concrete: Any, names: LayerNames) -> None:
    """Refuses a traced step that cannot be a device program.

    Args:
        concrete: the ConcreteFunction.
        names: to say which layer a node belongs to.

    Raises:
        UnsupportedError: listing everything that is in the way.
    """
    items: list[str] = []
    for node in tfapi.all_ops(concrete.graph):
        what = _CALLBACKS.get(node.op)
        if what is None and node.op not in _QUIET and _has_string(node):
            what = "string tensors"
        if what is None:
            continue
        where = names.locate(node.name)
        items.append(f"{what}: op {node.op} {node.name!r}" + (f" of layer {where[0]!r}" if where else ""))
    for captured in tfapi.captures(concrete):
        dtype = captured.dtype
        if dtype == tf.string or (dtype in (tf.resource, tf.variant) and not items):
            items.append(f"a captured value of dtype {dtype.name}: {getattr(captured, 'name', captured)!s}"[:200])
        elif isinstance(captured, tf.Variable) and not captured.shape.is_fully_defined():
            items.append(f"variable {captured.name!r} of shape {captured.shape}, which is not fully defined")
        elif dtype in (tf.float64, tf.complex128):
            kind = "variable" if isinstance(captured, tf.Variable) else "captured tensor"
            items.append(f"{kind} {getattr(captured, 'path', None) or captured.name!r} is {dtype.name}; use float32")
    for number, output in enumerate(concrete.outputs):
        if output.dtype == tf.string:
            items.append(f"string tensors: result {number} of the step, {output.name!r}")
    if items:
        listed = "\n".join(f"  - {item}" for item in dict.fromkeys(items))
        raise UnsupportedError(
            f"The step cannot run on the IPU; {len(dict.fromkeys(items))} thing(s) in it need the host:\n{listed}\n"
            "Move them out of the step (a callback sees each execution's logs), or into the tf.data pipeline.",
            list(dict.fromkeys(items)),
        )


def _has_string(node: Any) -> bool:
    for key, value in node.attr.items():
        if key.startswith("_"):
            continue
        if value.type == tf.string.as_datatype_enum or tf.string.as_datatype_enum in value.list.type:
            return True
    return False
