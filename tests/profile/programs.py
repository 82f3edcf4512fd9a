"""Programs of one vertex or one step, for tests that work out their cycles by hand."""

import dataclasses

import numpy as np
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.profile.cycles import step_cycles
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER, OPS
from ipu_runtime.program import COMPUTE, Program
from tests.harness import hlo_of

ONE = Target("one tile", tiles=1, bytes_per_tile=1 << 24)


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def vertices(fn, *args, target=ONE, **options):
    """[(vertex class, cycles of its busiest row)] of a function's program, in program order."""
    program = compile_module(hlo_of(fn, *args)[0], target=target, **options).program
    rates = type("Rates", (), program.header["target"])
    found = []
    for kind, first, last, _ in program.steps.tolist():
        for i in range(first, last):
            if kind == COMPUTE:
                g = program.group(i)
                model = registry.MODELS[g.codelet]
                found.append((model.name, int(np.max(model.cycles(g, rates)))))
    return found


def program_of(kind, groups, target):
    """A program of one step; a group is (codelet, parameters, columns)."""
    table, params, columns, data = [], [], [], []
    for codelet, numbers, cols in groups:
        rows = max(len(c) for c in cols)
        table.append((codelet, rows, len(params), len(numbers), len(columns), len(cols), 0))
        params += numbers
        for c in cols:
            columns.append((len(data), len(c)))
            data += c
    header = {"target": target.to_dict(), "labels": [""], "group_labels": [0] * len(groups)}
    return Program(
        header, np.array([[kind, 0, len(groups), 0]], np.int32), np.array(table), np.array(params),
        np.array(columns), np.array(data, np.int32), np.zeros(0, np.uint8), np.zeros((0, 6), np.int32),
        np.zeros((0, 3), np.int32),
    )  # fmt: skip


def exp_vertices(tiles, elements):
    """Rows of an fp32 exp; each costs 6 (33 + 3 elements / 6) + 20 for multiples of 12."""
    params = [1, 1, 1, 0, 0, 1, 512, 4, 1, 4, 1, 4, 0, OPS["exponential"], DTYPE_NUMBER["f32"], 1, 0, 0, 0]
    return registry.MAP, params, [tiles, elements, [0], [65536]]


def copies(src, dst, src_off, dst_off, dims, itemsize=4):
    """A copy group: dims are (counts, destination strides, source strides)."""
    return registry.COPY, [len(dims), itemsize, 0], [src, dst, src_off, dst_off, *(c for d in dims for c in d)]


def run_of(n):
    return [([n], [1], [1])]


def retimed(program, **rates):
    """The cycles of the same program's steps on a target with other rates."""
    header = {**program.header, "target": {**program.header["target"], **rates}}
    return step_cycles(dataclasses.replace(program, header=header))


def two_layers(x, w1, b1, w2):
    """A train step of two dense layers, their name scopes IPU.1. and IPU.2.; gives the loss and the new weights."""
    with tf.GradientTape() as tape:
        tape.watch([w1, b1, w2])
        with tf.name_scope("IPU.1."):
            h = tf.nn.relu(tf.matmul(x, w1) + b1)
        with tf.name_scope("IPU.2."):
            y = tf.matmul(h, w2)
        loss = tf.reduce_mean(tf.square(y))
    gradients = tape.gradient(loss, [w1, b1, w2])
    return loss, [w - 0.1 * g for w, g in zip((w1, b1, w2), gradients, strict=True)]
