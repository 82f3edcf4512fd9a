"""The calls of layers that a model consists of, in the order in which they run: of a graph, or seen in a trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ipu_keras.keras.pipeline import adapter
from ipu_keras.pipelining.errors import StageError

__all__ = ["Call", "build_on", "calls", "layer_of", "record"]


@dataclass
class Call:
    """One call of a layer in a model.

    Attributes:
        layer: the layer, the nested model, or the operation.
        index: which call of it: the index of the node, in a subclassed model the number of the call.
        sources: positions of the calls of the same model whose outputs it reads.
        inbound: the layers of those, and the input layers that it reads.
        stage: the `PipelineStage` that was open.
    """

    layer: Any
    index: int
    sources: list[int]
    inbound: list[Any]
    stage: int | None


def calls(model: Any, *, again: bool = True) -> list[Call]:
    """The calls of a model's own layers; nested models are one call each.

    Args:
        model: of any kind.
        again: whether a subclassed model whose calls are known is traced anew.

    Raises:
        StageError: a subclassed model is not built, or cannot be traced; a RuntimeError.
    """
    kind = adapter.kind_of(model)
    if kind == "sequential":
        return _sequential(model)
    if kind == "functional":
        return _functional(model)
    known: list[Call] | None = model.__dict__.get("_ipu_calls")
    return known if known is not None and not again else _subclassed(model)


def _sequential(model: Any) -> list[Call]:
    nodes = adapter.graph_nodes(model)
    layers = list(model.layers)
    found: list[Call] = []
    for position, layer in enumerate(layers):
        index = nodes[position][1] if len(nodes) == len(layers) else 0
        sources = [position - 1] if position else []
        inbound = [layers[position - 1]] if position else []
        stage = adapter.node_stage(layer, index) if len(nodes) == len(layers) else None
        found.append(Call(layer, index, sources, inbound, stage))
    return found


def _functional(model: Any) -> list[Call]:
    nodes = adapter.graph_nodes(model)
    places = {(id(layer), index): place for place, (layer, index, _) in enumerate(nodes)}
    return [
        Call(
            layer,
            index,
            [places[id(p), i] for p, i in parents if (id(p), i) in places],
            list({id(p): p for p, _ in parents}.values()),
            adapter.node_stage(layer, index),
        )
        for layer, index, parents in nodes
    ]


def _subclassed(model: Any) -> list[Call]:
    """Runs a subclassed model on tensors without values and watches which layers it calls."""
    given: tuple[tuple[Any, ...], dict[str, Any]] | None = model.__dict__.get("_ipu_inputs")
    if given is not None:
        return record(model, *given[0], **given[1])
    shapes = adapter.built_shapes(model)
    if not shapes:
        raise StageError(
            f"Model {model.name!r} of class {type(model).__name__} is not built, so nobody knows which layers it "
            "calls. Call it on data, or build it: model.build(shape), or model.build(keras.Input(...)) to say the "
            "dtype, too."
        )
    error: Exception | None = None
    for dtype in ("float32", "int32"):  # shapes say nothing about dtypes
        nest = {name: adapter.symbolic(shape, dtype) for name, shape in shapes.items()}
        args = (next(iter(nest.values())),) if len(nest) == 1 else ()
        kwargs = {} if args else {name.removesuffix("_shape"): value for name, value in nest.items()}
        try:
            return record(model, *args, **kwargs)
        except StageError:
            raise
        except Exception as problem:
            error = error or problem
    raise StageError(
        f"Model {model.name!r} of class {type(model).__name__} could not be traced with the shapes that it was built "
        f"with ({shapes}): {error}. Build it with model.build(keras.Input(shape, dtype=...))."
    ) from error


def build_on(model: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a subclassed model; a `PipelineStage` in its ``call`` may be opened, in the scope or not.

    Args:
        model: a subclassed model.
        *args: symbolic tensors, as the model is called with.
        **kwargs: the same.
    """
    with adapter.calls_watched(lambda layer, call, a, k: call()):
        adapter.run_symbolically(lambda *a, **k: model(*a, **k), *args, **kwargs)


def record(model: Any, *args: Any, **kwargs: Any) -> list[Call]:
    """Traces a subclassed model once and keeps the calls that it makes.

    Args:
        model: a subclassed model.
        *args: symbolic tensors, as the model is called with.
        **kwargs: the same.
    """
    if not model.built:
        # Keras runs a model once to build its layers and once more for its outputs: those calls would count twice.
        build_on(model, *args, **kwargs)
    recorder = _Recorder(model)
    with adapter.calls_watched(recorder):
        adapter.run_symbolically(lambda *a, **k: model(*a, **k), *args, **kwargs)
    for inner, found in recorder.found.values():
        inner.__dict__["_ipu_calls"] = found
    own: list[Call] = model.__dict__.get("_ipu_calls", [])
    return own


class _Recorder:
    """Notes, for each subclassed model that is called, the layers that it calls and where their inputs come from."""

    def __init__(self, model: Any) -> None:
        self.found: dict[int, tuple[Any, list[Call]]] = {id(model): (model, [])}
        self._stack: list[Any] = []
        self._counts: dict[tuple[int, int], int] = defaultdict(int)
        self._made: dict[int, dict[Any, int]] = defaultdict(dict)  # model -> tensor -> position of its call
        self._done: set[int] = set()

    def __call__(self, layer: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = self._stack[-1] if self._stack else None
        if outer is layer:  # a class whose __call__ calls its base's
            return call()
        note = outer is not None and id(outer) in self.found and id(outer) not in self._done
        if adapter.kind_of(layer) == "model" and id(layer) not in self.found:
            self.found[id(layer)] = (layer, [])
        position = self._note(outer, layer, args, kwargs) if note else None
        self._stack.append(layer)
        try:
            outputs = call()
        finally:
            self._stack.pop()
        self._done.add(id(layer))  # a second call of a nested model is not noted again
        if position is not None:
            for tensor in adapter.flat_tensors(outputs):
                self._made[id(outer)][adapter.key(tensor)] = position
        return outputs

    def _note(self, outer: Any, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        calls_of_outer = self.found[id(outer)][1]
        sources = self._sources(id(outer), adapter.flat_tensors((args, kwargs)))
        index = self._counts[id(outer), id(layer)]
        self._counts[id(outer), id(layer)] += 1
        inbound = list({id(c.layer): c.layer for c in (calls_of_outer[s] for s in sources)}.values())
        calls_of_outer.append(Call(layer, index, sources, inbound, adapter.stage_now()))
        return len(calls_of_outer) - 1

    def _sources(self, outer: int, tensors: list[Any]) -> list[int]:
        """Walks back through plain operations to the outputs of calls that are noted."""
        found: set[int] = set()
        seen: set[Any] = set()
        made = self._made[outer]
        while tensors:
            tensor = tensors.pop()
            key = adapter.key(tensor)
            if key in seen:
                continue
            seen.add(key)
            if key in made:
                found.add(made[key])
            else:
                tensors += adapter.inputs_of(tensor)
        return sorted(found)


def layer_of(assignment: Any) -> Any:
    """The layer or nested model of an assignment.

    Args:
        assignment: of either class.
    """
    return assignment.nested_model if assignment.is_nested_model else assignment.layer
