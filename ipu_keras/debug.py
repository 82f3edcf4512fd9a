"""Finding where the tiles and XLA part: every operation's value on both, and a small file of the first difference.

`compare` traces a model or function with the outputs of all its operations, runs the module on the emulated tiles and
the same function by XLA on the CPU, and looks for the first operation whose value differs. That operation alone, with
XLA's values of its inputs, goes into a file; `rerun` runs it again, anywhere.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.compile import compile_module
from ipu_keras.errors import DataError, UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.trace import Traced, trace
from ipu_keras.target import Target

__all__ = ["Comparison", "Difference", "compare", "rerun"]

_NO_VALUE = {"Placeholder", "Const", "VarHandleOp", "NoOp", "Assert"}
_DRAWS = {
    "RandomUniform",
    "RandomStandardNormal",
    "RandomUniformInt",
    "TruncatedNormal",
    "Multinomial",
    "RandomShuffle",
}
_CONSTANT_LIMIT = 64
"""Integer inputs of up to this many elements are compiled into a slice: shapes and axes have to be."""


@dataclass(frozen=True)
class Difference:
    """An operation whose value differs.

    Attributes:
        op: its name in the traced function.
        kind: TensorFlow's type of it.
        layer: path of the Keras layer that it belongs to, or "".
        shape: of its value.
        error: largest absolute difference; infinite where only one side has a number.
        place: index of that element.
        ours, theirs: the value there, on the tiles and by XLA.
        alone: the same difference when the operation alone runs on XLA's inputs; None where it cannot be run alone. It
            is zero or small where the difference has grown over the operations before.
    """

    op: str
    kind: str
    layer: str
    shape: tuple[int, ...]
    error: float
    place: tuple[int, ...]
    ours: Any
    theirs: Any
    alone: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`.

    Attributes:
        checked: how many operations' values were compared.
        first: the first that differs, or None.
        worst: largest error relative to the tolerance over all of them; at most 1 where nothing differs.
        path: the file with the operation, or None.
    """

    checked: int
    first: Difference | None
    worst: float
    path: str | None = None

    @property
    def equal(self) -> bool:
        """Whether nothing differs beyond the tolerance."""
        return self.first is None

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.checked} values agree; the largest error is {self.worst:.2g} of the tolerance"
        d = self.first
        layer = f" of layer {d.layer}" if d.layer else ""
        alone = "" if d.alone is None else f"; alone, on XLA's inputs, it differs by {d.alone:.3g}"
        saved = f"; saved to {self.path}" if self.path else ""
        return (
            f"{d.kind} {d.op}{layer} is the first of {self.checked} values to differ: {d.ours!r} on the tiles and "
            f"{d.theirs!r} by XLA at {list(d.place)} of {list(d.shape)}{alone}{saved}"
        )


def compare(
    model_or_fn: Any,
    inputs: Any,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    target: str | Target = "gc200",
    options: dict[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Run a model or function on the emulated tiles and by XLA, and find the first operation that differs.

    Args:
        model_or_fn: a Keras model (its forward pass, ``training=False``) or a function of tensors.
        inputs: for a model what it is called with; for a function the tuple of its arguments (one array for one).
        rtol: tolerance relative to the largest magnitude of a value.
        atol: tolerance added to it.
        target: a chip's name or a Target.
        options: compile options.
        path: where the first operation that differs is saved, ``.npz``; nothing is saved without it.

    Returns:
        A Comparison; `print` says what was found.

    Raises:
        UnsupportedError: lists all that the tiles cannot run, by layer; or all that only the tiles can.
        DataError: an input is no array.

    Example:
        >>> print(compare(lambda x: tf.tanh(x) + 1.0, np.ones(3, np.float32)))  # doctest: +SKIP
        2 values agree; the largest error is 0.0017 of the tolerance
    """
    import keras

    from ipu_keras.keras import adapter

    is_model = hasattr(model_or_fn, "layers") and hasattr(model_or_fn, "predict")
    arguments = (inputs,) if is_model or not isinstance(inputs, tuple) else inputs
    function = (lambda x: model_or_fn(x, training=False)) if is_model else model_or_fn
    arrays = [_array(leaf) for leaf in tf.nest.flatten(arguments)]
    specs = tf.nest.pack_sequence_as(arguments, [tf.TensorSpec(a.shape, a.dtype) for a in arrays])
    names, probed = LayerNames(), _Probe(function)
    traced = trace(probed, specs, name="compare", names=names, scopes=adapter.trace_scopes(names))
    adapter.name_owners(traced, None, model_or_fn if isinstance(model_or_fn, keras.Model) else None)
    probed.check()
    ours = _on_tiles(traced, arrays, target, options)
    theirs = _by_xla(traced, arrays)
    first, worst = None, 0.0
    for tensor, a, b in zip(probed.tensors, ours, theirs, strict=True):
        error, place = _largest(a, b)
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) if b.dtype.kind == "f" else 0.0
        limit = atol + rtol * scale if b.dtype.kind == "f" else 0.5
        worst = max(worst, error / limit)
        if error > limit and first is None:
            first = (tensor, error, place, a[place], b[place])
    if first is None:
        return Comparison(len(theirs), None, worst)
    tensor, error, place, mine, other = first
    values = {t.ref(): b for t, b in zip(probed.tensors, theirs, strict=True)}
    values.update({t.ref(): a for t, a in zip(probed.arguments, arrays, strict=True)})
    layer = (names.locate(tensor.op.name) or ("", ""))[0]
    alone, saved = _alone(tensor, layer, values, target, options, path)
    shape = tuple(tensor.shape)
    difference = Difference(tensor.op.name, tensor.op.type, layer, shape, error, place, mine, other, alone)
    return Comparison(len(theirs), difference, worst, saved)


def rerun(path: str | os.PathLike[str], target: str | Target = "gc200") -> Comparison:
    """Run again what `compare` saved: the operation on the tiles, against XLA's value in the file.

    Args:
        path: the file.
        target: a chip's name or a Target.

    Raises:
        DataError: the file is not one of `compare`'s.
    """
    # RuntimeError: a kind of compression that there is not, or a password.
    damaged = (
        KeyError, ValueError, OSError, EOFError, TypeError, IndexError, RuntimeError, zipfile.BadZipFile, zlib.error,
    )  # fmt: skip
    try:
        with np.load(path, allow_pickle=False) as file:
            module = file["module"].tobytes()
            inputs = [file[f"input_{i}"] for i in range(int(file["count"]))]
            expected = file["expected"]
            name, kind, layer = (str(text) for text in file["about"])
    except damaged as error:
        raise DataError(f"{os.fspath(path)} is no file of ipu_keras.compare: {error}") from error
    (ours,) = compile_module(module, target=target).run(*inputs)
    if ours.shape != expected.shape or ours.dtype != expected.dtype:
        raise DataError(f"{os.fspath(path)} is no file of ipu_keras.compare: its value and its module do not fit")
    error_, place = _largest(ours, expected)
    difference = Difference(name, kind, layer, expected.shape, error_, place, ours[place], expected[place], error_)
    return Comparison(1, difference if error_ > 0 else None, error_, os.fspath(path))


class _Probe:
    """A function that returns the value of every operation that it is made of."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # A tf.function would be one operation: its Python is traced into this graph instead.
        inner = getattr(function, "python_function", None)
        self._function = function if inner is None else tfapi.with_autograph(inner)
        self._drawn: list[str] = []
        self._tiles_only: list[str] = []
        self.tensors: list[Any] = []
        self.arguments: list[Any] = []

    def __call__(self, *args: Any) -> list[Any]:
        self.arguments = tf.nest.flatten(args)
        graph = self.arguments[0].graph if self.arguments else tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        self._function(*args)
        self._drawn = [op.name for op in graph.get_operations()[before:] if op.type in _DRAWS]
        self._tiles_only = [op.name for op in graph.get_operations()[before:] if op.type == "XlaCustomCallV2"]
        self.tensors = [
            t
            for op in graph.get_operations()[before:]
            if op.type not in _NO_VALUE
            for t in op.outputs
            if t.dtype.is_floating or t.dtype.is_integer or t.dtype.is_bool
            if t.shape.is_fully_defined() and t.dtype != tf.float64
        ]
        return list(self.tensors)

    def check(self) -> None:
        """Raise where a comparison would say nothing."""
        if self._tiles_only:
            raise UnsupportedError(
                f"compare: XLA on the CPU cannot run {', '.join(self._tiles_only)}, which only the tiles have: "
                "operations on 8-bit floats, of which compare what comes before and after, and sparse products, "
                "instead of which compare dense ones of ipu.ops.sparse.to_dense(values, pattern)",
                self._tiles_only,
            )
        if self._drawn:
            raise DataError(
                f"compare: {', '.join(self._drawn)} draws other numbers each time it runs; use tf.random.stateless_* "
                "or a seed generator of Keras"
            )
        if not self.tensors:
            raise DataError("compare: the function has no operation on tensors of its arguments")


def _by_xla(traced: Traced, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The function's results by XLA; variables that it assigns get their values back."""
    before = [(v, tf.identity(v)) for v in traced.variables.values()]
    try:
        return [np.asarray(t) for t in tf.nest.flatten(traced.concrete(*map(tf.constant, arrays)))]
    finally:
        for variable, value in before:
            variable.assign(value)


def _array(leaf: Any) -> np.ndarray:
    from ipu_keras.keras.data import leaf_array

    array = leaf_array(leaf, "compare")
    if array is None:
        raise DataError("compare: an input is None")
    return array


def _on_tiles(traced: Traced, arrays: list[np.ndarray], target: Any, options: Any) -> list[np.ndarray]:
    executable = compile_module(traced.module, target=target, options=options, layers=traced.names, name="compare")
    held = {**traced.variables, **traced.constants}
    feeds = {parameter: arrays[i] for parameter, i in traced.feeds.items()}
    feeds.update({parameter: np.asarray(tfapi.view(tf.convert_to_tensor(v))) for parameter, v in held.items()})
    return list(executable.run(*(feeds[i] for i in sorted(feeds))))[: len(traced.concrete.outputs)]


def _largest(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """Largest difference and its place; a NaN or infinity on one side only is an infinite difference."""
    if theirs.size == 0:
        return 0.0, ()
    if theirs.dtype.kind != "f":
        error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    else:
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
    place = np.unravel_index(int(error.argmax()), error.shape)
    return float(error[place]), tuple(int(i) for i in place)


def _alone(
    tensor: Any, layer: str, values: dict[Any, np.ndarray], target: Any, options: Any, path: Any
) -> tuple[float | None, Any]:
    """Run the operation alone on XLA's inputs, and save it."""
    op = tensor.op
    inputs = [v for v in (_value(t, values) for t in op.inputs) if v is not None]
    if len(inputs) < len(op.inputs):
        return None, None  # it reads a variable or a resource
    fixed = [v.dtype.kind in "iu" and v.size <= _CONSTANT_LIMIT for v in inputs]
    definition = tf.compat.v1.GraphDef()
    definition.CopyFrom(op.graph.as_graph_def())
    node = type(definition.node[0])()
    node.CopyFrom(next(n for n in definition.node if n.name == op.name))
    del definition.node[:]
    node.name = "operation"
    node.input[:] = [f"in_{i}" for i in range(len(inputs))]
    for key in [k for k in node.attr if k.startswith("_")]:
        del node.attr[key]
    definition.node.append(node)
    index = tensor.value_index

    def single(*given: Any) -> Any:
        rest = iter(given)
        feeds = {f"in_{i}": tf.constant(v) if fixed[i] else next(rest) for i, v in enumerate(inputs)}
        (result,) = tf.graph_util.import_graph_def(definition, feeds, [f"operation:{index}"], name="")
        return result

    free = [v for v, f in zip(inputs, fixed, strict=True) if not f]
    try:
        traced = trace(single, tuple(tf.TensorSpec(v.shape, v.dtype) for v in free), name="alone")
        ours = _on_tiles(traced, free, target, options)[0]
    except (UnsupportedError, ValueError, TypeError, tf.errors.OpError):  # it has a meaning in its place only
        return None, None
    expected = np.asarray(tf.nest.flatten(traced.concrete(*map(tf.constant, free)))[0])
    error, _ = _largest(ours, expected)
    if path is not None:
        about = np.array([op.name, op.type, layer])
        arrays = {f"input_{i}": v for i, v in enumerate(free)}
        module = np.frombuffer(traced.module, np.uint8)
        with open(path, "wb") as file:
            arrays.update(module=module, count=np.array(len(free)), expected=expected, about=about)
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return error, None if path is None else os.fspath(path)


def _value(tensor: Any, values: dict[Any, np.ndarray]) -> np.ndarray | None:
    known = values.get(tensor.ref())
    if known is None and tensor.op.type == "Const":
        known = tf.get_static_value(tensor)
    if known is None and tensor.op.type == "Placeholder":
        captured = dict((inner.ref(), outer) for outer, inner in tensor.graph.captures)
        outer = captured.get(tensor.ref())
        if outer is not None and outer.dtype != tf.resource:
            known = np.asarray(outer)
    return None if known is None else np.asarray(known)
