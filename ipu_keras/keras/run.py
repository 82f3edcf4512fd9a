"""`strategy.run`: a user's tf.function as one device program, through the same sessions as Keras's steps."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.config import system
from ipu_keras.errors import DataError, UnsupportedError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.gradients import Gradients
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.trace import OutputRef, Traced
from ipu_keras.keras import adapter
from ipu_keras.keras.feeding import Feeding, has_iterator
from ipu_keras.keras.refusals import Float64Error, NotCompiledError
from ipu_keras.keras.session import Program, Session, last_step

__all__ = ["FunctionRunner", "GenerateFunction"]


class FunctionRunner:
    """Programs of one user function.

    Args:
        function: a tf.function or a concrete function.
        target: name of the target or a Target.
        options: options of the compiler.
        engine_options: keyword arguments of ``executable.engine``.
        model: whose layers the function calls, for reports.
        execute: False for programs that are only profiled.
        ipus: chips of the device: each runs the function as a replica, unless it is a pipeline.

    Raises:
        NotCompiledError: the function is neither.
    """

    def __init__(
        self,
        function: Any,
        target: Any,
        options: dict[str, Any] | None,
        engine_options: dict[str, Any] | None,
        model: Any = None,
        execute: bool = True,
        ipus: int = 1,
    ) -> None:
        if not isinstance(function, _COMPILED):
            raise NotCompiledError(
                f"IPUStrategy.run does not support eager execution: {getattr(function, '__name__', function)!r} is a "
                "plain Python function. Decorate it with @tf.function."
            )
        self._function = weakref.ref(function)
        self._how, self._execute, self._ipus = (target, options, engine_options), execute, ipus
        self._spreading = system.spreading()
        self._name = str(getattr(function, "__name__", None) or getattr(function, "name", "function"))
        self._make = lambda step: Session(
            step,
            name=self._name,
            target=target,
            options=options,
            scopes=self._scopes,
            finish=self._finish,
            engine_options=engine_options,
            execute=execute,
        )
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._tracer: Any = None
        self._pending: tuple[Any, Any] = ((), {})
        self._sessions: dict[Any, tuple[Session, Any]] = {}
        self._feeding: Feeding | None = None
        self.latest: Program | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the function.

        Args:
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        if has_iterator((args, kwargs)):
            return self._fed((args, kwargs))
        program, arrays = self.program(args, kwargs)
        results = program.run([self.for_all(program, a) for a in arrays], program.iterations)
        return program.pack(results, functools.partial(last_step, replicas=program.parallel.replicas))

    @property
    def replicas(self) -> int:
        """How often each execution runs the function, on chips side by side; a pipeline's stages need some of them."""
        return self._ipus

    @staticmethod
    def for_all(program: Program, array: np.ndarray) -> np.ndarray:
        """An argument as every micro-batch and every replica gets it.

        Args:
            program: that takes it.
            array: as one of them takes it.
        """
        spec = program.parallel
        steps = program.iterations * spec.micro_batches
        lead = (steps, spec.replicas) if spec.replicas > 1 else (steps,)
        return np.broadcast_to(array, (*lead, *array.shape))

    def outdated(self, strategy: Any) -> bool:
        """Whether its programs are for another chip or other options than the strategy has now.

        Args:
            strategy: the strategy.
        """
        made_for = (*self._how[:2], self._ipus, self._spreading)
        return made_for != (strategy.target, strategy.options, strategy.ipus, system.spreading())

    def program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, list[np.ndarray]]:
        """The program for these arguments, and the arrays among them that are sent to it.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
        """
        arrays: list[np.ndarray] = []
        fixed: list[Any] = []
        for number, leaf in enumerate(tf.nest.flatten((args, kwargs))):
            array = self._array(leaf, number)
            fixed.append(_HOLE if array is not None else leaf)
            if array is not None:
                arrays.append(array)
        session = self._session(args, kwargs, fixed)
        self._pending = (args, kwargs)
        parallel = Parallel(replicas=self._ipus)
        self.latest = session.program(tuple(arrays), tuple((a.shape, a.dtype) for a in arrays), parallel)
        return self.latest, arrays

    def _fed(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        if self._feeding is None:
            function = self._function()
            if function is None or not hasattr(function, "get_concrete_function"):
                raise UnsupportedError(
                    f"{self._name} is a concrete function, which takes no iterator; hand over the tf.function.",
                    ["an iterator for a concrete function"],
                )
            self._feeding = Feeding(function, self._around, self._name)
        try:
            return self._feeding(arguments)
        finally:
            self.latest = self._feeding.latest or self.latest

    def _around(self, function: Any) -> FunctionRunner:
        """A runner like this one for a function that calls this one's, and that nobody else holds."""
        made = FunctionRunner(function, *self._how, model=self._model(), execute=self._execute, ipus=self._ipus)
        made._function = lambda: function  # type: ignore[method-assign,assignment]
        return made

    def _array(self, leaf: Any, number: int) -> np.ndarray | None:
        """The array that is sent to the device, None for a value that is compiled in."""
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            raise DataError(f"{self._name}: argument {number} is a {type(leaf).__name__}, which has no fixed shape.")
        if isinstance(leaf, (np.ndarray, np.generic)):
            array = np.asarray(leaf)
        elif isinstance(leaf, tf.Tensor):
            array = np.asarray(tfapi.view(leaf))
        else:
            return None
        if array.dtype == np.float64:
            raise Float64Error(
                f"Unsupported data type for input/output: float64. Argument {number} of {self._name} (shape "
                f"{list(array.shape)}) has it; cast it to float32."
            )
        if array.dtype.kind in "OSU":
            raise DataError(f"{self._name}: argument {number} is a string tensor; a device has none.")
        return array

    def _session(self, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: list[Any]) -> Session:
        structure = tf.nest.map_structure(lambda _: None, (args, kwargs))
        key = (repr(structure), tuple(_key(leaf) for leaf in fixed))
        found = self._sessions.get(key)
        if found is None:
            found = (self._make(self._step(structure, fixed)), fixed)  # keeps alive what the key knows by its id
            self._sessions[key] = found
        return found[0]

    def _step(self, structure: Any, fixed: list[Any]) -> Callable[..., Any]:
        def step(*tensors: Any) -> Any:
            rest = iter(tensors)
            leaves = [next(rest) if leaf is _HOLE else leaf for leaf in fixed]
            args, kwargs = tf.nest.pack_sequence_as(structure, leaves)
            function = self._function()
            assert function is not None
            return tfapi.inlined(function)(*args, **kwargs)

        return step

    def _scopes(self, names: LayerNames, parallel: Parallel) -> Any:
        return self._prepared(names, parallel)

    @contextlib.contextmanager
    def _prepared(self, names: LayerNames, parallel: Parallel) -> Iterator[None]:
        function, (args, kwargs) = self._function(), self._pending
        gradients = Gradients(replicas=parallel.replicas) if parallel.replicas > 1 else None
        with adapter.trace_scopes(names, self._model(), gradients, self._ipus) as self._tracer:
            if function is not None and hasattr(function, "get_concrete_function"):
                # Variables that it creates on its first call must be created outside the trace around it.
                specs = tf.nest.map_structure(_spec, (args, kwargs))
                function.get_concrete_function(*specs[0], **specs[1])
            yield

    def _finish(self, traced: Traced) -> None:
        adapter.name_owners(traced, self._tracer, self._model())
        self._tracer = None
        for leaf in tf.nest.flatten(traced.outputs):
            if isinstance(leaf, OutputRef) and traced.concrete.outputs[leaf.index].dtype == tf.float64:
                raise Float64Error(
                    f"Unsupported data type for input/output: float64. Result {leaf.index} of {self._name} has it; "
                    "cast it to float32."
                )


_COMPILED = (tf.types.experimental.ConcreteFunction, tf.types.experimental.PolymorphicFunction)


class _Hole:
    """Marks the place of a tensor argument."""


_HOLE = _Hole()


def _key(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, str, bytes, type(None))):
        return (type(leaf), leaf)
    return (type(leaf), id(leaf))


def _spec(leaf: Any) -> Any:
    return tf.TensorSpec(leaf.shape, leaf.dtype) if isinstance(leaf, (tf.Tensor, np.ndarray, np.generic)) else leaf


class GenerateFunction:
    """Replaces the ``generate_function`` of a keras-hub model: all steps of a generation are one device execution.

    Args:
        model: a model made in the scope that has a ``generate_step``.
    """

    def __init__(self, model: Any) -> None:
        strategy = model._ipu_strategy
        self._function = tf.function(model.generate_step)
        how = (strategy.target, strategy.options, strategy.engine_options)
        self._strategy = strategy
        # A text is generated once, however many replicas there could be.
        self._runner = FunctionRunner(self._function, *how, model, strategy.execute)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's ``generate_step``.

        Args:
            args: of `generate_step`; arrays are sent to the device, other values are compiled in.
            kwargs: of `generate_step`.
        """
        return self._runner(args, kwargs)

    @property
    def outdated(self) -> bool:
        """Whether it is for another chip or other options than the strategy has now."""
        return self._runner._how[:2] != (self._strategy.target, self._strategy.options)

    @property
    def latest(self) -> Program | None:
        """The program of the last generation."""
        return self._runner.latest
