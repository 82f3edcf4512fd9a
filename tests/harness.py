"""Compares a TensorFlow function on the emulated tiles with the same function compiled by XLA for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def hlo_of(fn: Callable[..., Any], *args: np.ndarray) -> tuple[bytes, Any]:
    """The function's HLO module before XLA's own optimisation, and the compiled function."""
    import tensorflow as tf

    jitted = tf.function(lambda *a: fn(*a), jit_compile=True)  # hides optional arguments such as `name`
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in args]
    return jitted.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"), jitted


def run_both(
    fn: Callable[..., Any], *args: np.ndarray, target: Any = "gc200", threads: int | None = None, **options: Any
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(ours, XLA's) flat outputs of a function of arrays."""
    import tensorflow as tf

    from ipu_keras.compiler import compile_module
    from ipu_runtime.validate import validate

    module, jitted = hlo_of(fn, *args)
    wide = [i for i, a in enumerate(args) if _wide(a)]
    exe = compile_module(module, target=target, options=options or None, state=dict.fromkeys(wide))
    validate(exe.program)  # what is compiled can be saved and loaded
    engine = exe.engine(threads=threads)
    for i in {s["param"] for s in exe.program.header["states"]}:
        engine.write_state(i, np.array(args[i], order="C"))
    wanted = set(engine_feeds(exe))
    outs = engine.run({i: np.array(a, order="C")[None] for i, a in enumerate(args) if i in wanted})
    ours = [outs[k][0] for k in sorted(outs)]
    theirs = [np.asarray(t) for t in tf.nest.flatten(jitted(*[tf.constant(a) for a in args]))]
    return ours, theirs


def _wide(array: Any) -> bool:
    """Whether 64-bit integers do not fit a feed, which has 32 bits: then they are on the tiles from the start."""
    array = np.asarray(array)
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return False
    narrow = np.iinfo(np.int32 if array.dtype.kind == "i" else np.uint32)
    return bool(array.min() < narrow.min or array.max() > narrow.max)


def engine_feeds(exe: Any) -> list[int]:
    """Entry parameters that a program streams in."""
    return [f["param"] for f in exe.program.header["feeds"]]


def assert_close(ours: np.ndarray, theirs: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal shape and dtype, and values: exactly for integers; NaN only where the other has NaN."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert ours.dtype == theirs.dtype, (ours.dtype, theirs.dtype)
    if ours.dtype.kind in "biu":
        np.testing.assert_array_equal(ours, theirs)
        return
    scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol * max(1.0, float(scale)), equal_nan=True)


def check(fn: Callable[..., Any], *args: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6, **kwargs: Any) -> None:
    """Assert that the tiles give what XLA gives."""
    ours, theirs = run_both(fn, *args, **kwargs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, rtol, atol)
