"""What each Keras layer costs: cycles by phase, operations, use of the chip, memory, vertices, bytes exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipu_keras.profile.cycles import StepCycles
from ipu_keras.profile.memory import parts_of, variable_bytes
from ipu_keras.profile.operations import Work, target_of, work_of
from ipu_runtime.program import CATEGORIES, COMPUTE, EXCHANGE, Program


@dataclass
class LayerCost:
    """A layer in one iteration; what belongs to no layer has the name "".

    Attributes:
        layer: its path.
        cycles: its share of the steps that it takes part in, syncs with them.
        phases: the same by phase ("forward", "backward", "variable", "stream").
        flops: two for each multiply-accumulate of its products and convolutions.
        elementwise_ops: operations of its element-wise vertices.
        utilisation: flops over what the chip's AMPs could do in the layer's cycles. Beside a longer layer in the same
            step its own fullest tile counts, so it is never above 1.
        memory: category -> bytes of its variables over all tiles, whether they live at once or not.
        vertices: how many it has in the program; those of a function belong to its first call's layer.
        exchange_bytes: bytes that its copies bring from tile to tile.
    """

    layer: str
    cycles: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    flops: int = 0
    elementwise_ops: int = 0
    utilisation: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)
    vertices: int = 0
    exchange_bytes: int = 0


def layer_costs(program: Program, steps: list[StepCycles], times: list[int], work: list[Work]) -> list[LayerCost]:
    """All layers, the dearest first.

    Args:
        program: the program.
        steps: its cycles.
        times: how often each step runs in an iteration; 0 for those that run once an execution.
        work: operations of each group.
    """
    places = [parts_of(label)[:2] for label in program.header["labels"]]
    tiles = program.tile_count
    found: dict[str, LayerCost] = {}
    peak: dict[str, float] = {}
    room: dict[str, float] = {}
    again = program.again.tolist()
    for number, ((kind, first, last, _), step, n) in enumerate(zip(program.steps.tolist(), steps, times, strict=True)):
        labels = program.labels_of(number)
        for k, i in enumerate(range(first, last) if step.by_group else ()):
            layer, phase = places[labels[k]]
            cost = found.setdefault(layer, LayerCost(layer))
            cost.vertices += int(program.groups[i, 1]) if kind == COMPUTE and not again[number] else 0
            if not n:
                continue
            cycles = n * step.by_group[k]
            cost.cycles += cycles
            cost.phases[phase] = cost.phases.get(phase, 0.0) + cycles
            cost.exchange_bytes += n * step.moved[k] if kind == EXCHANGE else 0
            cost.flops += n * work[i].flops
            cost.elementwise_ops += n * work[i].elementwise
            peak[layer] = peak.get(layer, 0.0) + n * work[i].peak_cycles / tiles
            room[layer] = room.get(layer, 0.0) + max(cycles, n * step.longest[k])
    for layer, cycles in peak.items():
        found[layer].utilisation = cycles / room[layer] if room[layer] else 0.0
    for number, label, nbytes in zip(
        program.variables[:, 0].tolist(), program.variables[:, 5].tolist(), variable_bytes(program).tolist()
    ):
        memory = found.setdefault(places[label][0], LayerCost(places[label][0])).memory
        memory[CATEGORIES[number]] = memory.get(CATEGORIES[number], 0) + nbytes
    return sorted(found.values(), key=lambda cost: -cost.cycles)


def work_by_group(program: Program) -> list[Work]:
    """Operations of every group that a step runs; those of copies are none."""
    target, out = target_of(program.header), [Work()] * len(program.groups)
    for kind, first, last, _ in program.steps.tolist():
        if kind == COMPUTE:
            out[first:last] = [work_of(program.group(i), target) for i in range(first, last)]
    return out
