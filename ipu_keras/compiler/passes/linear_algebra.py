"""Cholesky, triangular solve, QR and symmetric eigenproblems, written as loops over columns.

Each turn of a loop is a handful of row operations on the whole batch of matrices, spread over the tiles.

Source of the algorithms: G. H. Golub and C. F. Van Loan, Matrix Computations, 4th ed., 4.2 (Cholesky by columns), 3.1
(substitution by rows), 5.2 (Householder QR).
"""

from __future__ import annotations

import math

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Node, Value


def _matrices(ops: Ops, x: Value, transposed: bool = False) -> Value:
    """[..., m, n] as [batch, m, n], transposed if wanted."""
    m, n = x.shape[-2:]
    flat = ops.reshape(x, math.prod(x.shape[:-2]), m, n)
    return ops.transpose(flat, (0, 2, 1)) if transposed else flat


def _times_row(ops: Ops, matrix: Value, row: Value) -> Value:
    """sum_k matrix[b, i, k] row[b, k] -> [b, i]."""
    product = ops.mul(matrix, ops.spread(row, matrix.shape, (0, 2)))
    return ops.reduce(product, (2,))


def _pick(ops: Ops, line: Value, i: Value) -> Value:
    """line[b, i] -> [b]."""
    batch = line.shape[0]
    return ops.reshape(ops.at(line, [ops.const(0, "s32"), i], (batch, 1)), batch)


def _numbers(ops: Ops, i: Value, shape: tuple[int, ...], dim: int, direction: str) -> Value:
    """Whether the index along a dimension is `direction` (lt, gt, ...) the scalar i."""
    return ops.compare(ops.line(shape, dim), direction, ops.spread(i, shape, ()))


def rewrite_cholesky(b: Builder, node: Node) -> list[Value]:
    """A = L L^T: column j of L is (A[:, j] - L L[j, :]) / sqrt of its element j, from row j on."""
    ops, x = Ops(b, node.where), node.inputs[0]
    lower = node.attrs["lower"]
    a = _matrices(ops, x, transposed=not lower)
    batch, n, _ = a.shape

    def column(o: Ops, j: Value, lower_part: Value, a: Value) -> list[Value]:
        zero = o.const(0, "s32")
        row = o.reshape(o.at(lower_part, [zero, j, zero], (batch, 1, n)), batch, n)
        of_a = o.reshape(o.at(a, [zero, zero, j], (batch, n, 1)), batch, n)
        rest = o.sub(of_a, _times_row(o, lower_part, row))
        pivot = o.op("sqrt", _pick(o, rest, j))
        made = o.div(rest, o.spread(pivot, (batch, n), (0,)))
        below = _numbers(o, j, (batch, n), 1, "ge")
        made = o.select(below, made, 0.0)
        return [o.put(lower_part, o.reshape(made, batch, n, 1), [zero, zero, j]), a]

    result = ops.loop(n, [ops.full(0, a.shape, x.dtype), a], column)[0]
    return [ops.reshape(result if lower else ops.transpose(result, (0, 2, 1)), *x.shape)]


def rewrite_triangular_solve(b: Builder, node: Node) -> list[Value]:
    """op(A) X = B or X op(A) = B, row by row of X: from the end that is known."""
    ops, (a, rhs), attrs = Ops(b, node.where), node.inputs, node.attrs
    # X A = B is A^T X^T = B^T.
    turned = attrs["transposed"] != (not attrs["left"])
    lower = attrs["lower"] != turned
    left, right = _matrices(ops, a, turned), _matrices(ops, rhs, not attrs["left"])
    batch, n, columns = right.shape

    def row(o: Ops, turn: Value, x: Value, a: Value, rhs: Value) -> list[Value]:
        zero = o.const(0, "s32")
        i = turn if lower else o.sub(n - 1, turn)
        coefficients = o.reshape(o.at(a, [zero, i, zero], (batch, 1, n)), batch, n)
        # The other triangle of A is not to be read, whatever it holds.
        inside = _numbers(o, i, (batch, n), 1, "lt" if lower else "gt")
        known = o.select(inside, coefficients, 0.0)
        product = o.mul(x, o.spread(known, x.shape, (0, 1)))
        part = o.sub(
            o.reshape(o.at(rhs, [zero, i, zero], (batch, 1, columns)), batch, columns), o.reduce(product, (1,))
        )
        if not attrs["unit"]:
            part = o.div(part, o.spread(_pick(o, coefficients, i), part.shape, (0,)))
        return [o.put(x, o.reshape(part, batch, 1, columns), [zero, i, zero]), a, rhs]

    x = ops.loop(n, [ops.full(0, right.shape, rhs.dtype), left, right], row)[0]
    return [ops.reshape(x if attrs["left"] else ops.transpose(x, (0, 2, 1)), *rhs.shape)]


def rewrite_qr(b: Builder, node: Node) -> list[Value]:
    """Householder's QR in LAPACK's form (geqrf): R above the diagonal, the reflectors below it, and their factors."""
    ops, x = Ops(b, node.where), node.inputs[0]
    a = _matrices(ops, x)
    batch, m, _ = a.shape
    k = node.results[1].shape[-1]

    def column(o: Ops, j: Value, a: Value, taus: Value) -> list[Value]:
        zero = o.const(0, "s32")
        x = o.reshape(o.at(a, [zero, zero, j], (batch, m, 1)), batch, m)
        below = _numbers(o, j, (batch, m), 1, "gt")
        alpha = _pick(o, x, j)
        tail = o.select(below, x, 0.0)
        tail_norm = o.reduce(o.mul(tail, tail), (1,))
        norm = o.op("sqrt", o.add(o.mul(alpha, alpha), tail_norm))
        beta = o.select(o.compare(alpha, "ge", 0.0), o.op("negate", norm), norm)
        flat = o.compare(tail_norm, "eq", 0.0)
        beta = o.select(flat, alpha, beta)
        tau = o.select(flat, 0.0, o.div(o.sub(beta, alpha), beta))
        scale = o.select(flat, 1.0, o.sub(alpha, beta))
        at_j = _numbers(o, j, (batch, m), 1, "eq")
        v = o.div(tail, o.spread(scale, tail.shape, (0,)))
        one = o.select(at_j, o.full(1, v.shape, v.dtype), v)
        # A -= tau v (v^T A), on the columns right of j; column j becomes beta and v.
        weights = o.reduce(o.mul(a, o.spread(one, a.shape, (0, 1))), (1,))
        step = o.mul(
            o.spread(o.mul(one, o.spread(tau, one.shape, (0,))), a.shape, (0, 1)), o.spread(weights, a.shape, (0, 2))
        )
        right = _numbers(o, j, a.shape, 2, "gt")
        a = o.select(right, o.sub(a, step), a)
        made = o.select(at_j, o.spread(beta, x.shape, (0,)), o.select(below, v, x))
        a = o.put(a, o.reshape(made, batch, m, 1), [zero, zero, j])
        return [a, o.put(taus, o.reshape(tau, batch, 1), [zero, j])]

    packed, taus = ops.loop(k, [a, ops.full(0, (batch, k), x.dtype)], column)
    return [ops.reshape(packed, *node.results[0].shape), ops.reshape(taus, *node.results[1].shape)]


def rewrite_reflectors(b: Builder, node: Node) -> list[Value]:
    """The product of Householder reflectors (LAPACK's orgqr): Q's first columns."""
    ops, (x, taus) = Ops(b, node.where), node.inputs
    a = _matrices(ops, x)
    batch, m, n = a.shape
    k = taus.shape[-1]

    def reflector(o: Ops, turn: Value, q: Value, a: Value, taus: Value) -> list[Value]:
        zero, j = o.const(0, "s32"), o.sub(k - 1, turn)
        x = o.reshape(o.at(a, [zero, zero, j], (batch, m, 1)), batch, m)
        v = o.select(_numbers(o, j, x.shape, 1, "gt"), x, 0.0)
        v = o.select(_numbers(o, j, x.shape, 1, "eq"), o.full(1, v.shape, v.dtype), v)
        weights = o.mul(
            o.reduce(o.mul(q, o.spread(v, q.shape, (0, 1))), (1,)), o.spread(_pick(o, taus, j), (batch, n), (0,))
        )
        step = o.mul(o.spread(v, q.shape, (0, 1)), o.spread(weights, q.shape, (0, 2)))
        return [o.sub(q, step), a, taus]

    shape = (batch, m, n)
    eye = ops.convert(ops.compare(ops.line(shape, 1), "eq", ops.line(shape, 2)), x.dtype)
    q = ops.loop(k, [eye, a, ops.reshape(taus, batch, k)], reflector)[0]
    return [ops.reshape(q, *node.out.shape)]


SWEEPS = 10
"""Times that Jacobi's method visits each pair of rows; it converges quadratically, n = 64 needs 7 in fp32."""


def rewrite_eigh(b: Builder, node: Node) -> list[Value]:
    """Eigenvectors and eigenvalues of symmetric matrices by Jacobi rotations, eigenvalues in ascending order.

    Source: Golub and Van Loan, 8.5; each turn zeroes one element beside the diagonal.
    """
    ops, x = Ops(b, node.where), node.inputs[0]
    a = _matrices(ops, x)
    batch, n, _ = a.shape
    upper = ops.compare(ops.line(a.shape, 2), "gt", ops.line(a.shape, 1))
    a = ops.select(upper, ops.transpose(a, (0, 2, 1)), a)  # only the lower triangle is given
    eye = ops.convert(ops.compare(ops.line(a.shape, 1), "eq", ops.line(a.shape, 2)), x.dtype)
    pairs = [(p, q) for p in range(n) for q in range(p + 1, n)] or [(0, 0)]

    def rotate(o: Ops, turn: Value, a: Value, v: Value) -> list[Value]:
        zero, number = o.const(0, "s32"), o.op("remainder", turn, len(pairs))
        p, q = (o.reshape(o.at(o.const([pair[i] for pair in pairs], "s32"), [number], (1,))) for i in (0, 1))

        def element(i: Value, j: Value) -> Value:
            return o.reshape(o.at(a, [zero, i, j], (batch, 1, 1)), batch)

        app, aqq, apq = element(p, p), element(q, q), element(p, q)
        done = o.compare(apq, "eq", 0.0)
        theta = o.div(o.sub(aqq, app), o.mul(o.select(done, 1.0, apq), 2.0))
        root = o.op("sqrt", o.add(o.mul(theta, theta), 1.0))
        tangent = o.div(
            o.select(o.compare(theta, "ge", 0.0), o.full(1, theta.shape), -1.0), o.add(o.op("abs", theta), root)
        )
        tangent = o.select(done, 0.0, tangent)
        cosine = o.op("rsqrt", o.add(o.mul(tangent, tangent), 1.0))
        sine = o.mul(tangent, cosine)

        def turned(x: Value, dim: int) -> Value:
            """Rows (dim 1) or columns (dim 2) p and q of x, rotated."""
            size = (batch, 1, n) if dim == 1 else (batch, n, 1)

            def at(i: Value) -> list[Value]:
                return [zero, i, zero] if dim == 1 else [zero, zero, i]

            first, second = o.at(x, at(p), size), o.at(x, at(q), size)
            c, s = (o.spread(value, size, (0,)) for value in (cosine, sine))
            x = o.put(x, o.sub(o.mul(c, first), o.mul(s, second)), at(p))
            return o.put(x, o.add(o.mul(s, first), o.mul(c, second)), at(q))

        return [turned(turned(a, 1), 2), turned(v, 2)]

    if n > 1:
        a, v = ops.loop(SWEEPS * len(pairs), [a, eye], rotate)
    else:
        v = eye
    values = ops.reduce(ops.mul(a, eye), (2,))
    # The place of each eigenvalue is the number of those before it; no sort moves the vectors.
    mine, other = ops.spread(values, a.shape, (0, 1)), ops.spread(values, a.shape, (0, 2))
    tie = ops.op(
        "and",
        ops.compare(other, "eq", mine),
        ops.compare(ops.line(a.shape, 2), "lt", ops.line(a.shape, 1)),
        dtype="pred",
    )
    before = ops.op("or", ops.compare(other, "lt", mine), tie, dtype="pred")
    rank = ops.reduce(ops.convert(before, "s32"), (2,))
    place = ops.compare(ops.spread(rank, a.shape, (0, 1)), "eq", ops.line(a.shape, 2))
    values = ops.reduce(ops.select(place, mine, 0.0), (1,))
    attrs = {"contract": ((2,), (1,)), "batch": ((0,), (0,))}
    vectors = b.add("dot", [v, ops.convert(place, x.dtype)], a.shape, x.dtype, attrs, node.where)
    return [ops.reshape(vectors, *node.results[0].shape), ops.reshape(values, *node.results[1].shape)]


def rewrite_lu(b: Builder, node: Node) -> list[Value]:
    """P A = L U with the largest pivot of each column, L below the diagonal; also the swaps, and the permutation.

    Source: Golub and Van Loan, 3.4 (outer product form).
    """
    ops, x = Ops(b, node.where), node.inputs[0]
    a = _matrices(ops, x)
    batch, m, n = a.shape
    steps = min(m, n)

    def column(o: Ops, k: Value, a: Value, pivots: Value, order: Value) -> list[Value]:
        zero = o.const(0, "s32")
        line = o.reshape(o.at(a, [zero, zero, k], (batch, m, 1)), batch, m)
        size = o.select(_numbers(o, k, (batch, m), 1, "ge"), o.op("abs", line), -1.0)
        largest = o.spread(o.reduce(size, (1,), "maximum", -1.0), (batch, m), (0,))
        place = o.reduce(o.select(o.compare(size, "eq", largest), o.line((batch, m), 1), m), (1,), "minimum", m)
        place = o.op("minimum", place, m - 1)  # a column of NaN has no largest
        at_k, at_place = (
            _numbers(o, k, (batch, m), 1, "eq"),
            o.compare(o.line((batch, m), 1), "eq", o.spread(place, (batch, m), (0,))),
        )

        def swapped(v: Value) -> Value:
            """Rows k and `place` exchanged, in each matrix its own."""
            rest = tuple(range(2, len(v.shape)))
            masks = [o.spread(mask, v.shape, (0, 1)) for mask in (at_k, at_place)]
            start: float | int = 0
            rows = [o.reduce(o.select(mask, v, start), (1,), "add") for mask in masks]
            first, second = (o.spread(row, v.shape, (0, *rest)) for row in rows)
            return o.select(masks[0], second, o.select(masks[1], first, v))

        a, order = swapped(a), swapped(order)
        row = o.reshape(o.at(a, [zero, k, zero], (batch, 1, n)), batch, n)
        line = o.reshape(o.at(a, [zero, zero, k], (batch, m, 1)), batch, m)
        pivot = o.spread(_pick(o, line, k), (batch, m), (0,))
        below = _numbers(o, k, (batch, m), 1, "gt")
        factors = o.select(below, o.div(line, o.select(o.compare(pivot, "eq", 0.0), 1.0, pivot)), 0.0)
        right = o.select(_numbers(o, k, (batch, n), 1, "gt"), row, 0.0)
        step = o.mul(o.spread(factors, a.shape, (0, 1)), o.spread(right, a.shape, (0, 2)))
        a = o.put(o.sub(a, step), o.reshape(o.select(below, factors, line), batch, m, 1), [zero, zero, k])
        return [a, o.put(pivots, o.reshape(place, batch, 1), [zero, k]), order]

    first = [a, ops.full(0, (batch, steps), "s32"), ops.line((batch, m), 1)]
    packed, pivots, order = ops.loop(steps, first, column)
    found = (packed, pivots, order)
    return [ops.reshape(v, *result.shape) for v, result in zip(found, node.results, strict=True)]
