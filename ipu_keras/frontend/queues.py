"""Queues between host and device program: what a program takes one by one, and what it gives one by one.

A queue is known to a program by a number, which its steps carry; so a program that was traced long ago still finds it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.parallel.spec import DEQUEUE, ENQUEUE
from ipu_keras.errors import ConfigError, DataError, UnsupportedError
from ipu_keras.frontend import effects
from ipu_keras.graph.ir import DTYPES

__all__ = ["HostQueue", "dequeue", "enqueue", "find", "outermost_graph", "register"]

_TOKEN = effects.TOKEN
_numbers = itertools.count()
_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class HostQueue(Protocol):
    """What a run asks of a queue."""

    number: int

    def pull(self, count: int) -> list[np.ndarray]:
        """The next elements' tensors, each with a leading axis of `count`."""

    def push(self, leaves: list[np.ndarray]) -> None:
        """Takes what a run has put in: for each tensor an array with a leading axis of steps."""


def register(queue: Any) -> int:
    """Gives a queue its number.

    Args:
        queue: kept weakly.
    """
    number = next(_numbers)
    _known[number] = queue
    return number


def find(number: int) -> Any:
    """The queue with a number, None if it is gone."""
    return _known.get(number)


def dequeue(number: int, specs: list[tf.TensorSpec]) -> list[Any]:
    """The next element's tensors, each time this is run.

    Args:
        number: of the queue.
        specs: shape and dtype of each tensor.
    """
    return [
        effects.call(DEQUEUE, [], {"queue": number, "leaf": leaf, "mode": "in"}, [spec])[0]
        for leaf, spec in enumerate(specs)
    ]


def enqueue(number: int, leaves: list[Any], last: bool) -> Any:
    """Puts an element in, each time this is run.

    Args:
        number: of the queue.
        leaves: its tensors.
        last: whether only the last element of an execution is kept.

    Returns:
        an operation.
    """
    mode = "last" if last else "all"
    tokens = [
        effects.call(ENQUEUE, [leaf], {"queue": number, "leaf": i, "mode": mode}, [_TOKEN])[0]
        for i, leaf in enumerate(leaves)
    ]
    return effects.keep(tokens)


def outermost_graph() -> Any:
    """The graph of the function that is being traced, with loops and branches around taken off; None outside."""
    if not tf.inside_function():
        return None
    graph: Any = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and getattr(graph.outer_graph, "building_function", False):
        graph = graph.outer_graph
    return graph


def exchange(specs: list[dict[str, Any]], turns: Callable[[int], int], replicas: int) -> dict[int, np.ndarray]:
    """Arrays for all queues of a program before it runs: elements that are pulled, and room for those it puts in.

    Args:
        specs: ``header["queues"]`` of the program.
        turns: for how often a step runs in an iteration, how often it does in the execution.
        replicas: of the program; element e is for replica e mod R.
    """
    arrays: dict[int, np.ndarray] = {}
    pulled: dict[int, list[np.ndarray]] = {}
    unknown = sorted({spec["queue"] for spec in specs if spec["count"] is None and spec["mode"] != "last"})
    if unknown:
        raise UnsupportedError(
            "How often the program takes from a queue, or puts something in, must be known before it runs; it is in a "
            "branch, or in a loop that the data ends. Use loops.repeat or tf.range with a fixed number.",
            [f"queue {number} in a loop of unknown length" for number in unknown],
        )
    places = [(spec["queue"], spec["leaf"]) for spec in specs]
    twice = next((spec for spec, place in zip(specs, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        what = "An infeed queue is dequeued" if twice["mode"] == "in" else "An outfeed queue can only be enqueued"
        raise ConfigError(f"{what} once in a program, at one place; use a queue for each.")
    for spec in specs:
        count = 1 if spec["mode"] == "last" else turns(spec["count"])
        lead = (count, replicas) if replicas > 1 else (count,)
        if spec["mode"] == "in":
            queue = find(spec["queue"])
            if queue is None:
                raise DataError(
                    "The infeed queue that the program takes its elements from is gone: keep a reference to it while "
                    "the program may run."
                )
            if spec["queue"] not in pulled:
                pulled[spec["queue"]] = queue.pull(count * replicas)
            array = pulled[spec["queue"]][spec["leaf"]]
            arrays[spec["slot"]] = np.ascontiguousarray(array.reshape(*lead, *array.shape[1:]))
        else:
            arrays[spec["slot"]] = np.zeros((*lead, *spec["shape"]), DTYPES[spec["dtype"]])
    return arrays


def deliver(specs: list[dict[str, Any]], arrays: dict[int, np.ndarray]) -> None:
    """Hands what a program put into its queues to them.

    Args:
        specs: ``header["queues"]`` of the program.
        arrays: of `exchange`, after the run.
    """
    by_queue: dict[int, list[dict[str, Any]]] = {}
    for spec in specs:
        # The last element of a loop that never ran is none.
        if spec["mode"] != "in" and not (spec["mode"] == "last" and spec["count"] == 0):
            by_queue.setdefault(spec["queue"], []).append(spec)
    for number, leaves in by_queue.items():
        queue = find(number)
        if queue is not None:
            queue.push([arrays[leaf["slot"]] for leaf in sorted(leaves, key=lambda s: s["leaf"])])
