"""JAX functions on the emulated IPU: what `jax.jit` lowers is what the tiles run, gradients included.

Needs JAX, which the package does not install by itself: ``pip install 'ipu_keras[jax]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipu_keras.compiler.compile import compile_module
from ipu_keras.compiler.executable import Executable
from ipu_keras.errors import UnsupportedError
from ipu_keras.target import Target

__all__ = ["CompiledFunction", "compile", "hlo_from_stablehlo"]


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise UnsupportedError("ipu_keras.jax needs JAX: pip install 'ipu_keras[jax]'", ["jax"]) from error
    return jax


class CompiledFunction:
    """A JAX function whose calls run on the emulated IPU: one program for each set of shapes.

    Args:
        function: a function of arrays and of nested structures of arrays. What is not an array is bound before
            (``functools.partial``).
        target: a chip's name or a Target.
        options: compile options, see `ipu_keras.compiler.options`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        target: str | Target = "gc200",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._jitted = _jax().jit(function, keep_unused=True)
        self._name = str(getattr(function, "__name__", "function"))
        self._target, self._options = target, options
        self._programs: dict[Any, tuple[Executable, Any]] = {}

    def executable(self, *args: Any, **kwargs: Any) -> Executable:
        """The program for arguments of these shapes, compiled now if there is none yet: to profile or save it.

        Raises:
            UnsupportedError: lists what the tiles cannot run.
            IPUOutOfMemoryError: a tile overflows.
        """
        return self._program(args, kwargs)[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function; the arrays of its result are NumPy's."""
        leaves = self._leaves(args, kwargs)
        executable, results = self._program(args, kwargs)
        jax = _jax()
        arrays = executable.run(*leaves)
        made = [
            jax.random.wrap_key_data(a, impl=info.dtype._impl.name) if _is_key(info.dtype) else a
            for a, info in zip(arrays, jax.tree.leaves(results), strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(results), made)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
        """The arrays in the arguments, in the dtypes that JAX takes them for."""
        jax = _jax()
        arrays = [jax.numpy.asarray(leaf) for leaf in jax.tree.leaves((args, kwargs))]
        return [np.asarray(jax.random.key_data(a) if _is_key(a.dtype) else a) for a in arrays]

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Executable, Any]:
        # What JAX itself goes by: also whether a number's dtype is its own, and how a key makes its bits.
        traced = self._jitted.trace(*args, **kwargs)
        key = (traced.in_tree, tuple(repr(aval) for aval in traced.jaxpr.in_avals))
        found = self._programs.get(key)
        if found is None:
            lowered = traced.lower()
            try:
                executable = self._compile(lowered)
            except UnsupportedError as error:
                # On the CPU, JAX calls LAPACK; for an accelerator it writes linear algebra as HLO.
                if not any("lapack" in item for item in error.items):
                    raise
                executable = self._compile(traced.lower(lowering_platforms=("tpu",)))
            found = self._programs[key] = (executable, lowered.out_info)
        return found

    def _compile(self, lowered: Any) -> Executable:
        module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        return compile_module(module, target=self._target, options=self._options, name=self._name)


def _is_key(dtype: Any) -> bool:
    jax = _jax()
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def compile(
    function: Callable[..., Any], target: str | Target = "gc200", options: Mapping[str, Any] | None = None
) -> CompiledFunction:
    """Make a JAX function run on the emulated IPU.

    Args:
        function: as `jax.jit` takes it, without static arguments; a jitted one, too. JAX makes its gradients: compile
            ``jax.grad(f)``.
        target: a chip's name or a Target.
        options: compile options, see `ipu_keras.compiler.options`.

    Raises:
        UnsupportedError: JAX is not installed; at a call, what the tiles cannot run.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ipu_keras.jax import compile
        >>> slope = compile(jax.grad(lambda x: jnp.sum(x**3)))
        >>> slope(jnp.array([1.0, 2.0]))
        array([ 3., 12.], dtype=float32)
    """
    return CompiledFunction(function, target, options)


def hlo_from_stablehlo(module: str | bytes) -> bytes:
    """Bytes of an HLO module, for `ipu_keras.hlo.compile`, from StableHLO.

    Args:
        module: StableHLO as text or as a portable artifact; jaxlib reads it.

    Raises:
        UnsupportedError: JAX is not installed, or it cannot read the module.
    """
    _jax()
    from jaxlib import _jax as library

    data = module.encode() if isinstance(module, str) else bytes(module)
    try:
        computation = library.mlir.mlir_module_to_xla_computation(data, use_tuple_args=False, return_tuple=False)
    except Exception as error:
        raise UnsupportedError(f"jaxlib cannot read this StableHLO: {error}", [str(error)]) from error
    return bytes(computation.as_serialized_hlo_module_proto())
