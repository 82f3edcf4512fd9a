"""Graph passes, in the order in which they run; the graph's rules are checked after each."""

from __future__ import annotations

from collections.abc import Callable

from ipu_keras.compiler.passes.expand import expand
from ipu_keras.compiler.passes.fuse import fuse
from ipu_keras.compiler.passes.narrow import narrow_values
from ipu_keras.compiler.passes.regions import run_regions
from ipu_keras.compiler.passes.simplify import simplify
from ipu_keras.graph.ir import Graph, check

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("expand", expand),
    ("simplify", simplify),
    ("narrow", narrow_values),
    ("simplify again", simplify),
    ("fuse", fuse),
)

REGION = "region: "


def run_passes(graph: Graph, trace: Callable[[str, Graph], None] | None = None, fused: bool = True) -> Graph:
    """Run all passes.

    Args:
        graph: the module as imported.
        trace: called with each pass's name and the graph it left; for the body of a loop or a side of a branch the
            name begins with `REGION`.
        fused: whether element-wise chains are fused; a graph that will be cut in parts is fused part by part.

    Returns:
        An equivalent graph whose element-wise chains are `map` nodes.
    """
    check(graph)
    for name, graph_pass in PASSES if fused else PASSES[:-1]:
        if name == "simplify again":
            graph = run_regions(graph, lambda region: run_passes(region, _within(trace)))
        graph = graph_pass(graph)
        check(graph)
        if trace is not None:
            trace(name, graph)
    return graph


def _within(trace: Callable[[str, Graph], None] | None) -> Callable[[str, Graph], None] | None:
    """The same for a region, however deep it is."""
    return None if trace is None else lambda name, graph: trace(REGION + name.removeprefix(REGION), graph)
