"""IPUStrategy: the scope in which Keras models run on an emulated IPU, and `run` for functions of a user's own."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import one_device_strategy

from ipu_keras.compiler.executable import Executable
from ipu_keras.config import system
from ipu_keras.errors import ConfigError, DataError
from ipu_keras.frontend.abstract import abstract_variables
from ipu_keras.keras import adapter, keras2
from ipu_keras.keras.model import model_class
from ipu_keras.keras.refusals import InsideFunctionError, ModeError
from ipu_keras.keras.run import FunctionRunner
from ipu_keras.target import Target, resolve

__all__ = ["IPUStrategy", "IPUStrategyV1"]

_PARTIAL = ("error", "compile")


class IPUStrategy(tf.distribute.Strategy):
    """Keras models created in its scope train, evaluate and predict on an emulated IPU.

    Nothing else changes in a script: models keep their class name, their methods and their files. Calling a model
    (``model(x)``) runs on the host, as TensorFlow's eager operations do.

    The scope does not become TensorFlow's current distribution strategy: variables and optimizers stay ordinary
    ones, so they can be made outside it, and mixed.

    Args:
        ipu_device: name of the device; there is one, and only its form is checked.
        cpu_device: host device for initial values.
        enable_dataset_iterators: accepted; ``iter(dataset)`` in the scope gives TensorFlow's own iterator.
        enable_keras_extensions: False leaves models created in the scope plain Keras models.
        target: the chip, a name such as ``"gc200"`` or an ``ipu_keras.target.Target``. None for the chip and the
            compiler's options of the configured system (``ipu_keras.config``), or a GC200 while nothing is configured.
            That may change while the strategy exists: what runs then is compiled anew.
        options: options of the compiler, over those of the configured system if that is used.
        partial_batch: ``"error"`` refuses a last batch that is smaller than the others, ``"compile"`` compiles a second
            program for it.
        threads: host threads of the emulation, None for all.
        strict: whether every operand of the emulation is checked; None for the default.
        execute: False for programs that are compiled and profiled and never run. The variables of models made in the
            scope then have a shape and a dtype, and no values, and take (nearly) no memory. ``fit`` compiles the step
            and trains nothing; ``evaluate``, ``predict``, ``run`` and the like compile and raise ProfileOnlyError, as
            they have no results. `ipu_keras.analyse` compiles without all that.
        ipus: chips of the device. None for those of the configured system (`IPUConfig.auto_select_ipus`), or one.

    Raises:
        ConfigError: an argument that cannot be.
        UnknownTargetError: there is no such target; offers the nearest name.

    Example:
        >>> import keras
        >>> from ipu_keras import IPUStrategy
        >>> with IPUStrategy().scope():
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
        *,
        target: str | Target | None = None,
        options: dict[str, Any] | None = None,
        partial_batch: str = "error",
        threads: int | None = None,
        strict: bool | None = None,
        execute: bool = True,
        ipus: int | None = None,
    ) -> None:
        adapter.check_backend()
        if "IPU" not in str(ipu_device).upper():
            raise ConfigError(f"ipu_device is {ipu_device!r}; it must name an IPU, such as '/device:IPU:0'.")
        if partial_batch not in _PARTIAL:
            allowed = ", ".join(map(repr, _PARTIAL))
            raise ConfigError(f"partial_batch is {partial_batch!r}; it must be one of {allowed}.")
        super().__init__(one_device_strategy.OneDeviceExtended(self, cpu_device))
        self._device = ipu_device
        self._extend = enable_keras_extensions
        self._dataset_iterators = enable_dataset_iterators
        self._target = None if target is None else resolve(target)
        # Strict mode watches the bytes between allocations, so there must be some.
        self._options = {"guard_bytes": 8, **(options or {})} if strict else options
        if ipus is not None and (isinstance(ipus, bool) or not isinstance(ipus, int) or ipus < 1):
            raise ConfigError(f"ipus is {ipus!r}; it must be a positive number of chips.")
        self._ipus = ipus
        self.partial_batch = partial_batch
        self.execute = execute
        self.engine_options = {"threads": threads, "strict": strict}
        self._classes: dict[type, type] = {}
        self._runners: weakref.WeakKeyDictionary[Any, FunctionRunner] = weakref.WeakKeyDictionary()

    @property
    def target(self) -> Target:
        """The chip: the strategy's own, else the configured system's, else a GC200."""
        if self._target is not None:
            return self._target
        configured = system.current()
        return configured.target if configured is not None else resolve("gc200")

    @property
    def ipus(self) -> int:
        """Chips of the device: the strategy's own number, else the configured system's, else one."""
        if self._ipus is not None:
            return self._ipus
        configured = system.current()
        return configured.ipus if configured is not None else 1

    @property
    def options(self) -> dict[str, Any] | None:
        """Options of the compiler: the strategy's own; without a target of its own over the configured system's."""
        configured = system.current() if self._target is None else None
        if configured is None:
            return self._options
        return {**configured.options, **(self._options or {})}

    @contextlib.contextmanager
    def scope(self) -> Iterator[IPUStrategy]:
        """Context in which models are created for the IPU; they are used in it or after it.

        Example:
            >>> strategy = IPUStrategy()
            >>> with strategy.scope():
            ...     model = keras.Sequential([keras.layers.Dense(1)])
        """
        if not self._extend:
            yield self
            return
        choose = functools.partial(model_class, self, cache=self._classes)
        with (
            adapter.created_in(choose),
            keras2.created_in(self, self._classes),
            abstract_variables(not self.execute),
        ):
            yield self

    def run(
        self, fn: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, options: Any = None
    ) -> Any:
        """Runs a tf.function as one program on the device and returns its result when it has finished.

        Args:
            fn: a ``tf.function`` or concrete function; ``jit_compile=True`` on it changes nothing.
            args: positional arguments; arrays and tensors are sent to the device, other values are compiled in.
            kwargs: keyword arguments.
            options: accepted, not used.

        Returns:
            what `fn` returns, tensors being on the host.

        Raises:
            ValueError: `fn` is a plain Python function, which ``run`` does not support eager execution of.
            Float64Error: an argument or a result is float64.
            UnsupportedError: `run` is called inside another tf.function, or the function needs the host.
            ProfileOnlyError: the strategy has ``execute=False``; `executable` has the program.

        Example:
            >>> @tf.function
            ... def double(x):
            ...     return x * 2
            >>> strategy.run(double, args=(np.ones(3, np.float32),))
            <tf.Tensor: shape=(3,), dtype=float32, numpy=array([2., 2., 2.], dtype=float32)>
        """
        del options
        if tf.inside_function():
            raise InsideFunctionError(
                "IPUStrategy.run was called while another tf.function was traced. The device runs one whole program: "
                "call run from ordinary Python, and put the loop into the function that you hand to it."
            )
        key = fn
        try:
            runner = self._runners.get(key)
        except TypeError:
            runner = None
        if runner is None or runner.outdated(self):
            runner = FunctionRunner(
                fn, self.target, self.options, self.engine_options, execute=self.execute, ipus=self.ipus
            )
            with contextlib.suppress(TypeError):
                self._runners[key] = runner
        return runner(tuple(args), dict(kwargs or {}))

    def executable(self, fn: Any) -> Executable:
        """The latest program of a function that `run` has run, or has compiled, to profile or save it.

        Args:
            fn: the function.

        Raises:
            DataError: `run` has not run it.
        """
        runner = self._runners.get(fn)
        if runner is None or runner.latest is None:
            raise DataError(f"IPUStrategy.run has not run {getattr(fn, '__name__', fn)!r}")
        found: Executable = runner.latest.executable
        return found

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """On the host there is one replica's value: it is returned as it is. Inside device code replicas are reduced.

        Args:
            reduce_op: ``"SUM"``, ``"MEAN"``, or a tf.distribute.ReduceOp; looked at inside device code.
            value: anything; inside device code a tensor.
            axis: not used.

        Raises:
            ConfigError: inside device code, another operation; a ValueError.
        """
        del axis
        if not tf.inside_function() or adapter.current_tracer() is None:
            return value
        from ipu_keras.ops import cross_replica_ops

        name = str(getattr(reduce_op, "name", reduce_op)).upper()
        known = {"SUM": cross_replica_ops.cross_replica_sum, "MEAN": cross_replica_ops.cross_replica_mean}
        if name not in known:
            raise ConfigError(f"Unsupported reduce op {reduce_op!r}; there are SUM and MEAN.")
        return known[name](value)

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1, as in the IPU API."""
        return 1

    @property
    def supports_loss_scaling(self) -> bool:
        """True: a LossScaleOptimizer is part of the step."""
        return True

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> Any:
        """Not there any more.

        Raises:
            ModeError: always.
        """
        del args, kwargs
        raise ModeError("IPUStrategy.experimental_run_v2 is not supported; use run.")

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """With one worker a dataset stays as it is.

        Args:
            dataset: a tf.data.Dataset.
            options: not used.
        """
        del options
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """The dataset of the one worker.

        Args:
            dataset_fn: gives the dataset for a tf.distribute.InputContext.
            options: not used.
        """
        del options
        return dataset_fn(tf.distribute.InputContext())

    def __deepcopy__(self, memo: dict[int, Any]) -> IPUStrategy:
        return self  # a device is not copied with a model


IPUStrategyV1 = IPUStrategy
