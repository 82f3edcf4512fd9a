"""A step function and the shapes of its data become an HLO module with the meaning of each parameter and output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend import hostops, tfapi
from ipu_keras.frontend.layers import LayerNames

__all__ = ["Traced", "for_tiles", "trace"]

_here = threading.local()


_TUPLE = 13  # xla.PrimitiveType


@dataclass
class Traced:
    """A lowered step.

    Attributes:
        module: serialized HloModuleProto, before XLA's own optimisation.
        feeds: entry-parameter index -> index of the flat data.
        variables: entry-parameter index -> the tf.Variable that it is.
        constants: entry-parameter index -> the captured eager tensor that it is.
        updates: entry-parameter index of a variable -> flat output index of its new value.
        outputs: the step's result, its tensors replaced by `OutputRef`.
        names: which layer an instruction belongs to.
        concrete: the ConcreteFunction, which keeps what it captured alive.
    """

    module: bytes
    feeds: dict[int, int]
    variables: dict[int, tf.Variable]
    constants: dict[int, Any]
    updates: dict[int, int]
    outputs: Any
    names: LayerNames
    concrete: Any = field(repr=False)

    @property
    def state(self) -> dict[int, int | None]:
        """The argument `state` of ``compile_module``: what stays on the tiles."""
        fixed = [*self.variables, *self.constants]
        return {parameter: self.updates.get(parameter) for parameter in sorted(fixed)}


@dataclass(frozen=True)
class OutputRef:
    """Stands for a flat output in the structure of a step's result."""

    index: int


def for_tiles() -> bool:
    """Whether this thread traces a program for the tiles now; else what it calls runs in TensorFlow."""
    return getattr(_here, "depth", 0) > 0


@contextlib.contextmanager
def _for_tiles() -> Iterator[None]:
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1


def trace(
    step: Callable[..., Any],
    specs: Any,
    *,
    name: str = "step",
    names: LayerNames | None = None,
    scopes: contextlib.AbstractContextManager[Any] | None = None,
    create: Callable[..., Any] = tfapi.create_now,
) -> Traced:
    """Lowers ``step(*specs)`` to HLO.

    Args:
        step: a function of tensors; it may read, write and create variables.
        specs: tuple of arguments, nested structures of tf.TensorSpec with full shapes; None stays None.
        name: for messages.
        names: filled while the function is traced by whoever opens name scopes.
        scopes: entered while the step is traced, not while it is lowered.
        create: creates the variables that the step asks for, as a creator of ``tf.variable_creator_scope``.

    Returns:
        the module and the meaning of its parameters and outputs.

    Raises:
        UnsupportedError: the step needs the host, or XLA cannot lower it; lists what is wrong.

    Example:
        >>> v = tf.Variable(2.0)
        >>> traced = trace(lambda x: v.assign_add(tf.reduce_sum(x)), (tf.TensorSpec((4,)),))
        >>> traced.feeds, list(traced.variables), traced.updates
        ({0: 0}, [1], {1: 1})
    """
    names = names if names is not None else LayerNames()
    flat = tf.nest.flatten(specs)
    present = [i for i, spec in enumerate(flat) if spec is not None]

    def flat_step(*tensors: Any) -> Any:
        leaves = list(flat)
        for position, tensor in zip(present, tensors, strict=True):
            leaves[position] = tensor
        with tf.variable_creator_scope(create):
            return step(*tf.nest.pack_sequence_as(specs, leaves))

    flat_step.__name__ = name if name.isidentifier() else "step"
    function = tf.function(tfapi.without_autograph(flat_step), jit_compile=True)
    flat_specs = [flat[i] for i in present]
    with scopes if scopes is not None else contextlib.nullcontext(), _for_tiles():
        concrete = function.get_concrete_function(*flat_specs)
    hostops.check(concrete, names)
    try:
        module = tfapi.lower(function, flat_specs)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        text = str(error).split("\nStack trace")[0].strip()
        raise UnsupportedError(f"XLA cannot lower the step {name!r}: {text}", [text]) from error
    return _bind(module, concrete, present, names, name)


def _bind(module: bytes, concrete: Any, present: list[int], names: LayerNames, name: str) -> Traced:
    feeds = {parameter: position for parameter, position in enumerate(present)}
    variables: dict[int, tf.Variable] = {}
    constants: dict[int, Any] = {}
    for parameter, captured in enumerate(tfapi.captures(concrete), start=len(present)):
        if isinstance(captured, tf.Variable):
            variables[parameter] = captured
        else:
            constants[parameter] = captured

    proto = tfapi.parse(module)
    count = len(proto.host_program_shape.parameters)
    result = proto.host_program_shape.result
    # A module with one output has that as its root, without a tuple around it.
    produced = len(result.tuple_shapes) if result.element_type == _TUPLE else 1
    updates = {
        e.parameter_number: e.output_shape_index[0] if e.output_shape_index else 0
        for e in proto.input_output_alias.entries
    }
    results = len(concrete.outputs)
    expected = set(range(results, produced))
    if (
        count != len(present) + len(variables) + len(constants)
        or produced != results + len(updates)
        or set(updates.values()) != expected
        or not updates.keys() <= variables.keys()
    ):
        raise UnsupportedError(
            f"The HLO module of {name!r} has {count} parameters and {produced} outputs, {len(updates)} of "
            "them new values "
            f"of variables; the function has {len(present)} data tensors, {len(variables)} variables, {len(constants)} "
            f"captured tensors and {results} results. This release of TensorFlow orders them in an unknown way."
        )
    return Traced(module, feeds, variables, constants, updates, _output_structure(concrete), names, concrete)


def _output_structure(concrete: Any) -> Any:
    """The function's result with an OutputRef for each tensor; None and other values stay."""
    counter = iter(range(len(concrete.outputs)))
    return tf.nest.map_structure(
        lambda leaf: OutputRef(next(counter)) if tf.is_tensor(leaf) else leaf,
        concrete.structured_outputs,
        expand_composites=True,
    )
