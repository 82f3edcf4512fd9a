"""All of TensorFlow that is not its public API: lowering to HLO, raw variable access, zero-copy views of tensors."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as _context
from tensorflow.python.framework import ops as _ops
from tensorflow.python.framework.func_graph import FuncGraph as _FuncGraph
from tensorflow.python.ops import gen_resource_variable_ops as _resource
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

__all__ = ["lower", "parse", "read_tensor", "assign_tensor", "view", "address", "tensor_from", "captures", "all_ops"]


def lower(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """Serialized HloModuleProto of a ``tf.function(jit_compile=True)``, before XLA's own optimisation.

    Args:
        function: the function; it takes tensors only, in a flat list.
        specs: one spec with a full shape for each tensor.
    """
    data = function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return data if isinstance(data, bytes) else data.encode("latin-1")


def parse(module: bytes) -> Any:
    """The module as TensorFlow's bundled proto class.

    Args:
        module: serialized HloModuleProto.
    """
    try:
        from tensorflow.compiler.xla.service import hlo_pb2
    except ImportError:  # some releases ship the classes under the name of the standalone project
        from xla.service import hlo_pb2
    return hlo_pb2.HloModuleProto.FromString(module)


def captures(concrete: Any) -> list[Any]:
    """What the function captured, in the order of its parameters: a tf.Variable or a tensor for each.

    Args:
        concrete: a ConcreteFunction.
    """
    by_handle = {id(v.handle): v for v in concrete.graph.variables}
    unlisted = [t for t in concrete.captured_inputs if t.dtype == tf.resource and id(t) not in by_handle]
    if unlisted:
        # A function lists the variables that it reads. One that it only writes (an optimizer's slot) is found by its
        # handle, among all that there are.
        wanted = {id(tensor) for tensor in unlisted}
        found = [o for o in gc.get_objects() if isinstance(o, BaseResourceVariable) and id(o._handle) in wanted]
        by_handle.update({id(v._handle): v for v in found})
    return [by_handle.get(id(tensor), tensor) for tensor in concrete.captured_inputs]


def all_ops(graph: Any) -> Iterable[Any]:
    """Every node of a FuncGraph and of the functions that it calls, as NodeDefs.

    Args:
        graph: the FuncGraph.
    """
    graph_def = graph.as_graph_def()
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def read_tensor(handle: Any, dtype: tf.DType) -> Any:
    """Value of a variable without copying: while the tensor lives, any change gives the variable another buffer.

    Args:
        handle: the variable's handle.
        dtype: the variable's dtype.
    """
    return _resource.read_variable_op(handle, dtype)


def assign_tensor(handle: Any, tensor: Any) -> None:
    """Makes a variable share a tensor's buffer.

    Args:
        handle: the variable's handle.
        tensor: the new value, of the variable's dtype and shape.
    """
    _resource.assign_variable_op(handle, tensor)


def view(tensor: Any) -> Any:
    """Read-only array (a NumPy scalar for rank 0) over an eager tensor's memory, without copying.

    Args:
        tensor: an EagerTensor on the host.
    """
    return tensor._numpy()


def address(tensor: Any) -> Any:
    """What identifies a tensor's buffer while the tensor lives; for a scalar, its bytes, which say even more.

    Args:
        tensor: an EagerTensor on the host.
    """
    array = tensor._numpy()
    if type(array) is np.ndarray and array.ndim:
        return array.__array_interface__["data"][0]
    return array.tobytes()


def tensor_from(array: np.ndarray) -> Any:
    """Eager tensor over an array that nobody will write to any more; shares its memory if that is aligned.

    Args:
        array: a C-contiguous array.
    """
    _context.context().ensure_initialized()
    return _ops.EagerTensor(array, _context.context().device_name, None)


def scratch_graph() -> Any:
    """Context in which operations give symbolic tensors, and nothing is computed; the graph is then forgotten."""
    return _FuncGraph("scratch").as_default()


def call_in_this_thread(concrete: Any, *tensors: Any) -> Any:
    """Calls a function of many tiny ops without handing them to a pool of threads, which costs more than the ops.

    Args:
        concrete: a ConcreteFunction.
        tensors: its arguments.
    """
    with _context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        return concrete(*tensors)


_TAKEN = frozenset(inspect.signature(ResourceVariable.__init__).parameters)


def create_now(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Creates a variable that a trace asks for at once, with its value.

    tf.function would initialise it after the trace: a trace that is left early would leave a variable without a value,
    and one that ends is made a second time.

    Args:
        next_creator: TensorFlow's own way.
        kwargs: arguments of tf.Variable.
    """
    value = kwargs.get("initial_value")
    if not callable(value) and any(tf.is_symbolic_tensor(leaf) for leaf in tf.nest.flatten(value)):
        return next_creator(**kwargs)
    with tf.init_scope():
        # The class itself: tf.Variable would ask the creators, which init_scope keeps, again.
        return ResourceVariable(**{key: given for key, given in kwargs.items() if given is not None and key in _TAKEN})


def without_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, left alone by AutoGraph, as Keras leaves its steps.

    Args:
        function: any callable.
    """
    return tf.autograph.experimental.do_not_convert(function)


def inlined(function: Any) -> Callable[..., Any]:
    """A tf.function's own Python function, for a trace that it becomes a part of.

    A call of the tf.function would stay a call in the graph, and XLA cannot lower gradients of loops over its border.

    Args:
        function: a tf.function, or a concrete function, which is left as it is.
    """
    python = getattr(function, "python_function", None)
    if python is None:
        return cast(Callable[..., Any], function)
    return with_autograph(python) if getattr(function, "_autograph", True) else cast(Callable[..., Any], python)


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a tf.function would trace it, where AutoGraph is off around it.

    Args:
        function: a Python function with Python control flow on tensors.
    """
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.autograph.impl import api

    on = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
    return api.convert(recursive=True, user_requested=True, conversion_ctx=on)(function)
