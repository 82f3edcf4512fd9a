"""Between which numbers an integer value surely lies, whatever the program is fed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ipu_keras.graph.ir import DTYPES, Graph, Value

__all__ = ["Bounds", "picks"]

Interval = tuple[int, int]

CHOOSING = {"compare", "select", "maximum", "minimum"}
"""Operations that give one of their operands, or a truth."""


def _limits(dtype: str) -> Interval:
    """What a dtype can hold."""
    if dtype == "pred":
        return 0, 1
    info = np.iinfo(DTYPES[dtype])
    return int(info.min), int(info.max)


def _hull(intervals: Iterable[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def _corners(operation: Callable[[int, int], int], x: Interval, y: Interval) -> Interval:
    found = [operation(a, b) for a in x for b in y]
    return min(found), max(found)


def _size(x: Interval) -> int:
    return max(abs(x[0]), abs(x[1]))


def picks(region: Graph) -> bool:
    """Whether a reduction's region gives one of what it is given, as that of an argmax does."""
    return all(node.op in CHOOSING or node.out.dtype == "pred" for node in region.nodes)


class Bounds:
    """The intervals of integer values, worked out once each.

    Exact integers: an operation that could leave its dtype, and so wrap, may give any number of it.

    Example:
        >>> line = Node("constant", [], [((3,), "s64")], {"value": np.array([2, 0, 7])})
        >>> Bounds().of(line.out)
        (0, 7)
    """

    def __init__(self) -> None:
        self.known: dict[Value, Interval] = {}

    def of(self, value: Value) -> Interval:
        """The smallest and the largest number that the elements of an integer or boolean value may be."""
        if value not in self.known:
            most = _limits(value.dtype)
            low, high = self._exact(value) or most
            self.known[value] = (low, high) if most[0] <= low and high <= most[1] else most
        return self.known[value]

    def _exact(self, value: Value) -> Interval | None:
        node = value.node
        if node.op == "constant":
            array = node.attrs["value"]
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        if node.op == "convert":
            return None if node.inputs[0].dtype[0] in "fc" else self.of(node.inputs[0])
        if node.op == "reduce" and picks(node.attrs["region"]):
            return _hull(self.of(v) for v in node.inputs if v.dtype == value.dtype)
        rule = _RULES.get(node.op)
        if rule is None:
            return None
        # What is moved may lie beside indices and other operands that say nothing of it.
        return rule([self.of(node.inputs[i]) for i in _READ.get(node.op, range(len(node.inputs)))])


_READ: dict[str, tuple[int, ...]] = {
    "gather": (0,),
    "dynamic-slice": (0,),
    "dynamic-update-slice": (0, 1),
    "select": (1, 2),
}

_RULES: dict[str, Callable[[list[Interval]], Interval]] = {
    **dict.fromkeys(
        ("broadcast", "reshape", "transpose", "slice", "reverse", "concatenate", "pad", "select", *_READ), _hull
    ),
    "add": lambda v: (v[0][0] + v[1][0], v[0][1] + v[1][1]),
    "subtract": lambda v: (v[0][0] - v[1][1], v[0][1] - v[1][0]),
    "multiply": lambda v: _corners(lambda a, b: a * b, *v),
    "negate": lambda v: (-v[0][1], -v[0][0]),
    "abs": lambda v: (0 if v[0][0] <= 0 <= v[0][1] else min(abs(v[0][0]), abs(v[0][1])), _size(v[0])),
    "sign": lambda v: (-1, 1),
    "maximum": lambda v: _corners(max, *v),
    "minimum": lambda v: _corners(min, *v),
    "clamp": lambda v: (min(max(v[0][0], v[1][0]), v[2][0]), min(max(v[0][1], v[1][1]), v[2][1])),
    # Toward zero; a quotient by zero is -1, what remains of it the dividend.
    "divide": lambda v: (min(-1, -_size(v[0])), _size(v[0])),
    "remainder": lambda v: (-_size(v[0]), _size(v[0])),
}
