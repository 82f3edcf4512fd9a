"""The three products of a block-sparse matrix, each other's gradients: for the tiles one call, in TensorFlow gathers.

X [n, rows] and Y [n, columns] are dense; S [rows, columns] has blocks V [count, edge, edge] at positions [count, 2].
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla

from ipu_keras.compiler.passes.sparse import SPARSE_DOT, pack
from ipu_keras.frontend import trace
from ipu_keras.ops._names import gradient_scope

__all__ = ["Positions", "product"]


class Positions(NamedTuple):
    """Where the blocks of a matrix stand.

    Attributes:
        shape: of the matrix.
        block: edge of a block.
        fixed: int32 array [count, 2] of a static pattern, else None.
        tensor: int32 tensor [count, 2] of a dynamic one, else None.
    """

    shape: tuple[int, int]
    block: int
    fixed: np.ndarray | None
    tensor: Any = None


def product(mode: str, a: Any, b: Any, at: Positions) -> Any:
    """A product with its gradients, which are products of the other modes.

    Args:
        mode: ``"forward"`` (X, V to Y), ``"transposed"`` (Y, V to X) or ``"sampled"`` (X, Y to V).
        a: the first operand.
        b: the second.
        at: where the blocks stand.
    """
    backward_scope = gradient_scope()

    @tf.custom_gradient
    def run(first: Any, second: Any) -> Any:
        def gradient(upstream: Any) -> tuple[Any, Any]:
            with backward_scope():
                if mode == "forward":
                    return product("transposed", upstream, second, at), product("sampled", first, upstream, at)
                if mode == "transposed":
                    return product("forward", upstream, second, at), product("sampled", upstream, first, at)
                return product("transposed", second, upstream, at), product("forward", first, upstream, at)

        return (_on_tiles if trace.for_tiles() else _in_tensorflow)(mode, first, second, at), gradient

    return run(a, b)


def _on_tiles(mode: str, a: Any, b: Any, at: Positions) -> Any:
    n, (rows, columns) = a.shape[0], at.shape
    count = at.fixed.shape[0] if at.fixed is not None else at.tensor.shape[0]
    shape = {"forward": [n, columns], "transposed": [n, rows], "sampled": [count, at.block, at.block]}[mode]
    pattern = pack(at.fixed) if at.fixed is not None else None
    config = json.dumps({"mode": mode, "block": at.block, "shape": at.shape, "pattern": pattern})
    operands = [a, b] if at.fixed is not None else [a, b, at.tensor]
    (result,) = _xla.xla_custom_call_v2(operands, SPARSE_DOT, config, False, [a.dtype], [shape])
    result.set_shape(shape)
    return result


def _in_tensorflow(mode: str, a: Any, b: Any, at: Positions) -> Any:
    """The same; sums in float32."""
    edge, blocks = at.block, [size // at.block for size in at.shape]
    places = tf.constant(at.fixed) if at.fixed is not None else at.tensor
    # Places outside the matrix are unused: what they give is multiplied by zero, and lands in a slot that is cut off.
    inside = tf.reduce_all((places >= 0) & (places < tf.constant(blocks, tf.int32)), 1)
    k, m = tf.unstack(tf.where(inside[:, None], places, 0), axis=1)
    used = tf.cast(inside, tf.float32)[:, None, None]

    def slots(dense: Any, index: Any) -> Any:
        wide = tf.reshape(tf.cast(dense, tf.float32), [-1, dense.shape[1] // edge, edge])
        return tf.gather(tf.transpose(wide, [1, 0, 2]), index)

    def joined(products: Any, index: Any, count: int) -> Any:
        sums = tf.math.unsorted_segment_sum(products, index, count)
        return tf.reshape(tf.transpose(sums, [1, 0, 2]), [-1, count * edge])

    if mode == "sampled":
        found = tf.matmul(slots(a, k), slots(b, m), transpose_a=True) * used
    else:
        values = tf.where(used > 0, tf.cast(b, tf.float32), 0.0)
        if mode == "forward":
            found = joined(tf.matmul(slots(a, k), values), tf.where(inside, m, -1), blocks[1])
        else:
            found = joined(tf.matmul(slots(a, m), values, transpose_b=True), tf.where(inside, k, -1), blocks[0])
    return tf.cast(found, a.dtype)
