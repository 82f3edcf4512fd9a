"""What models made in the scope have of their own: a subclass for each class, with the same name."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipu_keras.errors import ConfigError, DataError, ProfileOnlyError
from ipu_keras.keras import adapter, data, spread
from ipu_keras.keras.options import Options
from ipu_keras.keras.pipeline.model import Pipelined
from ipu_keras.keras.pipeline.rules import check_call
from ipu_keras.keras.refusals import NO_EAGER, ModeError
from ipu_keras.keras.run import GenerateFunction
from ipu_keras.keras.saved import Savable
from ipu_keras.keras.steps import effective_batch
from ipu_keras.keras.training import CallRules, make_function

if TYPE_CHECKING:
    from ipu_keras.keras.strategy import IPUStrategy

__all__ = ["IPUModel", "InScope", "call_arguments", "model_class", "not_trained"]

logger = logging.getLogger("ipu_keras")
_logged: set[str] = set()


class InScope:
    """A model that is made in a scope, of any Keras.

    Attributes:
        _ipu_strategy: the strategy; on the class, so that clones have it, too.
        _ipu_base: the class outside the scope.
    """

    _ipu_strategy: IPUStrategy
    _ipu_base: type

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Outside every scope (a clone, a config) the class makes what its name says, a plain model."""
        if adapter.scope_is_open():
            made = super().__new__(cls, *args, **kwargs)
            if not isinstance(made, cls):  # of the scope of another strategy: Python initializes only a class's own
                type(made).__init__(made, *args, **kwargs)
            return made
        return cls._ipu_base(*args, **kwargs)


class IPUModel(Options, Pipelined, Savable, InScope):
    """Mixed in before the class of a model that is made in ``IPUStrategy().scope()``."""

    # --- compile

    @property
    def run_eagerly(self) -> bool:
        """Always False: the device runs compiled programs only."""
        return adapter.base_run_eagerly.fget(self)

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        if value:
            raise ModeError(NO_EAGER)
        adapter.base_run_eagerly.fset(self, value)

    @property
    def jit_compile(self) -> Any:
        """What compile() was given; it changes nothing, every step is lowered by XLA's front end."""
        return adapter.base_jit_compile.fget(self)

    @jit_compile.setter
    def jit_compile(self, value: Any) -> None:
        if value is True:
            _log_once("jit_compile=True is ignored in the scope of an IPUStrategy: all steps are compiled for it.")
        adapter.base_jit_compile.fset(self, value)

    # --- the functions that Keras calls for each execution

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that runs `train_step` on the device.

        Args:
            force: make it anew, and compile anew.
        """
        return _make(self, "train", force)

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that runs `test_step` on the device.

        Args:
            force: make it anew, and compile anew.
        """
        return _make(self, "test", force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes the function that runs `predict_step` on the device.

        Args:
            force: make it anew, and compile anew.
        """
        return _make(self, "predict", force)

    # --- whole calls: the data is checked before anything runs

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.fit`; see ``docs`` for the data rules. With ``execute=False`` nothing is trained.

        Raises:
            DataError: the data does not make whole batches and executions; with the numbers and the way out.
        """
        method = super().fit  # type: ignore[misc]
        check_call(self, "fit")
        given = call_arguments(method, args, kwargs)
        x, split = given.get("x"), given.get("validation_split") or 0.0
        validation, batch = given.get("validation_data"), given.get("batch_size")
        lengths = data.split_lengths(x, split) if split and validation is None else None
        plan = _plan(self, "fit", x, batch, given.get("steps_per_epoch"), lengths[0] if lengths else None)
        v_batch, v_steps = given.get("validation_batch_size") or batch, given.get("validation_steps")
        # Whether the batches make whole executions is seen when Keras evaluates, unless they fill a pipeline.
        tested = None
        later = 1 if spread.share_of(self, training=False).alone else None
        if lengths is not None:
            tested = _plan(self, "the validation split of fit", x, v_batch, v_steps, lengths[1], later)
        elif validation is not None:
            val_x = validation[0] if isinstance(validation, (tuple, list)) else validation
            tested = _plan(self, "the validation data of fit", val_x, v_batch, v_steps, steps_per_execution=later)
        if plan.steps_per_execution == 1 and (plan.steps or 0) > 1:
            _log_once(
                "steps_per_execution is 1: each step is a device execution of its own. A larger number in compile() "
                "keeps the weights on the tiles for that many steps."
            )
        self._log_batch(x, batch, plan)
        with _calling(self, "fit", plan.steps_per_execution), not_trained(self):
            kwargs = _whole(kwargs, given, "steps_per_epoch", plan)
            if tested is not None:
                kwargs = _whole(kwargs, given, "validation_steps", tested)
            return method(*args, **kwargs)
        return self.history  # type: ignore[attr-defined]  # of no epoch: nothing was trained

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`.

        Raises:
            DataError: the data does not make whole batches and executions.
        """
        method = super().evaluate  # type: ignore[misc]
        if kwargs.get("_use_cached_eval_dataset"):
            check_call(self, "evaluate")
            model: Any = self
            compiled = int(self.__dict__.get("_ipu_compiled_steps") or model.steps_per_execution)
            share = spread.share_of(self, training=False)

            def choose(batches: int | None) -> int:
                return share.plan("the validation of fit", None, batches, compiled).steps_per_execution

            with adapter.eval_iterator_steps(self, choose) as steps, _calling(self, "the validation of fit", steps):
                return method(*args, **kwargs)
        check_call(self, "evaluate")
        given = call_arguments(method, args, kwargs)
        plan = _plan(self, "evaluate", given.get("x"), given.get("batch_size"), given.get("steps"))
        with _calling(self, "evaluate", plan.steps_per_execution):
            return method(*args, **_whole(kwargs, given, "steps", plan))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`.

        Raises:
            DataError: the data does not make whole batches and executions.
        """
        method = super().predict  # type: ignore[misc]
        check_call(self, "predict")
        given = call_arguments(method, args, kwargs)
        plan = _plan(self, "predict", given.get("x"), given.get("batch_size"), given.get("steps"))
        if plan.left_over:
            raise DataError(
                f"predict: the batches do not divide among {spread.share_of(self, training=False).replicas} replicas, "
                f"and there would be predictions for {plan.steps} of them only. Give as many batches as make whole "
                "rounds, or say with steps= how many to take."
            )
        with _calling(self, "predict", plan.steps_per_execution):
            return method(*args, **_whole(kwargs, given, "steps", plan))

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        """What Keras logs of an execution: what it gave, where the metrics' variables on the host differ."""
        if spread.shows_own_logs(self):
            return logs
        return super()._get_metrics_result_or_logs(logs)  # type: ignore[misc]

    def _log_batch(self, x: Any, batch: int | None, plan: data.Plan) -> None:
        """Says how many samples a weight update sees, if that is not a batch."""
        share = spread.share_of(self, training=True)
        size = data.batch_of(x, batch)
        if not share.alone and size is not None:
            logger.info("fit: %s", effective_batch(size, share.accumulation, share.replicas))


def model_class(strategy: IPUStrategy, kind: type, cache: dict[type, type]) -> type:
    """The class that an instance of a model's class gets in a scope.

    Args:
        strategy: the strategy of the scope.
        kind: the model's class.
        cache: the strategy's classes made so far.
    """
    base = kind._ipu_base if issubclass(kind, IPUModel) else kind
    made = cache.get(base)
    if made is None:
        namespace: dict[str, Any] = {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "_ipu_strategy": strategy,
            "_ipu_base": base,
        }
        if hasattr(base, "make_generate_function") and hasattr(base, "generate_step"):
            namespace["make_generate_function"] = _make_generate_function
        made = type(base)(base.__name__, (IPUModel, base), namespace)
        adapter.register_alias(made, base)
        cache[base] = made
    return made


def _make_generate_function(self: Any) -> Any:
    """Makes the function that runs keras-hub's `generate_step`, loop and all, on the device."""
    if self.generate_function is None or getattr(self.generate_function, "outdated", False):
        self.generate_function = GenerateFunction(self)
    return self.generate_function


def _make(model: Any, kind: str, force: bool) -> Any:
    attribute = f"{kind}_function"
    current = getattr(model, attribute)
    if current is not None and not force and not getattr(current, "outdated", False):
        return current
    own = adapter.overridden(model._ipu_base)
    if f"make_{kind}_function" in own:
        raise ModeError(
            f"The function `make_{kind}_function` of model {model.name!r} is overridden by its class; in the scope of "
            f"an IPUStrategy that function makes device executions. Override `{kind}_step` instead, which is compiled "
            "as it is."
        )
    made = make_function(model, kind)
    setattr(model, attribute, made)
    return made


def _number(steps: Any) -> int:
    """steps_per_execution as a number.

    Raises:
        ConfigError: it is "auto", which measures a host, or no number of steps.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(
            f"steps_per_execution={steps!r}: a device program runs a fixed number of steps; give compile() a number."
        )
    return steps


def _plan(
    model: Any,
    what: str,
    x: Any,
    batch: int | None,
    steps: int | None,
    length: int | None = None,
    steps_per_execution: int | None = None,
) -> data.Plan:
    return data.plan(
        what,
        x,
        batch_size=batch,
        steps=steps,
        # Within a call (a callback that evaluates) the model's own attribute may be reduced for that call.
        steps_per_execution=_number(
            steps_per_execution or model.__dict__.get("_ipu_compiled_steps") or model.steps_per_execution
        ),
        partial=model._ipu_strategy.partial_batch == "compile",
        length=length,
        share=spread.share_of(model, training=what == "fit"),
    )


def _whole(kwargs: dict[str, Any], given: dict[str, Any], name: str, plan: data.Plan) -> dict[str, Any]:
    """A call's arguments, with a number of steps where batches are left over that Keras would begin to take."""
    if plan.left_over and (name in kwargs or name not in given):
        return {**kwargs, name: plan.steps}
    return kwargs


def call_arguments(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; nothing when the call is wrong, which the method itself will say."""
    signature = inspect.signature(method)
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:
        return {}
    # keras-hub's tasks name only some of Keras's arguments and pass the others on.
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    return given


@contextlib.contextmanager
def _calling(model: Any, what: str, steps: int | None) -> Iterator[None]:
    """During a call: its steps_per_execution, and rules for its batches."""
    own = model.__dict__
    outer, compiled = own.get("_ipu_rules"), own.get("_ipu_compiled_steps")
    before = model.steps_per_execution
    own["_ipu_compiled_steps"] = before if compiled is None else compiled
    own["_ipu_rules"] = CallRules(what, model._ipu_strategy.partial_batch == "compile")
    model.steps_per_execution = steps or before
    try:
        yield
    finally:
        if model.steps_per_execution == (steps or before):
            model.steps_per_execution = before
        if outer is None:
            own.pop("_ipu_rules", None)
        else:
            own["_ipu_rules"] = outer
        if compiled is None:
            own.pop("_ipu_compiled_steps", None)


@contextlib.contextmanager
def not_trained(model: Any) -> Iterator[None]:
    """Around `fit`: with a strategy that executes nothing it ends when the step is compiled, and says so.

    Args:
        model: the model.
    """
    try:
        yield
    except ProfileOnlyError:
        if model._ipu_strategy.execute:
            raise
        logger.warning(
            "%s.fit compiled the step and trained nothing, as the strategy has execute=False. "
            "ipu_keras.executable(model).profile() has its cycles and memory.",
            model.name,
        )


def _log_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        logger.info(message)
