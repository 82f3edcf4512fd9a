"""A program gives the same bits whatever instruction set its kernels use; in matrix products BLAS picks its own."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import hlo
from ipu_runtime import _vec
from tests.harness import hlo_of

RUN = """
import sys
import numpy as np
from ipu_runtime import _vec
from ipu_runtime.engine import Engine
from ipu_runtime.format import load
program = load(sys.argv[1])
x = np.random.default_rng(0).normal(size=(1, 40, 33)).astype(np.float32)
outs = Engine(program, strict=False).run({0: x})
np.savez(sys.argv[2], isa=_vec.isa_name(), **{str(k): v for k, v in outs.items()})
"""


def model(x):
    y = tf.nn.softmax(tf.sin(x) * tf.math.erf(x) + tf.tanh(x))
    half = tf.cast(x, tf.float16)
    return y, tf.reduce_sum(y * tf.math.log1p(tf.abs(x)), 0), half * half, tf.random.stateless_uniform((50,), (1, 2))


@pytest.mark.skipif(len(_vec.isas()) < 2, reason="this CPU has only the baseline instructions")
def test_same_bits_on_every_instruction_set(tmp_path):
    path = tmp_path / "model.ipu"
    hlo.compile(hlo_of(model, np.zeros((40, 33), np.float32))[0]).save(path)
    results = {}
    for isa in _vec.isas():
        out = tmp_path / f"{isa}.npz"
        environment = {**os.environ, "IPU_RUNTIME_ISA": isa}
        subprocess.run([sys.executable, "-c", RUN, str(path), str(out)], env=environment, check=True, timeout=100)
        with np.load(out) as arrays:
            results[isa] = {k: arrays[k] for k in arrays.files}
        assert str(results[isa].pop("isa")) == isa
    first = results.pop("baseline")
    for isa, outs in results.items():
        for key, array in outs.items():
            assert array.tobytes() == first[key].tobytes(), (isa, key)
