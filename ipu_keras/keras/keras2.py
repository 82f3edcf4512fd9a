"""tf_keras (Keras 2) models in the scope: the same sessions as Keras's, behind Keras 2's hooks.

The only file that touches tf_keras; it is imported when a scope opens in a program that uses that package.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.errors import UnsupportedError
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.scopes import ScopeTracer
from ipu_keras.frontend.trace import Traced
from ipu_keras.keras import adapter, data
from ipu_keras.keras.model import InScope, call_arguments, not_trained
from ipu_keras.keras.refusals import NO_EAGER, ModeError
from ipu_keras.keras.training import CallRules, PredictFunction, StepFunction

if TYPE_CHECKING:
    from ipu_keras.keras.strategy import IPUStrategy

__all__ = ["created_in"]


@contextlib.contextmanager
def created_in(strategy: IPUStrategy, cache: dict[type, type]) -> Iterator[None]:
    """While open, tf_keras models that this thread creates are the strategy's; nothing if tf_keras is not in use.

    Args:
        strategy: the strategy of the scope.
        cache: the strategy's classes made so far.
    """
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is None or not hasattr(tf_keras, "Model"):
        yield
        return
    with adapter.created_in(functools.partial(_model_class, strategy, cache), tf_keras.Model):
        yield


def _model_class(strategy: IPUStrategy, cache: dict[type, type], kind: type) -> type:
    base: Any = kind._ipu_base if issubclass(kind, Keras2Model) else kind
    made = cache.get(base)
    if made is None:
        namespace = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        namespace.update(_ipu_strategy=strategy, _ipu_base=base)
        made = cache[base] = type(base)(base.__name__, (Keras2Model, base), namespace)
    return made


class Keras2Model(InScope):
    """Mixed in before the class of a tf_keras model that is made in the scope."""

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that runs `train_step` on the device."""
        return _make(self, "train", force)

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that runs `test_step` on the device."""
        return _make(self, "test", force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes the function that runs `predict_step` on the device."""
        return _make(self, "predict", force)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As tf_keras's; every batch has to be of the same shape."""
        method = super().fit  # type: ignore[misc]
        with _calling(self, "fit", call_arguments(method, args, kwargs), "steps_per_epoch"), not_trained(self):
            return method(*args, **kwargs)
        return self.history  # type: ignore[attr-defined]  # of no epoch: nothing was trained

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As tf_keras's; every batch has to be of the same shape."""
        method = super().evaluate  # type: ignore[misc]
        with _calling(self, "evaluate", call_arguments(method, args, kwargs), "steps"):
            return method(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As tf_keras's; every batch has to be of the same shape."""
        method = super().predict  # type: ignore[misc]
        with _calling(self, "predict", call_arguments(method, args, kwargs), "steps"):
            return method(*args, **kwargs)


@contextlib.contextmanager
def _calling(model: Any, what: str, given: dict[str, Any], steps: str) -> Iterator[None]:
    """Check the data before anything runs, then each batch."""
    partial = model._ipu_strategy.partial_batch == "compile"
    x, batch, split = given.get("x"), given.get("batch_size"), given.get("validation_split") or 0.0
    lengths = data.split_lengths(x, split) if split and given.get("validation_data") is None else None
    first = lengths[0] if lengths else None
    data.plan(what, x, batch_size=batch, steps=given.get(steps), steps_per_execution=1, partial=partial, length=first)
    own = model.__dict__  # past Keras's tracking of attributes
    outer = own.get("_ipu_rules")
    own["_ipu_rules"] = CallRules(what, partial)
    try:
        yield
    finally:
        own["_ipu_rules"] = outer


def _make(model: Any, kind: str, force: bool) -> Any:
    if getattr(model, "_run_eagerly", False):
        raise ModeError(NO_EAGER)
    name = f"{kind}_function"
    current = getattr(model, name)
    if current is None or force or getattr(current, "outdated", False):
        current = _Predict(model, kind) if kind == "predict" else _Step(model, kind)
        setattr(model, name, current)
    return current


class _Keras2Function:
    """What is different in tf_keras: how a step is prepared and named."""

    _model: Any

    def _prepare(self, specs: Any) -> None:
        optimizer = self._model.optimizer
        if self._model.built and hasattr(optimizer, "build"):
            optimizer.build(self._model.trainable_variables)

    def _traced_in(self, names: LayerNames, parallel: Parallel) -> Any:
        del parallel
        return _layer_scopes(names)

    def _shared(self, batches: int | None) -> tuple[Parallel, int]:
        ipus = self._model._ipu_strategy.ipus
        if ipus > 1:
            raise UnsupportedError(
                f"The device has {ipus} IPUs, and a tf_keras model runs on one: replicas and pipelines are for models "
                "of Keras 3 (import keras). Use a device of one IPU.",
                [f"{ipus} replicas of a tf_keras model"],
            )
        return Parallel(), batches or 1

    def _finish(self, traced: Traced) -> None:
        for parameter, variable in traced.variables.items():
            name = variable.name.split(":")[0]
            traced.names.variables[parameter] = (name, f"{self._model.name}/{name.rpartition('/')[0]}")


class _Step(_Keras2Function, StepFunction):
    """tf_keras's ``train_function`` or ``test_function``."""

    def __call__(self, iterator: Any) -> Any:
        """Takes steps_per_execution batches and runs them as one execution."""
        logs = super().__call__(iterator)
        counter = getattr(self._model, f"_{self._kind}_counter", None)
        if counter is not None:
            counter.assign_add(self.steps)
        return logs


class _Predict(_Keras2Function, PredictFunction):
    """tf_keras's ``predict_function``, which gets the iterator."""

    def __call__(self, iterator: Any) -> Any:
        """Takes steps_per_execution batches and predicts them as one execution."""
        batches = self.take(iterator)
        if not batches:
            raise StopIteration
        self._model._predict_counter.assign_add(len(batches))
        return super().__call__(batches)


@contextlib.contextmanager
def _layer_scopes(names: LayerNames) -> Iterator[ScopeTracer]:
    """While open, tf_keras layers open name scopes of ours; see `adapter.trace_scopes`."""
    layer_class = sys.modules["tf_keras"].layers.Layer
    tracer, method = ScopeTracer(), layer_class.__call__

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with tracer.layer(self, self.name):
            return method(self, *args, **kwargs)

    layer_class.__call__ = call
    try:
        yield tracer
    finally:
        layer_class.__call__ = method
        names.scopes.update(tracer.scopes)
