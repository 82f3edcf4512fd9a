"""The train, test and predict functions of a model made in the scope: eager Python around one device execution."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.config import system
from ipu_keras.errors import DataError
from ipu_keras.frontend import tfapi
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.trace import Traced
from ipu_keras.keras import adapter, data, options, spread
from ipu_keras.keras.pipeline.query import prepare
from ipu_keras.keras.session import Program, Session, Signature, describe

__all__ = ["CallRules", "PredictFunction", "StepFunction"]

logger = logging.getLogger("ipu_keras")

_Batch = tuple[Any, Signature, list[Any]]  # nesting, shapes, arrays


class CallRules:
    """What one call of fit, evaluate or predict expects of its batches: all alike, but for an allowed partial last one.

    Args:
        what: for messages.
        partial: whether a smaller batch gets a program of its own.
    """

    def __init__(self, what: str, partial: bool) -> None:
        self._what = what
        self._partial = partial
        self._first: Signature | None = None

    def check(self, signature: Signature) -> None:
        """Accepts a batch.

        Args:
            signature: shapes and dtypes of its tensors.

        Raises:
            DataError: it differs from the first in a way that a device program cannot follow.
        """
        if self._first is None:
            self._first = signature
        elif signature != self._first:
            self._refuse(signature)

    def _refuse(self, signature: Signature) -> None:
        assert self._first is not None
        size, first = _batch_size(signature), _batch_size(self._first)
        inner = [None if s is None else (s[0][1:], s[1]) for s in signature]
        if inner != [None if s is None else (s[0][1:], s[1]) for s in self._first] or size is None or first is None:
            raise DataError(
                f"{self._what}: a batch has {describe(signature)} where the first had {describe(self._first)}; shapes "
                "that are not fully defined need a program each. Pad the data to one shape (padded_batch)."
            )
        if size > first or not self._partial:
            raise DataError(
                f"{self._what}: the data has a partial batch of {size} sample(s) where the first had {first}, and "
                "a device program has one batch size. Use drop_remainder=True, or "
                'IPUStrategy(partial_batch="compile"), which compiles a second program for a smaller last batch.'
            )


class _Function:
    """Turns batches into device executions; base of the functions that Keras calls.

    Args:
        model: a model made in the scope.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
    """

    def __init__(self, model: Any, kind: str) -> None:
        strategy = model._ipu_strategy
        self._model = model
        self._kind = kind
        self._what = f"{model.name}.{kind}_step"
        self._buffers: dict[tuple[Signature, int], list[Any]] = {}
        self._tracer: Any = None
        self._how = how(model)
        self.session = Session(
            getattr(model, f"{kind}_step"),
            name=self._what,
            target=self._how[0],
            options=self._how[1],
            scopes=self._scopes,
            finish=self._finish,
            prepare=self._prepare if kind == "train" else None,
            engine_options=strategy.engine_options,
            execute=strategy.execute,
        )
        self._last: tuple[Signature, tuple[Any, Program, Parallel]] | None = None
        self._lock = threading.Lock()

    def _prepare(self, specs: Any) -> None:
        adapter.build_first(self._model, specs[0])

    def _traced_in(self, names: LayerNames, parallel: Parallel) -> Any:
        return spread.traced_for(self._model, parallel, names)

    def _shared(self, batches: int | None) -> tuple[Parallel, int]:
        return spread.shared(self._model, self._kind, batches)

    def _scopes(self, names: LayerNames, parallel: Parallel) -> Any:
        return _Remember(self, self._traced_in(names, parallel))

    def _finish(self, traced: Traced) -> None:
        adapter.name_owners(traced, self._tracer, self._model)
        self._tracer = None

    def take(self, iterator: Iterable[Any]) -> list[Any]:
        """Up to steps_per_execution batches.

        Args:
            iterator: of batches.
        """
        batches = []
        source = iter(iterator)
        # What is only compiled needs one batch, for its shapes. Keras knows of steps of all replicas together.
        for _ in range(int(self._model.steps_per_execution) if self._model._ipu_strategy.execute else 1):
            try:
                batches.append(next(source))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return batches

    @property
    def outdated(self) -> bool:
        """Whether its programs are for another chip or other options than the strategy has now."""
        return self._how != how(self._model)

    def compiled(self, structure: Any, signature: Signature) -> Program:
        """The program for batches of these shapes; nothing runs.

        Args:
            structure: a batch, of which only the nesting is used.
            signature: shape and dtype of each of its tensors.

        Raises:
            UnsupportedError, IPUOutOfMemoryError: from lowering and compiling.
        """
        with self._lock:
            prepare(self._model, structure, signature)
            parallel, _ = self._shared(None)
            return self._program(structure, signature, parallel)

    def _read(self, batch: Any) -> _Batch:
        leaves = [data.leaf_array(leaf, self._what) for leaf in tf.nest.flatten(batch)]
        signature = tuple([None if a is None else (a.shape, a.dtype) for a in leaves])
        rules = self._model.__dict__.get("_ipu_rules")
        if rules is not None:
            rules.check(signature)
        return batch, signature, leaves

    def _run(self, batches: list[_Batch]) -> list[tuple[Any, dict[int, np.ndarray], int]]:
        """Runs batches in order: one execution for all that are alike. Gives program, results and steps of each."""
        with self._lock:  # an engine and its buffers serve one thread at a time
            return self._run_groups(batches)

    def _run_groups(self, batches: list[_Batch]) -> list[tuple[Any, dict[int, np.ndarray], int]]:
        done = []
        start = 0
        while start < len(batches):
            structure, signature, _ = batches[start]
            end = start + 1
            while end < len(batches) and batches[end][1] == signature:
                end += 1
            prepare(self._model, structure, signature)
            # What is only compiled took one batch, for its shapes.
            executes = self._model._ipu_strategy.execute
            parallel, repeat = self._shared(end - start if executes else None)
            program = self._program(structure, signature, parallel)
            arrays = self._stack(batches[start:end], signature)
            arrays = spread.by_replica(arrays, parallel.replicas if executes else 1)
            done.append((program, program.run(arrays, repeat), repeat))
            start = end
        return done

    def _program(self, structure: Any, signature: Signature, parallel: Parallel) -> Program:
        # The structure is nearly always that of the execution before: hashing the nesting again would cost more.
        last = self._last
        if (
            last is not None
            and last[0] == signature
            and last[1][2] == parallel
            and _same_nesting(last[1][0], structure)
        ):
            return last[1][1]
        program = self.session.program((structure,), signature, parallel)
        self._last = (signature, (tf.nest.map_structure(lambda _: None, structure), program, parallel))
        return program

    def _stack(self, batches: list[_Batch], signature: Signature) -> list[Any]:
        if len(batches) == 1:
            return [None if a is None else a[None] for a in batches[0][2]]
        key = (signature, len(batches))
        buffers = self._buffers.get(key)
        if buffers is None:
            buffers = [None if s is None else np.empty((len(batches), *s[0]), s[1]) for s in signature]
            self._buffers = {key: buffers}  # one set only: epochs use the same, and it may be large
        for step, batch in enumerate(batches):
            for buffer, array in zip(buffers, batch[2], strict=True):
                if buffer is not None:
                    buffer[step] = array
        return buffers


class _Remember:
    """Keeps the tracer that a context manager gives, for `_Function._finish`."""

    def __init__(self, function: _Function, context: Any) -> None:
        self._function, self._context = function, context

    def __enter__(self) -> Any:
        self._function._tracer = self._context.__enter__()
        return self._function._tracer

    def __exit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


class StepFunction(_Function):
    """Replaces Keras's ``train_function`` or ``test_function``.

    Attributes:
        steps: of the last execution.
    """

    steps = 0

    def __call__(self, iterator: Iterable[Any]) -> Any:
        """Takes steps_per_execution batches, runs them as one execution, returns the last step's logs.

        Args:
            iterator: of batches.

        Raises:
            StopIteration: there is no batch left.
            DataError: the batches do not fit a device program.
        """
        batches = [self._read(batch) for batch in self.take(iterator)]
        if not batches:
            raise StopIteration
        self.steps = len(batches)
        program, results, _ = self._run(batches)[-1]
        return program.pack(results, spread.logs_of(self._model, program.parallel))


class PredictFunction(_Function):
    """Replaces Keras's ``predict_function``, which is handed a list of batches."""

    def __call__(self, batches: list[Any]) -> Any:
        """Runs the batches as one execution and returns the predictions, concatenated in their order.

        Args:
            batches: up to steps_per_execution elements of the data.
        """
        parts = self._run([self._read(batch) for batch in batches])
        outputs = [
            program.pack(results, spread.in_order(program.parallel, _all_steps)) for program, results, _ in parts
        ]
        if len(outputs) == 1:
            return tf.nest.map_structure(_tensor, outputs[0])
        return tf.nest.map_structure(lambda *arrays: _tensor(_join(arrays)), *outputs)


def how(model: Any) -> tuple[Any, ...]:
    """What a model's programs are made for: another chip, other options or stages need other ones.

    Args:
        model: made in the scope.
    """
    strategy = model._ipu_strategy
    return (
        strategy.target,
        strategy.options,
        strategy.ipus,
        system.spreading(),
        options.version(model),
    )


def make_function(model: Any, kind: str) -> Callable[..., Any]:
    """The function that Keras shall call.

    Args:
        model: a model made in the scope.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
    """
    return PredictFunction(model, kind) if kind == "predict" else StepFunction(model, kind)


def _batch_size(signature: Signature) -> int | None:
    sizes = {s[0][0] for s in signature if s is not None and s[0]}
    return sizes.pop() if len(sizes) == 1 else None


def _same_nesting(skeleton: Any, structure: Any) -> bool:
    if skeleton is None:
        return not isinstance(structure, (dict, list, tuple))
    if type(skeleton) is not type(structure):
        return False
    if isinstance(skeleton, dict):
        return skeleton.keys() == structure.keys() and all(_same_nesting(skeleton[k], structure[k]) for k in skeleton)
    return len(skeleton) == len(structure) and all(map(_same_nesting, skeleton, structure))


def _all_steps(array: np.ndarray) -> np.ndarray:
    if array.ndim == 1:  # a number for each batch: Keras stacks them
        return array[0] if len(array) == 1 else array
    return array.reshape(-1, *array.shape[2:])


def _join(arrays: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.atleast_1d(a) for a in arrays])


def _tensor(array: Any) -> Any:
    return tfapi.tensor_from(np.asarray(array)) if isinstance(array, (np.ndarray, np.generic)) else array
