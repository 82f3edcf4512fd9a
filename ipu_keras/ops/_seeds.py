"""The device's seed: where operations without a seed of their own get their random numbers from."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

__all__ = ["next_seed", "reset"]

_state: list[Any] = []  # the variable, once something has asked for it


def _variable() -> Any:
    if not _state:
        with tf.init_scope():  # the first to ask may be a function that is being traced
            start = tf.constant([random.getrandbits(31), 0], tf.int32)
            _state.append(tf.Variable(start, trainable=False, name="ipu_seed"))
    return _state[0]


def next_seed() -> Any:
    """A seed that no earlier call had, as a tensor of two int32; inside a step the next of each execution.

    Example:
        >>> tf.random.stateless_uniform((2,), seed=next_seed())
    """
    return (
        _variable().assign_add([0, 1]).read_value()
        if tf.executing_eagerly()
        else tf.identity(_variable().assign_add([0, 1]))
    )


def reset(seed: int) -> None:
    """Starts the random numbers of the device again.

    Args:
        seed: the same seed gives the same numbers; any integer, of which 32 bits count.

    Example:
        >>> reset(7)
    """
    low = int(seed) & 0xFFFFFFFF
    _variable().assign([low - (1 << 32) if low >= 1 << 31 else low, 0])
