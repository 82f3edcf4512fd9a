"""The only file of the pipeline's front that touches Keras's private parts: nodes, construction, calls of layers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import tree, utils
from keras.src.backend import KerasTensor, compute_output_spec
from keras.src.layers.layer import Layer, might_have_unbuilt_state
from keras.src.models.functional import Functional
from keras.src.ops.node import Node
from keras.src.ops.operation import Operation

from ipu_keras.keras import adapter

__all__ = [
    "building",
    "built_shapes",
    "calls_watched",
    "constructed_stage",
    "ever_staged",
    "flat_tensors",
    "graph_nodes",
    "has_symbolic",
    "inputs_of",
    "key",
    "is_operation",
    "is_unbuilt",
    "is_traceable",
    "kind_of",
    "kind_of_class",
    "may_stage",
    "packed",
    "node_stage",
    "producers",
    "run_symbolically",
    "stage_now",
    "staged",
    "symbolic",
    "tensor_of",
]

_local = threading.local()
_lock = threading.RLock()
_ever = False
_users: dict[str, int] = {}
_saved: dict[str, list[tuple[Any, str, Any]]] = {}


@contextlib.contextmanager
def _wrapped(what: str, table: Sequence[tuple[Any, str, Callable[[Any], Any]]]) -> Iterator[None]:
    """While any thread is in here, methods of Keras's classes are wrapped; the last to leave puts them back."""
    with _lock:
        if not _users.get(what):
            _saved[what] = [(owner, name, vars(owner)[name]) for owner, name, _ in table]
            for (owner, name, wrap), (_, _, method) in zip(table, _saved[what]):
                type.__setattr__(owner, name, wrap(method))
        _users[what] = _users.get(what, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _users[what] -= 1
            if not _users[what]:
                for owner, name, method in _saved.pop(what):
                    type.__setattr__(owner, name, method)


# --- PipelineStage ------------------------------------------------------------------------------------------------


def may_stage() -> bool:
    """Whether this thread is in the scope of a strategy, or runs a model that was made in one."""
    return adapter.scope_is_open() or getattr(_local, "observer", None) is not None


def ever_staged() -> bool:
    """Whether any stage was ever opened: while none was, no model has to be asked for its calls."""
    return _ever


def stage_now() -> int | None:
    """The stage that is open in this thread."""
    stage: int | None = getattr(_local, "stage", None)
    return stage


@contextlib.contextmanager
def staged(stage: int) -> Iterator[None]:
    """While open, what this thread constructs and calls is marked with a stage.

    Args:
        stage: its number.
    """
    global _ever
    _ever = True
    table = [(Operation, "__init__", _marking), (Node, "__init__", _marking)]
    with _wrapped("stage", table):
        _local.stage = stage
        try:
            yield
        finally:
            _local.stage = None


def _marking(method: Any) -> Any:
    @functools.wraps(method)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        _mark(self)

    # Keras reads the arguments of constructors by inspect.getfullargspec, which sees no further than this.
    __init__.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return __init__


def _mark(thing: Any) -> None:
    stage = stage_now()
    if stage is not None:
        vars(thing)["_ipu_stage"] = stage


def constructed_stage(layer: Any) -> int | None:
    """The stage in which a layer was constructed.

    Args:
        layer: a layer, model or operation.
    """
    return vars(layer).get("_ipu_stage")


def node_stage(layer: Any, index: int) -> int | None:
    """The stage in which a layer was called.

    Args:
        layer: a layer, model or operation.
        index: of the node among the layer's inbound nodes.
    """
    nodes = layer._inbound_nodes
    return vars(nodes[index]).get("_ipu_stage") if index < len(nodes) else None


# --- the graph of a model -----------------------------------------------------------------------------------------


def kind_of(layer: Any) -> str | None:
    """``"sequential"``, ``"functional"`` or ``"model"`` (subclassed); None for what is no model.

    Args:
        layer: anything.
    """
    return kind_of_class(type(layer))


def kind_of_class(kind: type) -> str | None:
    """As `kind_of`, of a class.

    Args:
        kind: a class.
    """
    if issubclass(kind, keras.Sequential):
        return "sequential"
    if issubclass(kind, Functional):
        return "functional"
    return "model" if issubclass(kind, keras.Model) else None


def is_operation(layer: Any) -> bool:
    """Whether this is an operation of a Functional graph and no layer, such as that of ``x[:, 0]``.

    Args:
        layer: what a node calls.
    """
    return not isinstance(layer, Layer)


def is_traceable(model: Any) -> bool:
    """Whether the inputs of a subclassed model are known.

    Args:
        model: a subclassed model.
    """
    return "_ipu_inputs" in model.__dict__ or bool(built_shapes(model))


def graph_nodes(model: Any) -> list[tuple[Any, int, list[tuple[Any, int]]]]:
    """The calls of a Functional model, or of a built Sequential one, in the order in which they run.

    Args:
        model: such a model; a Sequential one that is not built has none.

    Returns:
        for each call the layer or operation, the index of its node, and the same two of all that it reads.
    """
    graph = model._functional if isinstance(model, keras.Sequential) else model
    if graph is None:
        return []
    found = []
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.is_input or isinstance(node.operation, keras.layers.InputLayer):
                continue
            parents = []
            for tensor in node.arguments.keras_tensors:
                layer, index, _ = tensor._keras_history
                if layer is not None and (layer, index) not in parents:
                    parents.append((layer, index))
            found.append((node.operation, node.operation._inbound_nodes.index(node), parents))
    return found


def producers(layer: Any, index: int) -> list[Any]:
    """The layers whose outputs a call of a layer reads.

    Args:
        layer: a layer that was called on symbolic tensors.
        index: of the node.
    """
    nodes = layer._inbound_nodes
    if not 0 <= index < len(nodes):
        return []
    found: list[Any] = []
    for tensor in nodes[index].arguments.keras_tensors:
        parent = tensor._keras_history.operation
        if parent is not None and not any(parent is p for p in found):
            found.append(parent)
    return found


# --- calls of layers as they happen -------------------------------------------------------------------------------

Observer = Callable[[Any, Callable[[], Any], tuple[Any, ...], dict[str, Any]], Any]
"""Is given a layer, the call itself, and its arguments; returns what the call returns."""


@contextlib.contextmanager
def calls_watched(observer: Observer) -> Iterator[None]:
    """While open, each call of a layer or operation by this thread goes through an observer.

    Args:
        observer: see `Observer`.
    """
    before = getattr(_local, "observer", None)
    with _wrapped("calls", [(Operation, "__call__", _watched_operation), (Layer, "__call__", _watched)]):
        _local.observer = observer
        try:
            yield
        finally:
            _local.observer = before


def _watched(method: Any) -> Any:
    @functools.wraps(method)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = getattr(_local, "observer", None)
        if observer is None:
            return method(self, *args, **kwargs)
        return observer(self, lambda: method(self, *args, **kwargs), args, kwargs)

    return __call__


def _watched_operation(method: Any) -> Any:
    watched = _watched(method)

    @functools.wraps(method)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A layer's own __call__ has been seen already; this is the one of its base class.
        return (method if isinstance(self, Layer) else watched)(self, *args, **kwargs)

    return __call__


# --- subclassed models, which have no graph -----------------------------------------------------------------------


def built_shapes(model: Any) -> dict[str, Any] | None:
    """The shapes that a model was built with, by argument of `build`; None when it was not.

    Args:
        model: any.
    """
    return model._build_shapes_dict if model.built else None


def is_unbuilt(model: Any) -> bool:
    """Whether a model has layers without weights yet, and no `build` that would make them.

    Args:
        model: a subclassed model.
    """
    return bool(utils.is_default(model.build) and might_have_unbuilt_state(model))


def symbolic(shapes: Any, dtype: str) -> Any:
    """Symbolic tensors of these shapes, as `keras.Input` makes them.

    Args:
        shapes: a shape or a nest of them; tensors among them stay as they are.
        dtype: of all.
    """
    if isinstance(shapes, KerasTensor):
        return shapes
    if isinstance(shapes, (list, tuple)) and all(isinstance(d, int) or d is None for d in shapes):
        return KerasTensor(tuple(shapes), dtype=dtype)
    if isinstance(shapes, dict):
        return {key: symbolic(value, dtype) for key, value in shapes.items()}
    return type(shapes)(symbolic(value, dtype) for value in shapes)


def tensor_of(shape: Any, dtype: Any) -> Any:
    """A symbolic tensor.

    Args:
        shape: its shape.
        dtype: a NumPy dtype, or a name.
    """
    return KerasTensor(tuple(shape), dtype=str(np.dtype(dtype)))


def packed(structure: Any, leaves: list[Any]) -> Any:
    """Leaves in a nest.

    Args:
        structure: the nest, of which only the nesting is used.
        leaves: in order.
    """
    return tf.nest.pack_sequence_as(structure, leaves)


@contextlib.contextmanager
def building() -> Iterator[bool]:
    """While open, this thread builds a model; gives whether no other is being built around it."""
    outermost = not getattr(_local, "building", False)
    _local.building = True
    try:
        yield outermost
    finally:
        if outermost:
            _local.building = False


def has_symbolic(nest: Any) -> bool:
    """Whether there are symbolic tensors, such as `keras.Input` gives, in a nest.

    Args:
        nest: anything.
    """
    return any(isinstance(leaf, KerasTensor) for leaf in tree.flatten(nest))


def run_symbolically(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a call in a graph of its own, of which nothing is kept.

    Args:
        call: takes tensors.
        *args: symbolic tensors.
        **kwargs: symbolic tensors.
    """
    return compute_output_spec(call, *args, **kwargs)


def flat_tensors(nest: Any) -> list[Any]:
    """The TensorFlow tensors in a nest.

    Args:
        nest: anything.
    """
    return [leaf for leaf in tree.flatten(nest) if isinstance(leaf, tf.Tensor)]


def inputs_of(tensor: Any) -> list[Any]:
    """The tensors that a tensor of a graph is computed from; none for an eager one.

    Args:
        tensor: a TensorFlow tensor.
    """
    return [] if isinstance(tensor, tf.__internal__.EagerTensor) else list(tensor.op.inputs)


def key(tensor: Any) -> Any:
    """What tells tensors apart: TensorFlow makes a new Python object for the same output of an operation at times.

    Args:
        tensor: a TensorFlow tensor.
    """
    return id(tensor) if isinstance(tensor, tf.__internal__.EagerTensor) else (id(tensor.graph), tensor.name)
