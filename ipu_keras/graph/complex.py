"""Complex numbers become pairs of reals while a module is read: nothing behind the import knows them.

A value of c64 is a `Pair`: real part, imaginary part. Where HLO hands several values on (tuples, loops, branches,
reductions) a pair is two values, so those need no rule of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.graph.ir import Graph, Node, Value

COMPLEX = "c64"

PARTWISE = frozenset(
    "add broadcast concatenate dynamic-slice dynamic-update-slice gather negate pad reshape reverse select slice "
    "subtract transpose".split()
)
"""Operations that treat the two parts alike."""

FLAT = frozenset(["conditional", "reduce", "while"])
"""Operations for which a pair is two values."""

FFT_KINDS = ("fft", "ifft", "rfft", "irfft")
"""In the order of xla.FftType."""


class Pair(list[Value]):
    """Real and imaginary part of a complex value."""


class _Parts:
    """Adds the nodes of one complex instruction."""

    def __init__(self, graph: Graph, where: str, name: str) -> None:
        self.graph, self.where, self.name = graph, where, name

    def add(self, op: str, *inputs: Value, dtype: str = "f32", **attrs: Any) -> Value:
        """A node of its operands' shape."""
        node = Node(op, inputs, [(inputs[0].shape, dtype)], attrs, where=self.where, name=self.name)
        self.graph.nodes.append(node)
        return node.out

    def full(self, value: float, like: Value) -> Value:
        """A number, everywhere."""
        scalar = Node("constant", [], [((), "f32")], {"value": np.float32(value).reshape(())}, self.where)
        node = Node("broadcast", [scalar.out], [(like.shape, "f32")], {"dims": ()}, self.where)
        self.graph.nodes += [scalar, node]
        return node.out

    def multiply(self, a: Pair, b: Pair) -> Pair:
        """(ac - bd) + (ad + bc)i."""
        m = lambda x, y: self.add("multiply", x, y)  # noqa: E731
        return Pair(
            [
                self.add("subtract", m(a[0], b[0]), m(a[1], b[1])),
                self.add("add", m(a[0], b[1]), m(a[1], b[0])),
            ]
        )

    def divide(self, a: Pair, b: Pair) -> Pair:
        """a / b, the divisor scaled by its larger part, so that its square neither overflows nor vanishes."""
        scale = self.add("maximum", self.add("abs", b[0]), self.add("abs", b[1]))
        unit = Pair([self.add("divide", b[0], scale), self.add("divide", b[1], scale)])
        top = self.multiply(a, Pair([unit[0], self.add("negate", unit[1])]))
        size = self.add("add", self.add("multiply", b[0], unit[0]), self.add("multiply", b[1], unit[1]))
        return Pair([self.add("divide", part, size) for part in top])

    def magnitude(self, a: Pair) -> Value:
        """|a|, with the larger part taken out of the root."""
        re, im = self.add("abs", a[0]), self.add("abs", a[1])
        large, small = self.add("maximum", re, im), self.add("minimum", re, im)
        ratio = self.add("divide", small, large)
        root = self.add("sqrt", self.add("add", self.full(1.0, ratio), self.add("multiply", ratio, ratio)))
        zero = self.full(0.0, large)
        is_zero = self.add("compare", large, zero, dtype="pred", direction="eq")
        return self.add("select", is_zero, zero, self.add("multiply", large, root))

    def exponential(self, a: Pair) -> Pair:
        """e^x (cos y + i sin y)."""
        size = self.add("exponential", a[0])
        return Pair([self.add("multiply", size, self.add(f, a[1])) for f in ("cosine", "sine")])

    def equal(self, a: Pair, b: Pair, direction: str) -> Value:
        """Both parts equal, or one of them not."""
        parts = [self.add("compare", x, y, dtype="pred", direction=direction) for x, y in zip(a, b, strict=True)]
        return self.add("and" if direction == "eq" else "or", *parts, dtype="pred")


def complex_node(op: str, inputs: list[Any], shape: tuple[int, ...], attrs: dict[str, Any], into: Any) -> Any:
    """The value of an instruction that takes or gives complex numbers, or None where there is no rule for it.

    Args:
        op: HLO opcode.
        inputs: its operands, complex ones as pairs.
        shape: of the result.
        attrs: its attributes.
        into: (graph, where, name) for the nodes that it becomes.
    """
    parts = _Parts(*into)
    graph, where, name = into

    def node(*values: Value, results: int = 1, opcode: str = op) -> Node:
        made = Node(opcode, values, [(shape, "f32")] * results, attrs, where=where, name=name)
        graph.nodes.append(made)
        return made

    if op in PARTWISE:
        both = [[v[i] if isinstance(v, Pair) else v for v in inputs] for i in (0, 1)]
        return Pair([node(*both[0]).out, node(*both[1]).out])
    if op in ("real", "imag"):
        value = inputs[0]
        if isinstance(value, Pair):
            return value[0 if op == "real" else 1]
        return value if op == "real" else parts.full(0.0, value)
    if op == "complex":
        return Pair(inputs)
    if op == "convert" and not isinstance(inputs[0], Pair):
        real = parts.add("convert", inputs[0])
        return Pair([real, parts.full(0.0, real)])
    if op == "convert":
        return inputs[0]
    if op == "multiply":
        return parts.multiply(*inputs)
    if op == "divide":
        return parts.divide(*inputs)
    if op == "abs":
        return parts.magnitude(*inputs)
    if op == "exponential":
        return parts.exponential(*inputs)
    if op == "compare" and attrs["direction"] in ("eq", "ne"):
        return parts.equal(inputs[0], inputs[1], attrs["direction"])
    if op == "dot":
        (a, b), (c, d) = inputs
        ac, bd, ad, bc = (node(x, y).out for x, y in ((a, c), (b, d), (a, d), (b, c)))
        return Pair([parts.add("subtract", ac, bd), parts.add("add", ad, bc)])
    if op == "fft":
        made = node(
            *(inputs[0] if isinstance(inputs[0], Pair) else inputs), results=1 if attrs["kind"] == "irfft" else 2
        )
        return made.out if attrs["kind"] == "irfft" else Pair(made.results)
    return None
