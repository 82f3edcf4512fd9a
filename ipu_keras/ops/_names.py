"""Name scopes of gradients that are written by hand: a profile counts them to the layer of their forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["gradient_scope"]


def gradient_scope() -> Callable[[], Any]:
    """To be called in the forward pass; gives what opens the scope in the backward pass, as a tape names it."""
    forward = tf.get_current_name_scope()
    # A name with a slash at its end is taken as it is, wherever it is opened.
    return lambda: tf.name_scope(f"gradient_tape/{forward}/" if forward else "gradient_tape/")
