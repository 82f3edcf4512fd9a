"""`rng`, the generator that keeps a state of its own: the state becomes a state of the program, the draws Philox bits.

XLA leaves open which numbers `rng` gives. Here they follow from the compile option `seed` and from how many were drawn
since the device was made, so a program gives the same ones again.
"""

from __future__ import annotations

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Graph, Node, Value

GENERATOR = "the generator's state"
"""Name of the parameter that holds it: it is the program's own, no argument."""

UNIFORM, NORMAL = 1, 2
"""xla.RandomDistribution."""


def add_generator(graph: Graph) -> bool:
    """Give the `rng` nodes of an entry computation a state, its last parameter and its last output, in place.

    Nodes inside loops and branches are left, and refused.

    Returns:
        Whether there are any.
    """
    if not any(node.op == "rng" for node in graph.nodes):
        return False
    state = Node("parameter", [], [((3,), "u64")], name=GENERATOR).out
    graph.params.append(state)
    env: dict[Value, Value] = {}
    builder = Builder(graph.name, {})
    for node in graph.nodes:
        node.inputs = [env.get(v, v) for v in node.inputs]
        if node.op == "rng" and _known(node):
            state, env[node.out] = _draw(Ops(builder, node.where), state, node)
        else:
            builder.graph.nodes.append(node)
    graph.nodes = builder.graph.nodes
    graph.outputs = [*(env.get(v, v) for v in graph.outputs), state]
    return True


def _known(node: Node) -> bool:
    normal = node.attrs["distribution"] == NORMAL
    return node.out.dtype in ("f32", "f16") if normal else node.out.dtype not in ("s64", "u64")


def _draw(ops: Ops, state: Value, node: Node) -> tuple[Value, Value]:
    """New state and value of one `rng`."""
    shape, dtype = node.out.shape, node.out.dtype
    normal = node.attrs["distribution"] == NORMAL
    words = (2, *shape) if normal else shape
    attrs = {"algorithm": 2}
    made = Node("rng-bit-generator", [state], [((3,), "u64"), (words, "u32")], attrs, node.where)
    state, bits = ops.b.add_node(made)
    low, high = (ops.spread(v, shape, ()) if shape else v for v in node.inputs)
    if normal:
        # Box and Muller: mean + deviation sqrt(-2 log u) cos(2 pi v), with u in (0, 1].
        first, second = (ops.reshape(ops.slice(bits, 0, i, i + 1), *shape) for i in (0, 1))
        radius = ops.op("sqrt", ops.mul(ops.op("log", ops.sub(1.0, _unit(ops, first))), -2.0))
        line = ops.mul(radius, ops.op("cosine", ops.mul(_unit(ops, second), 2 * np.pi)))
        return state, ops.add(ops.mul(ops.convert(line, dtype), high), low)
    if dtype in ("f32", "f16"):
        width = ops.sub(high, low)
        return state, ops.add(ops.mul(ops.convert(_unit(ops, bits), dtype), width), low)
    if dtype == "pred":
        return state, ops.compare(ops.op("and", bits, 1), "eq", 1)
    # As 32-bit numbers without sign, in which the width of every range fits.
    wide = "s32" if dtype[0] == "s" else "u32"
    base, top = (ops.bits(ops.convert(v, wide), "u32") for v in (low, high))
    drawn = ops.add(ops.op("remainder", bits, ops.sub(top, base)), base)
    return state, ops.convert(ops.bits(drawn, wide), dtype)


def _unit(ops: Ops, bits: Value) -> Value:
    """Uniform in [0, 1): 23 bits are the mantissa of a number in [1, 2)."""
    mantissa = ops.op("or", ops.op("shift-right-logical", bits, 9), 0x3F800000)
    return ops.sub(ops.bits(mantissa, "f32"), 1.0)
