"""What a program is made of: counts, and the types of its vertices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipu_keras.profile.cycles import StepCycles
from ipu_runtime.codelets import registry
from ipu_runtime.program import COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT, Program


@dataclass
class VertexType:
    """All vertices of a codelet.

    Attributes:
        name: of the codelet.
        source: of its cycle formula; "" for one of our own making.
        vertices: how many.
        code_bytes: of its code, over all tiles that use it.
        state_bytes: of their state.
        cycles: of an iteration's compute sets, on the fullest tile of each.
    """

    name: str
    source: str
    vertices: int = 0
    code_bytes: int = 0
    state_bytes: int = 0
    cycles: float = 0.0


def vertex_types(program: Program, steps: list[StepCycles], times: list[int]) -> list[VertexType]:
    """The types of vertices of a program, the dearest first.

    Args:
        program: the program.
        steps: its cycles.
        times: how often each step runs in an iteration; 0 for those that run once an execution.
    """
    found: dict[int, VertexType] = {}
    uses: dict[int, NDArray[np.bool_]] = {}
    rows = zip(program.steps.tolist(), steps, times, program.again.tolist(), strict=True)
    for (kind, first, last, _), step, n, again in rows:
        for k, i in enumerate(range(first, last) if kind == COMPUTE else ()):
            g = program.group(i)
            model = registry.MODELS[g.codelet]
            one = found.setdefault(g.codelet, VertexType(model.name, model.source))
            if not again:
                one.vertices += g.rows
                one.state_bytes += int(np.broadcast_to(model.state_bytes(g), g.rows).sum())
            one.cycles += n * step.by_group[k] * step.compute / step.total if step.total else 0.0
            uses.setdefault(g.codelet, np.zeros(program.tile_count, bool))[g.tiles] = True
    for codelet, tiles in uses.items():
        found[codelet].code_bytes = int(tiles.sum()) * registry.MODELS[codelet].code_bytes
    return sorted(found.values(), key=lambda one: (-one.cycles, one.name))


def counts(program: Program) -> dict[str, int]:
    """How many variables, vertices, compute sets, exchanges, host streams and steps a program has."""
    kinds = program.steps[:, 0]
    vertices = sum(
        int(program.groups[first:last, 1].sum())
        for kind, first, last, _ in program.steps[~program.again].tolist()
        if kind == COMPUTE
    )
    return {
        "variables": len(program.variables),
        "vertices": vertices,
        "compute_sets": int((kinds == COMPUTE).sum()),
        "exchanges": int((kinds == EXCHANGE).sum()),
        "streams": int(((kinds == STREAM_IN) | (kinds == STREAM_OUT)).sum()),
        "steps": len(kinds),
    }
