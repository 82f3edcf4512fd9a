"""Once wrong: operations that gather on a few tiles and overflow them while the chip is empty."""

import numpy as np
import tensorflow as tf

from ipu_keras import hlo
from ipu_keras.profile.memory import memory_report
from ipu_runtime.program import CATEGORIES


def module(fn, *shapes):
    specs = [tf.TensorSpec(s, tf.float32) for s in shapes]
    return tf.function(fn, jit_compile=True).experimental_get_compiler_ir(*specs)(stage="hlo_serialized")


def max_pool_gradient(x, g):
    y = tf.nn.max_pool2d(x, 3, 2, "SAME")
    return tf.raw_ops.MaxPoolGrad(
        orig_input=x, orig_output=y, grad=g, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME"
    )


def test_max_pool_gradient_of_a_resnet_s_stem():
    exe = hlo.compile(module(max_pool_gradient, (1, 112, 112, 64), (1, 56, 56, 64)))
    # Input, output, gradients and their halos are 10 MB in all; an even spread over 1,472 tiles is some 7 KB.
    assert exe.profile().memory.max_tile_bytes < 100_000


def test_argmax_over_a_large_vocabulary():
    exe = hlo.compile(module(lambda x: tf.argmax(x, -1), (1, 250_002)))
    assert exe.profile().memory.max_tile_bytes < 100_000
    x = np.random.default_rng(0).normal(size=(1, 250_002)).astype(np.float32)
    (place,) = exe.run(x)
    assert place[0] == x.argmax()


def bytes_by_tile(exe, category):
    number = CATEGORIES.index(category)
    variables, cells = exe.program.variables, exe.program.cells
    owner = np.repeat(variables[:, 0], variables[:, 4])
    mine = owner == number
    return np.bincount(cells[mine, 0], cells[mine, 2], exe.program.tile_count)


def test_a_weight_that_is_used_by_many_tiles_lies_on_many():
    """384 x 1536 is cut into a few hundred blocks, each of them wanted by five tiles: each keeps a fifth of it."""
    exe = hlo.compile(module(lambda x, w: tf.matmul(x, w), (384, 384), (384, 1536)), state={1: None})
    held = bytes_by_tile(exe, "variable")
    assert held.sum() == 384 * 1536 * 4
    assert np.count_nonzero(held) > 0.9 * len(held)
    assert held.max() <= 1.3 * 384 * 1536 * 4 / len(held)


def test_a_small_vector_is_not_cut_into_crumbs():
    """A bias of 1536 floats that 1,440 tiles want: one piece for each block of columns, no smaller ones."""
    dense = module(lambda x, w, b: tf.nn.relu(tf.matmul(x, w) + b), (384, 384), (384, 1536), (1536,))
    exe = hlo.compile(dense, state={1: None, 2: None})
    bias = [v for v in exe.program.variables.tolist() if "parameter 2" in exe.program.header["labels"][v[5]]]
    assert bias
    # The product cuts columns in tens, and its sums over six pieces of the depth in six times as many: 26 floats.
    assert all(cells <= 1536 * 4 // 100 for *_, cells, _ in bias)


def test_a_block_for_many_tiles_is_put_together_once():
    """Rows that lie in small pieces and go to many tiles: each tile receives a few runs, not all the pieces."""
    product = module(lambda x, w: tf.matmul(tf.nn.softmax(x), w), (384, 384), (384, 1536))
    exe = hlo.compile(product, state={1: None})
    received = memory_report(exe.program).fixed["internalExchangeCode"] / 12
    # A block of 154 rows comes from some 154 tiles or more; gathered first, from eight. Weights and sums come on top.
    assert np.median(received) < 120
