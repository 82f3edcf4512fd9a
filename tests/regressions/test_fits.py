"""Once wrong: operations that gather on a few tiles and overflow them while the chip is empty."""

import numpy as np
import tensorflow as tf

from ipu_keras import hlo


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
