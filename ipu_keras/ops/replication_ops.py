"""Which replica a program runs on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipu_keras.frontend import collectives
from ipu_keras.ops.cross_replica_ops import replicas_here

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """The replica's number, an int32 scalar from 0 on.

    Args:
        name: accepted.
    """
    del name
    return collectives.replica_index() if replicas_here() > 1 else tf.constant(0, tf.int32)
