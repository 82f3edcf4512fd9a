"""The benchmarks: what is compiled and timed on both sides."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import low_precision, memory, networks, pipelines
from benchmarks.measure import Figures, figures, training

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")


def mlp(executions: int) -> Figures:
    """An MLP 784-512-512-10, batch 64, Adam."""
    import keras
    import tensorflow as tf
    from keras import layers

    def make(**options: Any) -> Any:
        model = keras.Sequential(
            [
                keras.Input((784,)),
                layers.Dense(512, activation="relu"),
                layers.Dense(512, activation="relu"),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, **options)
        return model

    rng = np.random.default_rng(0)
    x, y = rng.random((640, 784), np.float32), rng.integers(0, 10, 640, np.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64, drop_remainder=True).repeat()
    return training(make, data, 10, executions)


def convnet(executions: int) -> Figures:
    """The ConvNet of `ipu-keras demo`, batch 32."""
    import tensorflow as tf

    from ipu_keras.cli import demo

    (x, y), _ = demo.digits()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(demo.BATCH, drop_remainder=True).repeat()
    return training(demo.convnet, data, demo.STEPS_PER_EXECUTION, executions)


SEQUENCE, WIDTH, HEADS, INNER = 128, 768, 12, 3072
ENCODER_SHAPES = {
    "x": (1, SEQUENCE, WIDTH),
    "query": (WIDTH, WIDTH), "query_bias": (WIDTH,),
    "key": (WIDTH, WIDTH), "key_bias": (WIDTH,),
    "value": (WIDTH, WIDTH), "value_bias": (WIDTH,),
    "output": (WIDTH, WIDTH), "output_bias": (WIDTH,),
    "norm_1_gamma": (WIDTH,), "norm_1_beta": (WIDTH,),
    "inner": (WIDTH, INNER), "inner_bias": (INNER,),
    "outer": (INNER, WIDTH), "outer_bias": (WIDTH,),
    "norm_2_gamma": (WIDTH,), "norm_2_beta": (WIDTH,),
}  # fmt: skip


def encoder_layer(x, wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, wi, bi, wu, bu, g2, b2):  # type: ignore[no-untyped-def]
    """A BERT-base encoder layer, forward, without dropout; the parameters in the order of ENCODER_SHAPES."""
    import tensorflow as tf

    def norm(v, gamma, beta):  # type: ignore[no-untyped-def]
        mean = tf.reduce_mean(v, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(v - mean), -1, keepdims=True)
        return (v - mean) * tf.math.rsqrt(variance + 1e-12) * gamma + beta

    def heads(v, w, b):  # type: ignore[no-untyped-def]
        v = tf.reshape(tf.matmul(v, w) + b, (1, SEQUENCE, HEADS, WIDTH // HEADS))
        return tf.transpose(v, (0, 2, 1, 3))

    q, k, v = heads(x[0], wq, bq), heads(x[0], wk, bk), heads(x[0], wv, bv)
    scores = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5
    mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), (0, 2, 1, 3))
    attention = tf.matmul(tf.reshape(mixed, (SEQUENCE, WIDTH)), wo) + bo
    middle = norm(x[0] + attention, g1, b1)
    inner = tf.nn.gelu(tf.matmul(middle, wi) + bi)
    return norm(middle + tf.matmul(inner, wu) + bu, g2, b2)[None]


def encoder(executions: int) -> Figures:
    """A BERT-base encoder layer, forward, batch 1 x 128, as an HLO module whose weights stay on the tiles."""
    import tensorflow as tf

    from ipu_keras.compiler import compile_module

    rng = np.random.default_rng(0)
    arrays = [(0.05 * rng.normal(size=shape)).astype(np.float32) for shape in ENCODER_SHAPES.values()]
    arrays = [a + 1 if "gamma" in name else a for name, a in zip(ENCODER_SHAPES, arrays, strict=True)]
    tensors = [tf.constant(a) for a in arrays]
    xla = tf.function(encoder_layer, jit_compile=True)
    module = xla.experimental_get_compiler_ir(*tensors)(stage="hlo_serialized")

    with memory.peak() as our_peak:
        start = time.perf_counter()
        executable = compile_module(
            module, target="gc200", state={i: None for i in range(1, len(arrays))}, name="encoder_layer"
        )
        compiled = time.perf_counter() - start
        engine = executable.engine()
        for i in range(1, len(arrays)):
            engine.write_state(i, arrays[i])
        start = time.perf_counter()
        result = engine.run({0: arrays[0][None]})[0][0]
        profile = executable.profile()
        largest = profile.memory.max_tile_bytes
        after = time.perf_counter() - start
    with memory.peak() as xla_peak:
        start = time.perf_counter()
        expected = xla(*tensors).numpy()
        xlas = [time.perf_counter() - start]
    error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
    if not error < 1e-5:
        raise AssertionError(f"the emulated encoder layer is {error:.1e} away from XLA's")

    ours = []
    for _ in range(executions):
        start = time.perf_counter()
        engine.run({0: arrays[0][None]})
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        xla(*tensors).numpy()
        xlas.append(time.perf_counter() - start)
    return {
        **figures([compiled + statistics.median(ours), *ours], xlas, 1, profile, (our_peak[0], xla_peak[0])),
        "relative_error": error,
        "numbers_cycles_memory_seconds": after,
        "note": f"numbers, cycles and memory map in {after:.2f} s after compiling, {compiled + after:.2f} s with it; "
        f"largest tile {largest:,} bytes; relative L2 distance to XLA {error:.1e}",
    }


SMALL = 1472 * 32  # 128 bytes a tile: all tiles of a GC200 have a vertex, and no vertex has work to speak of


def supersteps(executions: int) -> Figures:
    """32 rotations with a multiply-add after each, on vectors that give every tile a small vertex."""
    import tensorflow as tf

    from ipu_keras.compiler import compile_module

    def rotate(x):  # type: ignore[no-untyped-def]
        for _ in range(32):
            x = x * 0.5 + tf.concat([x[1001:], x[:1001]], 0)
        return x

    repeat = 10
    x = np.random.default_rng(0).random(SMALL, np.float32)
    tensor = tf.constant(x)
    xla = tf.function(rotate, jit_compile=True)
    module = xla.experimental_get_compiler_ir(tensor)(stage="hlo_serialized")
    batch = np.repeat(x[None], repeat, axis=0)

    def xla_execution() -> float:
        start = time.perf_counter()
        for _ in range(repeat):
            xla(tensor).numpy()
        return time.perf_counter() - start

    with memory.peak() as our_peak:
        start = time.perf_counter()
        executable = compile_module(module, target="gc200", state={}, name="supersteps")
        engine = executable.engine()
        results = engine.run({0: batch}, repeat)[0]
        ours = [time.perf_counter() - start]
    with memory.peak() as xla_peak:
        xlas = [xla_execution()]
    if not (results == xla(tensor).numpy()).all():
        raise AssertionError("the rotations differ from XLA's")
    for _ in range(executions):
        start = time.perf_counter()
        engine.run({0: batch}, repeat)
        ours.append(time.perf_counter() - start)
        xlas.append(xla_execution())
    return figures(ours, xlas, repeat, executable.profile(), (our_peak[0], xla_peak[0]))


CASES: dict[str, Callable[[int], Figures]] = {
    "mlp": mlp,
    "convnet": convnet,
    "encoder": encoder,
    "supersteps": supersteps,
    **networks.CASES,
    **pipelines.CASES,
    **low_precision.CASES,
}
