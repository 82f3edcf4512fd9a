"""What a program may have once only: in which functions it is already."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

__all__ = ["Once", "in_loop_or_branch"]

_TRIAL = "tmp"
"""Name of the graph in which AutoGraph tries a loop's body, to find out what variables it makes; it is thrown away."""


class Once:
    """The functions that have something, by the graphs that they are traced in.

    TensorFlow may trace a function twice, if it makes variables on its first call, so functions inside one program do
    not count as the same: what they have twice is found when the program runs.

    Example:
        >>> once = Once()
        >>> once.add()  # False, and the second time in a function True
    """

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def here(self) -> bool:
        """Whether the function that is being traced has it, or one around it."""
        return any(graph in self._graphs for graph in _around())

    def add(self) -> bool:
        """Notes the function that is being traced.

        Returns:
            whether it was there already. A body that AutoGraph only tries does not count.
        """
        if self.here():
            return not _in_trial()
        if not _in_trial():
            self._graphs.add(_function_graph())
        return False


def in_loop_or_branch() -> bool:
    """Whether what is being traced is the body of a loop, or a branch."""
    return any(type(graph).__name__.endswith(("BodyFuncGraph", "BranchFuncGraph")) for graph in _around())


def _around() -> list[Any]:
    """The graph that is being made, and those around it."""
    graph: Any = tf.compat.v1.get_default_graph()
    found = []
    while graph is not None:
        found.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return found


def _in_trial() -> bool:
    return any(getattr(graph, "name", None) == _TRIAL for graph in _around()[:-1])


def _function_graph() -> Any:
    """The innermost function's: the bodies of loops and branches are of classes of their own."""
    return next((graph for graph in _around() if type(graph).__name__ == "FuncGraph"), None)
