"""64-bit integers from the host come to the tiles as 32-bit ones, as the chip's front end takes them.

Ids, labels and positions in NumPy's default dtype would cost twice the memory and, in arithmetic, many times the
cycles. The engine checks each value: what does not fit is an error, it does not wrap. Arithmetic inside a program
keeps the width that it is written in.
"""

from __future__ import annotations

from collections.abc import Container

from ipu_keras.graph.ir import Graph, Node

NARROW = {"s64": "s32", "u64": "u32"}


def narrow_feeds(graph: Graph, states: Container[int]) -> dict[int, str]:
    """Give parameters of 64-bit integers that are streamed in 32 bits, in place.

    Args:
        graph: an entry computation.
        states: parameters that stay on the tiles: those keep their width.

    Returns:
        By parameter the dtype of its array on the host.
    """
    wide: dict[int, str] = {}
    converts = []
    for i, param in enumerate(graph.params):
        if i in states or param.dtype not in NARROW:
            continue
        wide[i] = param.dtype
        node = Node("parameter", [], [(param.shape, NARROW[param.dtype])], name=param.node.name)
        convert = Node("convert", [node.out], [(param.shape, param.dtype)], where=param.node.name)
        for user in graph.nodes:
            user.inputs = [convert.out if v is param else v for v in user.inputs]
        graph.outputs = [convert.out if v is param else v for v in graph.outputs]
        graph.params[i] = node.out
        converts.append(convert)
    graph.nodes[:0] = converts
    return wide
