"""The discrete Fourier transform, written with matrix products.

A line of n elements is a product with the n x n matrix of roots of unity, on the tiles' matrix units. Longer lines are
split as Cooley and Tukey do: with n = a b, transforms of length a, a multiplication with roots of unity, transforms of
length b. Real and imaginary part stand side by side in the contracted dimension, so that a complex product is one real
product.

Source of the algorithm: J. W. Cooley and J. W. Tukey, Math. Comp. 19 (1965), 297-301.
"""

from __future__ import annotations

import math

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Node, Value

DIRECT = 64
"""Lines of up to this many elements are one product."""

Parts = tuple[Value, Value]


def rewrite_fft(b: Builder, node: Node) -> list[Value]:
    """fft of all four kinds, over any number of dimensions."""
    ops, kind, lengths = Ops(b, node.where), node.attrs["kind"], node.attrs["lengths"]
    sign = 1 if kind in ("ifft", "irfft") else -1
    x = node.inputs[0]
    value: Parts = (x, node.inputs[1] if len(node.inputs) > 1 else ops.full(0.0, x.shape))
    rank = len(x.shape)
    lines = list(range(rank - len(lengths), rank))
    if kind == "rfft":  # the last dimension first: half of it is all that the others need
        value = _along(ops, value, rank - 1, lengths[-1], sign)
        value = _both(lambda v: ops.slice(v, rank - 1, 0, lengths[-1] // 2 + 1), value)
        lines.pop()
    elif kind == "irfft":
        lines.pop()
    for d in lines:
        value = _along(ops, value, d, x.shape[d], sign)
    if kind == "irfft":
        value = _along(ops, _hermitian(ops, value, lengths[-1]), rank - 1, lengths[-1], sign)
    if sign > 0:
        value = _both(lambda v: ops.div(v, float(math.prod(lengths))), value)
    return [value[0]] if kind == "irfft" else list(value)


def _both(f, value: Parts) -> Parts:  # type: ignore[no-untyped-def]
    return f(value[0]), f(value[1])


def _hermitian(ops: Ops, value: Parts, n: int) -> Parts:
    """All n coefficients of a real line of which the first n // 2 + 1 are given."""
    have = value[0].shape[-1]
    if n == 1 or have >= n:
        return _both(lambda v: ops.slice(v, -1, 0, n), value)
    re, im = (ops.reverse(ops.slice(v, -1, 1, n - have + 1), -1) for v in value)
    return ops.concat([value[0], re], -1), ops.concat([value[1], ops.op("negate", im)], -1)


def _along(ops: Ops, value: Parts, dim: int, n: int, sign: int) -> Parts:
    """The transform of every line along a dimension."""
    shape = value[0].shape
    perm = [d for d in range(len(shape)) if d != dim] + [dim]
    turned = _both(lambda v: ops.reshape(ops.transpose(v, perm), math.prod(shape) // n, n), value)
    done = _lines(ops, turned, sign)
    back = [perm.index(d) for d in range(len(shape))]
    return _both(lambda v: ops.transpose(ops.reshape(v, *(shape[d] for d in perm)), back), done)


def _lines(ops: Ops, value: Parts, sign: int) -> Parts:
    """The transform of the rows of a matrix."""
    rows, n = value[0].shape
    a = max(d for d in range(1, min(n, DIRECT) + 1) if n % d == 0)
    if n <= DIRECT or a == 1:
        return _direct(ops, value, sign)
    b = n // a
    # x[b i + j] -> over i: y[j, k] ; times w^(j k) ; over j: z[k, l], which is the coefficient k + a l.
    columns = _both(lambda v: ops.reshape(ops.transpose(ops.reshape(v, rows, a, b), (0, 2, 1)), rows * b, a), value)
    first = _both(lambda v: ops.reshape(v, rows, b, a), _direct(ops, columns, sign))
    angle = sign * 2 * np.pi * (np.outer(np.arange(b), np.arange(a)) % n) / n
    cos, sin = (ops.spread(ops.const(f(angle)), (rows, b, a), (1, 2)) for f in (np.cos, np.sin))
    re = ops.sub(ops.mul(first[0], cos), ops.mul(first[1], sin))
    im = ops.add(ops.mul(first[0], sin), ops.mul(first[1], cos))
    turned = _both(lambda v: ops.reshape(ops.transpose(v, (0, 2, 1)), rows * a, b), (re, im))
    second = _lines(ops, turned, sign)
    return _both(lambda v: ops.reshape(ops.transpose(ops.reshape(v, rows, a, b), (0, 2, 1)), rows, n), second)


def _direct(ops: Ops, value: Parts, sign: int) -> Parts:
    """The rows times the matrix of roots of unity: [re, im] [[cos, sin], [-sin, cos]]."""
    n = value[0].shape[1]
    angle = sign * 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n
    matrix = np.block([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    product = ops.matmul(ops.concat(value, 1), ops.const(matrix))
    return ops.slice(product, 1, 0, n), ops.slice(product, 1, n, 2 * n)
