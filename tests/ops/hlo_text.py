"""HLO modules written as text: what no TensorFlow function lowers to. Run on the tiles, and by XLA on the CPU.

The parser of the text and the CPU's compiler come with JAX, which is an extra: without it the tests are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_keras import hlo
from ipu_keras.graph.ir import DTYPES
from ipu_keras.target import Target
from tests.harness import assert_close

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def parse(text: str) -> bytes:
    """The serialized module of a text; a text without ENTRY is the body of the entry computation."""
    from jaxlib import _hlo

    if "ENTRY" not in text:
        text = "ENTRY main {\n" + text + "\n}"
    if "HloModule" not in text:
        text = "HloModule test\n" + text
    return bytes(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def shape(array: Any) -> str:
    """The HLO type of an array: f32[2,3]."""
    array = np.asarray(array)
    return f"{NAMES[array.dtype]}[{','.join(map(str, array.shape))}]"


def parameters(*arrays: Any) -> str:
    """Lines that name the arguments p0, p1, ..."""
    return "\n".join(f"p{i} = {shape(a)} parameter({i})" for i, a in enumerate(arrays))


def tiles(text: str, *args: Any, n: int = 5) -> list[np.ndarray]:
    """The results on a chip of `n` tiles; integers of 64 bits are on it from the start, as feeds have 32."""
    wide = {i: None for i, a in enumerate(args) if np.asarray(a).dtype.itemsize == 8}
    target = Target("few", tiles=n, bytes_per_tile=1 << 22)
    return list(hlo.compile(parse(text), target=target, state=wide).run(*args))


def xla(text: str, *args: Any) -> list[np.ndarray]:
    """The results of XLA on the CPU."""
    from jax._src.lib import xla_client
    from jax.extend.backend import get_backend

    backend: Any = get_backend("cpu")
    module = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(parse(text)))
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    executable = backend.compile_and_load(module, devices, xla_client.CompileOptions())
    with jax.enable_x64(True):
        found = executable.execute_sharded([jax.device_put(np.array(a, order="C")) for a in args])
        return [np.asarray(a[0]) for a in found.disassemble_into_single_device_arrays()]


def same(text: str, *args: Any, n: int | tuple[int, ...] = (1, 7), rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that chips of `n` tiles give what XLA gives: integers exactly, floats nearly, NaN at the same places."""
    theirs = xla(text, *args)
    for count in (n,) if isinstance(n, int) else n:
        ours = tiles(text, *args, n=count)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, rtol, atol)
