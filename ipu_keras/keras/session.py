"""Programs of one step function, one for each set of shapes: traced, compiled, run with the weights on the tiles."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.compiler import synthetic
from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.config import flags
from ipu_keras.errors import DataError
from ipu_keras.frontend import abstract, collectives, queues, tfapi
from ipu_keras.frontend.layers import LayerNames
from ipu_keras.frontend.trace import OutputRef, Traced, trace
from ipu_keras.keras.variables import NoSync, VariableSync
from ipu_keras.ops import _seeds
from ipu_runtime.rounding import NEAREST

__all__ = ["Program", "Session", "Signature", "last_step"]

logger = logging.getLogger("ipu_keras")

# (shape, NumPy dtype) of each tensor of the data; None where the data has None
Signature = tuple[tuple[tuple[int, ...], np.dtype] | None, ...]


class Program:
    """A compiled step for one set of shapes, and its engine, which is made when it first runs.

    Args:
        traced: the lowered step.
        executable: what ``compile_module`` made of it.
        engine_options: for ``executable.engine``.
        parallel: over how many chips it is spread.
        iterations: of an execution, where the program itself says so.
    """

    def __init__(
        self,
        traced: Traced,
        executable: Any,
        engine_options: dict[str, Any] | None = None,
        parallel: Parallel | None = None,
        iterations: int = 1,
    ) -> None:
        self.iterations = iterations
        self._given: tuple[list[dict[str, Any]], dict[int, np.ndarray]] | None = None
        self.traced = traced
        self.executable = executable
        self.parallel = parallel or Parallel()
        self._engine_options = engine_options or {}
        header = executable.program.header
        unsent = {spec["param"] for spec in header.get("synthetic", {}).get("feeds", [])}
        self._feeds = [(parameter, i) for parameter, i in traced.feeds.items() if parameter not in unsent]
        self._random: bool | None = None
        self._seeding: Any = None

    @functools.cached_property
    def engine(self) -> Any:
        """The device with this program.

        Raises:
            ProfileOnlyError: the program is only there to be profiled.
        """
        return self.executable.engine(**self._engine_options)

    @functools.cached_property
    def sync(self) -> VariableSync | NoSync:
        """Keeps the variables on the device and on the host the same."""
        made_up = flags.synthetic_data()
        if "parameters" in made_up.categories:
            return NoSync(self.engine, self.traced.variables, self.traced.constants, made_up.initializer)
        return VariableSync(self.engine, self.traced.variables, self.traced.constants, list(self.traced.updates))

    def run(self, leaves: list[np.ndarray | None], repeat: int) -> dict[int, np.ndarray]:
        """One device execution of `repeat` steps.

        Args:
            leaves: the flat data; each array has a leading axis of steps: `repeat` times the micro-batches of an
                iteration, and behind it one of replicas if there are several.
            repeat: number of iterations.

        Returns:
            flat output index -> array with the same leading axes.
        """
        results = self.attempt(leaves, repeat)
        self.commit()
        return results

    def attempt(self, leaves: Sequence[np.ndarray | None], repeat: int, turns: int = -1) -> dict[int, np.ndarray]:
        """One device execution whose new states stay on the device until `commit`; `sync.invalidate` forgets them.

        Args:
            leaves: as for `run`.
            repeat: as for `run`.
            turns: how often loops may go back; see the engine.

        Raises:
            LoopLimitError: they did so more often.
            FloatingPointTrap: something that the configuration traps; nothing has changed.
            ProfileOnlyError: the program is only there to be profiled.
        """
        sync = self.sync
        try:
            sync.upload()
            specs = self.executable.program.header.get("queues", [])
            arrays = queues.exchange(specs, lambda count: count * repeat, self.parallel.replicas) if specs else None
            self._seed()
            results = dict(self.engine.run(self.feeds_of(leaves), repeat, turns, arrays))
            results |= synthetic.results(self.executable.program.header, repeat)
            self._given = (specs, arrays) if arrays is not None else None
            return results
        except OverflowError as error:
            sync.invalidate()
            raise DataError(f"{self.executable.name}: {error}. Cast the data to int32 or smaller values.") from error
        except BaseException:
            # Ctrl-C, too: the tiles may be half-way through a step, the tf.Variables are those of the last execution.
            sync.invalidate()
            raise

    def _seed(self) -> None:
        """Where something is rounded at random: the device's seed, if it has another one by now."""
        if self._random is None:
            self._random = bool((self.executable.program.groups[:, 6] != NEAREST).any())
        if self._random and "seed" not in flags.synthetic_data().categories:
            seeding = _seeds.rounding()
            if seeding is not self._seeding:
                self.engine.reset_seed(_seeds.rounding_seed(seeding), seeding.alike)
                self._seeding = seeding

    def commit(self) -> None:
        """The device's states become the tf.Variables'."""
        try:
            self.sync.download()
        except BaseException:
            self.sync.invalidate()
            raise
        if self._given is not None:
            # Only now: an attempt that is made again has given nothing.
            given, self._given = self._given, None
            queues.deliver(*given)

    def feeds_of(self, leaves: Sequence[np.ndarray | None]) -> dict[int, np.ndarray | None]:
        """The flat data by entry parameter.

        Args:
            leaves: as for `run`.
        """
        return {parameter: leaves[i] for parameter, i in self._feeds}

    def pack(self, results: dict[int, np.ndarray], convert: Callable[[np.ndarray], Any]) -> Any:
        """The step's result structure.

        Args:
            results: what `run` returned.
            convert: makes the value of a leaf of the array with the leading axis.
        """
        return tf.nest.map_structure(
            lambda leaf: convert(results[leaf.index]) if isinstance(leaf, OutputRef) else leaf, self.traced.outputs
        )


class Session:
    """Cache of the programs of one step function.

    Args:
        step: the function; takes a tuple of arguments.
        name: for messages and logs, such as ``"sequential.train_step"``.
        target: name of the target or a Target.
        options: options of the compiler.
        scopes: makes, for a LayerNames to fill and a Parallel, the context in which the step is traced.
        finish: completes the LayerNames after a trace.
        prepare: called with the step's specs before a trace.
        engine_options: keyword arguments of ``executable.engine``.
        execute: False for programs that are only profiled; variables made by the step are abstract.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        name: str,
        target: Any = "gc200",
        options: dict[str, Any] | None = None,
        scopes: Callable[[LayerNames, Parallel], AbstractContextManager[Any]] | None = None,
        finish: Callable[[Traced], None] | None = None,
        prepare: Callable[[Any], None] | None = None,
        engine_options: dict[str, Any] | None = None,
        execute: bool = True,
    ) -> None:
        self._step = step
        self._name = name
        self._target = target
        self._options = options
        self._scopes = scopes
        self._finish, self._prepare = finish, prepare
        self._engine_options, self._execute = engine_options, execute
        self._programs: dict[tuple[Any, Signature, Parallel], Program] = {}
        self.latest: Program | None = None

    @property
    def programs(self) -> list[Program]:
        """The programs made so far, oldest first."""
        return list(self._programs.values())

    def program(self, structure: Any, signature: Signature, parallel: Parallel | None = None) -> Program:
        """The program for these shapes, compiled now if there is none yet.

        Args:
            structure: the tuple of arguments, of which only the nesting is used.
            signature: shape and dtype of each leaf.
            parallel: over how many chips the step is spread, and how.

        Raises:
            UnsupportedError, IPUOutOfMemoryError: from lowering and compiling.
        """
        parallel = parallel or Parallel()
        key = (_shape_of(structure), signature, parallel)
        program = self._programs.get(key)
        if program is None:
            program = self._compile(structure, signature, key)
            self._programs[key] = program
        self.latest = program
        return program

    def _compile(self, structure: Any, signature: Signature, key: tuple[Any, Signature, Parallel]) -> Program:
        from ipu_keras.compiler import compile_module

        logger.info("compiling %s: %s", self._name, self._reason(key))
        start = time.perf_counter()
        specs = tf.nest.pack_sequence_as(
            structure, [None if leaf is None else tf.TensorSpec(leaf[0], tf.as_dtype(leaf[1])) for leaf in signature]
        )
        names = LayerNames()
        with abstract.abstract_variables(not self._execute):
            if self._prepare is not None:
                self._prepare(specs)
            traced = trace(
                self._step,
                specs,
                name=self._name,
                names=names,
                scopes=self._scopes(names, key[2]) if self._scopes is not None else None,
                create=tfapi.create_now if self._execute else abstract.create,
            )
        if self._finish is not None:
            self._finish(traced)
        lowered = time.perf_counter()
        parallel, iterations = _spread(traced.module, key[2])
        executable = compile_module(
            traced.module,
            target=self._target,
            options=self._options,
            state=traced.state,
            layers=names,
            name=self._name,
            execute=self._execute,
            parallel=parallel,
        )
        program = Program(traced, executable, self._engine_options, parallel, iterations)
        logger.info(
            "compiled %s in %.2f s (%.2f s of it tracing and lowering)",
            self._name,
            time.perf_counter() - start,
            lowered - start,
        )
        return program

    def _reason(self, key: tuple[Any, Signature, Parallel]) -> str:
        if not self._programs:
            return "first use, with " + describe(key[1])
        last = next(reversed(self._programs))
        if last[0] != key[0]:
            return "the data has another structure than before, now " + describe(key[1])
        if last[2] != key[2]:
            return "the step is spread over chips in another way than before"
        changes = [
            f"tensor {i} was {_one(old)} and is {_one(new)}"
            for i, (old, new) in enumerate(zip(last[1], key[1], strict=False))
            if old != new
        ]
        return "other data: " + ("; ".join(changes) or describe(key[1]))


def _spread(module: bytes, parallel: Parallel) -> tuple[Parallel, int]:
    """How a module is spread: as it says itself, on as many replicas as there are IPUs for."""
    return collectives.announced(module) or (parallel, 1)


def last_step(array: np.ndarray, replicas: int = 1) -> Any:
    """A result of the last step of an execution, as a tensor; of the last replica, if there are several.

    Args:
        array: with a leading axis of steps, and one of replicas if there are several.
        replicas: how many there are.
    """
    array = array[-1:] if replicas == 1 else array[-1, -1:]
    return tfapi.tensor_from(np.asarray(array[0], order="C"))  # not ascontiguousarray, which makes scalars vectors


def describe(signature: Signature) -> str:
    """Shapes and dtypes for a message, such as ``float32[32, 784], int64[32]``.

    Args:
        signature: shape and dtype of each leaf.
    """
    return ", ".join(_one(leaf) for leaf in signature) or "no data"


def _one(leaf: tuple[tuple[int, ...], np.dtype] | None) -> str:
    return "None" if leaf is None else f"{leaf[1].name}{list(leaf[0])}"


def _shape_of(structure: Any) -> Any:
    """The nesting as something hashable: containers by type and keys, leaves all alike."""
    if isinstance(structure, dict):
        return (dict, tuple((key, _shape_of(structure[key])) for key in sorted(structure)))
    if isinstance(structure, (list, tuple)):
        return (type(structure), tuple(_shape_of(item) for item in structure))
    return structure is None
