"""The only file that touches Keras's private parts: creation of models, scopes of layers, owners of variables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src import api_export, tree
from keras.src.backend import KerasTensor, compute_output_spec, standardize_dtype
from keras.src.backend.tensorflow import numpy as tensorflow_numpy
from keras.src.layers.layer import Layer
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.saving import object_registration
from keras.src.trainers import compile_utils
from keras.src.trainers.data_adapters import py_dataset_adapter
from keras.src.trainers.trainer import Trainer

from ipu_keras.errors import IPUError
from ipu_keras.frontend import collectives
from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.once import in_loop_or_branch
from ipu_keras.frontend.scopes import ScopeTracer
from ipu_keras.frontend.trace import Traced
from ipu_keras.keras.rows import rows_along_axis

__all__ = [
    "MODEL_FUNCTIONS",
    "check_backend",
    "created_in",
    "eval_iterator_steps",
    "is_py_dataset",
    "name_owners",
    "overridden",
    "register_alias",
    "scope_is_open",
    "trace_scopes",
]

MODEL_FUNCTIONS = ("make_train_function", "make_test_function", "make_predict_function")
TESTED = ("3.10", "3.15")  # oldest and newest release that the suite has run on


def check_backend() -> None:
    """Refuses another Keras backend than TensorFlow.

    Raises:
        IPUError: Keras runs on JAX or PyTorch; says how to change that.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise IPUError(
            f"ipu_keras lowers Keras models through TensorFlow, but Keras's backend is {backend!r}. "
            "Set the environment variable KERAS_BACKEND=tensorflow before Keras is imported."
        )


# --- models made in a scope ---------------------------------------------------------------------------------------

_creation_lock = threading.RLock()
_creation_users: dict[type, int] = {}
_creation_saved: dict[type, Any] = {}
_local = threading.local()


@contextlib.contextmanager
def created_in(choose: Callable[[type], type], base: type = Model) -> Iterator[None]:
    """While open, models that this thread creates become instances of another class.

    `base.__new__` is replaced while any thread has a scope open and put back as it was, to the very object, when the
    last one closes; in other threads the replacement does what the original does.

    Args:
        choose: gives for a model's class the one that its instance shall have.
        base: the class of all models: Keras's, or that of another Keras.
    """
    stack = _local.__dict__.setdefault("choose", [])
    with _creation_lock:
        if not _creation_users.get(base):
            _creation_saved[base] = vars(base)["__new__"]
            original = _creation_saved[base].__func__

            def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
                instance = original(cls, *args, **kwargs)
                chosen = [c for b, c in _local.__dict__.get("choose", ()) if b is base]
                if chosen:
                    kind = chosen[-1](type(instance))
                    if kind is not type(instance):
                        instance.__class__ = kind
                return instance

            type.__setattr__(base, "__new__", staticmethod(__new__))
        _creation_users[base] = _creation_users.get(base, 0) + 1
    entry = (base, choose)
    stack.append(entry)
    try:
        yield
    finally:
        stack.remove(entry)
        with _creation_lock:
            _creation_users[base] -= 1
            if not _creation_users[base]:
                type.__setattr__(base, "__new__", _creation_saved.pop(base))


def scope_is_open() -> bool:
    """Whether this thread is in a scope."""
    return bool(_local.__dict__.get("choose"))


def register_alias(kind: type, base: type) -> None:
    """Makes Keras serialize instances of a class under the name of the class that it stands for.

    Args:
        kind: the subclass.
        base: the class whose registrations it gets; loading finds `base`.
    """
    exported = api_export.REGISTERED_OBJS_TO_NAMES.get(base)
    if exported is not None:
        api_export.REGISTERED_OBJS_TO_NAMES[kind] = exported
    registered = object_registration.GLOBAL_CUSTOM_NAMES.get(base)
    if registered is not None:
        object_registration.GLOBAL_CUSTOM_NAMES[kind] = registered


def overridden(base: type) -> list[str]:
    """Which of Keras's functions that the IPU replaces a person's model class has overridden itself.

    Args:
        base: the model's class outside the scope.
    """
    found = []
    for name in MODEL_FUNCTIONS:
        owner = next((c for c in base.__mro__ if name in vars(c)), None)
        if owner is not None and not owner.__module__.startswith("keras."):
            found.append(name)
    return found


# --- the trainer --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def eval_iterator_steps(model: Any, choose: Callable[[int | None], int]) -> Iterator[int | None]:
    """Sets steps_per_execution of the validation iterator that `fit` keeps, which it makes with the training's.

    Args:
        model: the model whose fit is running.
        choose: gives the number of steps for the number of batches (None: unknown).
    """
    iterator = getattr(model, "_eval_epoch_iterator", None)
    if iterator is None:
        yield None
        return
    before = iterator.steps_per_execution
    iterator.steps_per_execution = choose(iterator.num_batches)
    try:
        yield iterator.steps_per_execution
    finally:
        iterator.steps_per_execution = before


def is_py_dataset(x: Any) -> bool:
    """Whether the data is a keras.utils.PyDataset (Sequence).

    Args:
        x: argument `x` of fit.
    """
    return isinstance(x, py_dataset_adapter.PyDataset)


base_run_eagerly = Trainer.run_eagerly
base_jit_compile = Trainer.jit_compile

# --- name scopes while a step is traced ---------------------------------------------------------------------------

_scope_lock = threading.RLock()
_scope_users = 0
_scope_saved: list[tuple[type, str, Any]] = []


@contextlib.contextmanager
def trace_scopes(
    names: LayerNames, model: Any = None, gradients: Gradients | None = None, ipus: int = 1
) -> Iterator[ScopeTracer]:
    """While open, layers, losses, metrics and optimizers that this thread calls open a name scope of ours.

    Some methods of Keras's classes are wrapped while any thread traces, and put back afterwards.

    Args:
        names: its `scopes` are filled.
        model: a model whose loss tracker gets its scope, too.
        gradients: what happens to gradients before an optimizer applies them, and to seeds.
        ipus: chips of the device.
    """
    tracer = ScopeTracer()
    tracer.gradients, tracer.ipus = gradients, ipus
    previous = getattr(_local, "tracer", None)
    _acquire_scopes(type(getattr(model, "optimizer", None)))
    _local.tracer = tracer
    tracker = getattr(model, "_loss_tracker", None)
    try:
        with _metric_scope(tracer, [tracker] if tracker is not None else []):
            yield tracer
    finally:
        _local.tracer = previous
        _release_scopes()
        names.scopes.update(tracer.scopes)


def checkpointed(values: Any) -> Any:
    """A structure of tensors, marked as kept if what is being traced works activations out again between such marks.

    Args:
        values: the structure.
    """
    tracer = current_tracer()
    how = None if tracer is None else tracer.gradients
    if how is None or not how.checkpoints or in_loop_or_branch():
        return values
    return tree.map_structure(collectives.checkpoint, values)


def _acquire_scopes(optimizer: type) -> None:
    global _scope_users
    with _scope_lock:
        if _scope_users == 0:
            _wrap(Layer, "_open_name_scope", _layer_scope)
            _wrap(SeedGenerator, "next", _seed_of_replica)
            _wrap(BatchNormalization, "_moments", _moments_of_group)
            _wrap(BaseOptimizer, "apply", _applied)
            _wrap(compile_utils.CompileLoss, "__call__", _part_scope("loss"))
            _wrap(compile_utils.MetricsList, "update_state", _metrics_scope)
            _wrap(Trainer, "get_metrics_result", _part_scope("metrics"))
            _wrap(tensorflow_numpy, "take_along_axis", rows_along_axis)
        wrapped = {owner for owner, name, _ in _scope_saved if name == "apply"}
        for owner in optimizer.__mro__:
            # An optimizer around another one (of scaled losses) has an `apply` of its own.
            if "apply" in vars(owner) and issubclass(owner, BaseOptimizer) and owner not in wrapped:
                _wrap(owner, "apply", _applied)
        _scope_users += 1


def _release_scopes() -> None:
    global _scope_users
    with _scope_lock:
        _scope_users -= 1
        if _scope_users == 0:
            while _scope_saved:
                owner, name, method = _scope_saved.pop()
                _set(owner, name, method)


def _wrap(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = vars(owner)[name]
    _scope_saved.append((owner, name, method))
    _set(owner, name, wrapper(method))


def _set(owner: Any, name: str, value: Any) -> None:
    """Past what a class of Keras tracks; a module has its functions set as any object has."""
    (type if isinstance(owner, type) else object).__setattr__(owner, name, value)


def _layer_scope(method: Callable[..., Any]) -> Callable[..., Any]:
    def _open_name_scope(self: Any) -> Any:
        tracer = getattr(_local, "tracer", None)
        if tracer is None:
            return method(self)
        return _both(tracer.layer(self, self.name), method(self))

    return _open_name_scope


@contextlib.contextmanager
def _both(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


def _part_scope(path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            tracer = getattr(_local, "tracer", None)
            if tracer is None:
                return method(self, *args, **kwargs)
            with tracer.part(path):
                return method(self, *args, **kwargs)

        return wrapped

    return wrapper


def _applied(method: Callable[..., Any]) -> Callable[..., Any]:
    """Around an optimizer's `apply`: its scope; the outermost one gets the gradients as they shall be applied."""
    scoped = _part_scope("optimizer")(method)

    def apply(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = getattr(_local, "tracer", None)
        if tracer is None or tracer.gradients is None or getattr(_local, "applying", False):
            return scoped(self, grads, *args, **kwargs)
        _local.applying = True
        try:
            with tracer.part("optimizer"):
                given = kwargs.get("trainable_variables", args[0] if args else None)
                variables = list(given) if given is not None else list(self._trainable_variables)
                reduce = tracer.gradients.reduce
                grads = [None if g is None else reduce(g, v) for g, v in zip(grads, variables, strict=False)]
            return scoped(self, grads, *args, **kwargs)
        finally:
            _local.applying = False

    return apply


def _seed_of_replica(method: Callable[..., Any]) -> Callable[..., Any]:
    """Around SeedGenerator.next: replicas draw other random numbers from seeds that are the same on all."""

    def next_(self: Any, *args: Any, **kwargs: Any) -> Any:
        seed = method(self, *args, **kwargs)
        tracer = getattr(_local, "tracer", None)
        if tracer is None or tracer.gradients is None:
            return seed
        return tracer.gradients.seed(seed)

    return next_


def _moments_of_group(method: Callable[..., Any]) -> Callable[..., Any]:
    """Around a batch normalization's statistics: replicas of a group share them."""

    def moments(self: Any, *args: Any, **kwargs: Any) -> Any:
        mean, variance = method(self, *args, **kwargs)
        tracer = getattr(_local, "tracer", None)
        if tracer is None or tracer.gradients is None:
            return mean, variance
        return tracer.gradients.moments(mean, variance)

    return moments


def _metrics_scope(method: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = getattr(_local, "tracer", None)
        if tracer is None:
            return method(self, *args, **kwargs)
        with _metric_scope(tracer, self.metrics):
            return method(self, *args, **kwargs)

    return update_state


@contextlib.contextmanager
def _metric_scope(tracer: ScopeTracer, metrics: list[Any]) -> Iterator[None]:
    """Wraps `update_state` of these metric objects, past Keras's attribute tracking."""
    wrapped = []
    try:
        for metric in metrics:
            if "update_state" in vars(metric):
                continue
            vars(metric)["update_state"] = _scoped(tracer, f"metrics/{metric.name}", metric.update_state)
            wrapped.append(metric)
        yield
    finally:
        for metric in wrapped:
            vars(metric).pop("update_state", None)


def _scoped(tracer: ScopeTracer, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        with tracer.part(path):
            return method(*args, **kwargs)

    return update_state


def current_tracer() -> ScopeTracer | None:
    """The tracer of the trace that this thread is in."""
    found: ScopeTracer | None = getattr(_local, "tracer", None)
    return found


@contextlib.contextmanager
def gradients_are_ready() -> Iterator[None]:
    """While open, optimizers apply gradients as they are handed over."""
    before = getattr(_local, "applying", False)
    _local.applying = True
    try:
        yield
    finally:
        _local.applying = before


def own_variables(optimizer: Any, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Gradients with the variables as an optimizer knows them: Keras's own objects for tf.Variables.

    Args:
        optimizer: of Keras, or of another API.
        pairs: gradient and tf.Variable.
    """
    known = {id(v.value): v for v in getattr(optimizer, "_trainable_variables", []) if hasattr(v, "value")}
    return [(gradient, known.get(id(variable), variable)) for gradient, variable in pairs]


# --- which layer owns which variable ------------------------------------------------------------------------------


def name_owners(traced: Traced, tracer: ScopeTracer | None, model: Any) -> None:
    """Fills ``traced.names.variables``.

    Args:
        traced: the lowered step.
        tracer: of the trace, knows the paths of the layers that were called.
        model: the model, or None for a function of the user's own.
    """
    owners: dict[int, tuple[str, str]] = {}
    slots: dict[str, str] = {}
    paths = tracer.owners if tracer is not None else {}
    if model is not None:
        for layer in _layers(model):
            path = paths.get(id(layer), layer.name if layer is model else getattr(layer, "path", None) or layer.name)
            for variable in _own_variables(layer):
                owners[id(variable.value)] = (variable.path, path)
                slots[variable.path.replace("/", "_")] = path
        for metric in model.metrics:
            for variable in metric.variables:
                owners.setdefault(id(variable.value), (variable.path, _metric_path(metric, variable)))
        optimizer = getattr(model, "optimizer", None)
        for variable in getattr(optimizer, "variables", []):
            owners.setdefault(id(variable.value), (variable.path, _slot_owner(variable.path, slots)))
    for parameter, variable in traced.variables.items():
        name = variable.name.split(":")[0]
        traced.names.variables[parameter] = owners.get(id(variable), (name, name.rpartition("/")[0] or name))


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers(include_self=True, recursive=True))


def _own_variables(layer: Any) -> list[Any]:
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    return own + [generator.state for generator in getattr(layer, "_seed_generators", [])]


def _metric_path(metric: Any, variable: Any) -> str:
    if isinstance(metric, compile_utils.CompileMetrics):
        return "metrics/" + variable.path.split("/")[0]
    return "metrics/" + metric.name


def _slot_owner(path: str, slots: dict[str, str]) -> str:
    """Layer of the variable that a slot such as ``adam/sequential_dense_kernel_momentum`` is for."""
    name = path.rpartition("/")[2]
    best = max((flat for flat in slots if name.startswith(flat)), key=len, default=None)
    return slots[best] if best is not None else "optimizer"


def tensorflow_variable(value: Any) -> Any:
    """The tf.Variable of a Keras or TensorFlow variable, other values unchanged.

    Args:
        value: anything.
    """
    if isinstance(value, keras.Variable):
        return value.value
    return value


def build_first(model: Any, data: Any) -> None:
    """Builds a model and its optimizer before their training step is traced.

    Some optimizers start from the weights' values; inside a trace that would become a part of every step.

    Args:
        model: a compiled model.
        data: the specs of a batch, as `train_step` gets it.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or optimizer.built:
        return
    if not model.built:
        x = data[0] if isinstance(data, tuple) else data
        symbolic = tree.map_structure(lambda s: s if s is None else KerasTensor(s.shape, standardize_dtype(s.dtype)), x)
        try:
            compute_output_spec(model, symbolic, training=False)
        except Exception:  # a model whose train_step calls it in a way of its own is built by the trace
            return
    if model.built:
        optimizer.build(model.trainable_variables)
