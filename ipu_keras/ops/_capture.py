"""Gradients that are recorded on their way back: where they are kept, and who may look at them.

A gradient belongs to the innermost context that was open when the forward operation was made. Without one it is kept
for the step that is being traced (or run), and an optimizer that wants captured gradients takes it from there.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ipu_keras.keras.adapter import current_tracer
from ipu_keras.ops._refusals import NotOnIPUError

__all__ = ["GradientCaptureContext", "GradientCaptureTape", "record", "take"]

_open = threading.local()
_eager: dict[str, Any] = {}
_graphs: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


class GradientCaptureContext:
    """Keeps the gradients of what `capture_upstream_gradients` marks inside it.

    Example:
        >>> with GradientCaptureContext() as context, tf.GradientTape() as tape:
        ...     y = capture_upstream_gradients(layer(x), tag="y")
        ...     loss = tf.reduce_sum(y**2)
        >>> gradients = tape.gradient(loss, layer.trainable_weights)
        >>> context.captured_gradients["y"]
    """

    def __init__(self) -> None:
        self._captured: dict[str, Any] = {}

    @property
    def captured_gradients(self) -> Mapping[str, Any]:
        """Gradients by tag, once they have been computed; it cannot be changed."""
        return types.MappingProxyType(self._captured)

    def __enter__(self) -> Any:
        _stack().append(self._captured)
        return self

    def __exit__(self, *error: Any) -> None:
        _stack().remove(self._captured)


class GradientCaptureTape(tf.GradientTape):  # type: ignore[misc]
    """A tape that keeps the gradients of what `capture_upstream_gradients` marks while it records.

    Args:
        persistent: as of tf.GradientTape.
        watch_accessed_variables: as of tf.GradientTape.

    Example:
        >>> with GradientCaptureTape() as tape:
        ...     loss = tf.reduce_sum(capture_upstream_gradients(layer(x), tag="y") ** 2)
        >>> gradients = tape.gradient(loss, layer.trainable_weights)
        >>> tape.captured_gradients["y"]
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        super().__init__(persistent=persistent, watch_accessed_variables=watch_accessed_variables)
        self._context = GradientCaptureContext()

    @property
    def captured_gradients(self) -> Mapping[str, Any]:
        """Gradients by tag, once they have been computed; it cannot be changed."""
        return self._context.captured_gradients

    def __enter__(self) -> Any:
        self._context.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._context.__exit__()


def record(tag: str, gradients: Any, store: dict[str, Any], graph: Any) -> None:
    """Keeps gradients.

    Args:
        tag: their name; later ones of a name take the place of earlier ones.
        gradients: a structure of tensors.
        store: where `place` put the forward operation.
        graph: of the forward operation, None outside a graph.

    Raises:
        NotOnIPUError: the gradients are inside a loop or a branch, where nobody outside can read them.
    """
    if _graph() is not graph:
        raise NotOnIPUError(
            f"The gradient with the tag {tag!r} cannot be captured: it is computed in a loop, a branch or a function "
            "of its own. Capture it outside of that."
        )
    store[tag] = gradients


def place() -> tuple[dict[str, Any], Any]:
    """(where the gradients of an operation that is made now are kept, the graph that it is made in)."""
    graph = _graph()
    if _stack():
        return _stack()[-1], graph
    return (_eager if graph is None else _graphs.setdefault(graph, {})), graph


def take() -> dict[str, Any]:
    """The gradients that the step has captured so far outside any context, by tag; they are kept no longer.

    Over several micro-batches and replicas they are reduced as the weights' gradients are.
    """
    graph = _graph()
    store = _eager if graph is None else _graphs.get(graph, {})
    found = dict(store)
    store.clear()
    tracer = current_tracer()
    if tracer is None or tracer.gradients is None:
        return found
    reduced: dict[str, Any] = tf.nest.map_structure(tracer.gradients.reduce, found)
    return reduced


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _stack() -> list[dict[str, Any]]:
    if not hasattr(_open, "stack"):
        _open.stack = []
    stack: list[dict[str, Any]] = _open.stack
    return stack
