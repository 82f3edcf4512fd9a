"""Name scopes of our own around layers, loss, metrics and optimizer, so that HLO instructions name their layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import token

__all__ = ["ScopeTracer"]


class ScopeTracer:
    """Hands out a token for each path of layers that a trace walks, and opens the name scope of that token.

    Keras and TensorFlow append suffixes to scope names (layer ``dense`` has scope ``dense_1``, layer ``dense_1`` has
    ``dense_1_2``), so their names cannot be turned back into layers; a token can.

    Attributes:
        scopes: token -> path.
        owners: id of the object -> path where it was first called.
        gradients: what happens to gradients before an optimizer applies them; None: nothing.
        ipus: chips of the device.
    """

    def __init__(self) -> None:
        self.scopes: dict[str, str] = {}
        self.owners: dict[int, str] = {}
        self.gradients: Gradients | None = None
        self.ipus = 1
        self._tokens: dict[str, str] = {}
        self._stack: list[tuple[int, str]] = []

    @contextlib.contextmanager
    def layer(self, owner: object, name: str) -> Iterator[None]:
        """Opens the scope of a layer that is called (or built) by the layers that are open now.

        Args:
            owner: the layer.
            name: its name, the last part of its path.
        """
        if self._stack and self._stack[-1][0] == id(owner):
            yield  # Keras opens a layer's scope once more inside itself, when it builds it
            return
        path = f"{self._stack[-1][1]}/{name}" if self._stack else name
        self.owners.setdefault(id(owner), path)
        self._stack.append((id(owner), path))
        try:
            with self._scope(path):
                yield
        finally:
            self._stack.pop()

    @contextlib.contextmanager
    def part(self, path: str) -> Iterator[None]:
        """Opens the scope of a part of the step that is no layer.

        Args:
            path: ``"loss"``, ``"metrics/accuracy"`` or ``"optimizer"``.
        """
        outer, self._stack = self._stack, []
        try:
            with self._scope(path):
                yield
        finally:
            self._stack = outer

    @contextlib.contextmanager
    def _scope(self, path: str) -> Iterator[None]:
        name = self._tokens.get(path)
        if name is None:
            name = self._tokens[path] = token(len(self._tokens))
            self.scopes[name] = path
        with tf.name_scope(name):
            yield
