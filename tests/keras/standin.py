"""A fake engine for tests of the Keras side alone: TensorFlow runs the traced function on the host.

The product never sees this file. It replaces `ipu_keras.compiler.compile_module` and learns the traced function through
a wrapper around `trace`, so that what is tested is how states, feeds and results are moved.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import trace as trace_module
from ipu_keras.keras import session

_traced: dict[bytes, trace_module.Traced] = {}


def recording_trace(*args, **kwargs):
    traced = trace_module.trace(*args, **kwargs)
    _traced[traced.module] = traced
    return traced


def compile_module(hlo_bytes, *, target, options=None, state, layers=None, name="", execute=True):
    return Executable(_traced[hlo_bytes], state)


class Executable:
    def __init__(self, traced, state):
        self.traced, self.state = traced, state

    def engine(self, threads=None, strict=None):
        return Engine(self.traced, self.state)


class Engine:
    """Keeps the states as arrays; runs the function with variables of its own in place of the captured ones."""

    def __init__(self, traced, state):
        self.traced, self.state = traced, state
        self.memory: dict[int, np.ndarray] = {}
        self.writes: list[int] = []
        self.runs: list[int] = []
        self.fail = None
        self._variables = {p: tf.Variable(v) for p, v in traced.variables.items()}

    def write_state(self, index, array):
        expected = self.traced.variables.get(index, self.traced.constants.get(index))
        assert index in self.state and tuple(array.shape) == tuple(expected.shape)
        assert array.dtype == expected.dtype.as_numpy_dtype
        self.writes.append(index)
        self.memory[index] = np.array(array)

    def read_state(self, index):
        return np.array(self.memory[index])

    def run(self, feeds, repeat=1):
        assert set(feeds) == set(self.traced.feeds)
        assert all(len(a) == repeat and a.flags.c_contiguous for a in feeds.values())
        assert set(self.memory) == set(self.state), "a state was never written"
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.runs.append(repeat)
        order = sorted(feeds)
        collected: dict[int, list[np.ndarray]] = {}
        for p, v in self._variables.items():
            v.assign(self.memory[p])
        concrete = self.traced.concrete
        captured = [
            self._variables[p].handle if p in self._variables else tf.constant(self.memory[p])
            for p in range(len(order), len(order) + len(self.state))
        ]
        for step in range(repeat):
            args = [tf.constant(feeds[p][step]) for p in order]
            results = concrete._call_flat(args, captured)
            flat = [r for r in tf.nest.flatten(results, expand_composites=True) if tf.is_tensor(r)]
            for i, tensor in enumerate(flat):
                collected.setdefault(i, []).append(tensor.numpy())
        for p in self.state:
            if p in self._variables:
                self.memory[p] = self._variables[p].numpy()
        return {i: np.stack(values) for i, values in collected.items()}


def install(monkeypatch):
    import ipu_keras.compiler as compiler

    monkeypatch.setattr(compiler, "compile_module", compile_module, raising=False)
    monkeypatch.setattr(session, "trace", recording_trace)
