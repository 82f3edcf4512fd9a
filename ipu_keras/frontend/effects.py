"""Steps of a program that are there for what they do, not for what they give.

TensorFlow drops operations that nobody wants the result of, and may merge equal ones. So each step has a number of its
own, and gives a zero that is added to a variable: that keeps it, in whatever function, loop or branch it is. The
compiler sees the zero and drops the addition.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla

from ipu_keras.frontend import tfapi

__all__ = ["TOKEN", "call", "keep"]

TOKEN = tf.TensorSpec((), tf.int32)
"""What a step gives that gives nothing."""

_sites = itertools.count()
_variable: list[tf.Variable] = []


def call(target: str, operands: list[Any], config: dict[str, Any], specs: list[tf.TensorSpec]) -> list[Any]:
    """A step of ours in the program that is being traced.

    Args:
        target: its name.
        operands: tensors.
        config: of it, as JSON; its place is added.
        specs: of its results.
    """
    text = json.dumps({**config, "site": next(_sites)})
    results = _xla.xla_custom_call_v2(operands, target, text, True, [s.dtype for s in specs], [s.shape for s in specs])
    for tensor, spec in zip(results, specs, strict=True):
        tensor.set_shape(spec.shape)
    return list(results)


def keep(tokens: list[Any]) -> Any:
    """Keeps steps whose only results are tokens.

    Args:
        tokens: of them.

    Returns:
        an operation.
    """
    if not _variable:
        # Not by tf.Variable: a tf.function that is traced now would take it for one of its own.
        with tf.init_scope():
            _variable.append(tfapi.ResourceVariable(0, trainable=False, dtype=tf.int32, name="ipu_effects"))
    # Read and written: a function lists only the variables that it reads.
    return _variable[0].assign(_variable[0].read_value() + tf.add_n(tokens), read_value=False)
