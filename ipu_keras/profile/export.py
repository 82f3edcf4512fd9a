"""A profile as plain data: the fields of `schema`, nothing else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_keras.profile.memory import parts_of
from ipu_keras.profile.schema import SCHEMA, VERSION
from ipu_runtime.program import (
    BRANCH,
    COLLECTIVE,
    COMPUTE,
    END,
    EXCHANGE,
    FOR,
    JUMP,
    LABEL,
    NEXT,
    REPEAT,
    STREAM_IN,
    STREAM_OUT,
    WINDOW,
)

if TYPE_CHECKING:
    from ipu_keras.profile.report import Profile

STEP_KINDS = {
    COMPUTE: "OnTileExecute",
    EXCHANGE: "DoExchange",
    STREAM_IN: "StreamCopyIn",
    STREAM_OUT: "StreamCopyOut",
    REPEAT: "Repeat",
    END: "EndRepeat",
    LABEL: "Label",
    BRANCH: "If",
    JUMP: "Jump",
    FOR: "RepeatSlots",
    NEXT: "EndRepeatSlots",
    WINDOW: "IfDue",
    COLLECTIVE: "CrossReplicaReduce",
}
"""Kinds of step in the words of the Poplar tools (hardware.md 6); a sync is a part of the step that it precedes."""


def to_dict(profile: Profile) -> dict[str, Any]:
    """See `Profile.to_dict`."""
    program = profile.program
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": str(program.header["name"]),
        "target": dict(program.header["target"]),
        "ipus": program.ipus,
        "replicas": program.replicas,
        "micro_batches": program.micro_batches,
        "cycles": profile.cycles,
        "startup_cycles": profile.startup_cycles,
        "seconds": profile.seconds,
        "phases": dict(profile.phases),
        "rearrangement_cycles": profile.rearrangement_cycles,
        "unvalidated": profile.unvalidated,
        "open_loops": profile.open_loops,
        "loop_start": profile.loop_start,
        "flops": profile.flops,
        "elementwise_ops": profile.elementwise_ops,
        "flops_per_second": profile.flops_per_second,
        "utilisation": profile.utilisation,
        "counts": dict(profile.counts),
        "vertex_types": [dataclasses.asdict(one) for one in profile.vertex_types],
        "layers": [dataclasses.asdict(cost) for cost in profile.layers],
        "steps": _steps(profile),
        "memory": _memory(profile),
        "liveness": _liveness(profile),
        "timeline": {
            "busy_cycles": list(profile.timeline.busy),
            "events": [event._asdict() for event in profile.timeline.events],
        },
    }


def _steps(profile: Profile) -> list[dict[str, Any]]:
    program, out = profile.program, []
    labels = [parts_of(label) for label in program.header["labels"]]
    for number, (step, (*_, label)) in enumerate(zip(profile.steps, program.steps.tolist(), strict=True)):
        # Steps that were joined have a label each: the dearest one names the whole.
        if step.by_group:
            label = program.labels_of(number)[int(np.argmax(step.by_group))]
        layer, phase, op = labels[label]
        out.append(
            {
                "number": number,
                "kind": STEP_KINDS[step.kind],
                "layer": layer,
                "phase": phase,
                "op": op,
                "cycles": step.total,
                "sync": step.sync,
                "compute": step.compute,
                "exchange": step.exchange,
                "times": profile.times[number],
                "active_tiles": step.active_tiles,
                "tile_balance": step.balance,
                "bytes_moved": step.bytes_moved,
                "unvalidated": step.unsourced / step.total if step.total else 0.0,
            }
        )
    return out


def _memory(profile: Profile) -> dict[str, Any]:
    memory = profile.memory
    executable = memory.executable
    return {
        "fits": memory.fits,
        "limit_bytes": memory.limit,
        "max_tile_bytes": memory.max_tile_bytes,
        "fullest_tile": memory.fullest_tile,
        "total_bytes": memory.total_bytes,
        "always_live_bytes": memory.always_live_bytes,
        "peak_bytes": memory.peak_bytes,
        "peak_step": memory.peak_step,
        "executable_limit_bytes": memory.executable_limit,
        "max_executable_bytes": int(executable.max(initial=0)),
        "by_tile": memory.by_tile.tolist(),
        "executable_by_tile": executable.tolist(),
        "categories": [
            {
                "category": category.name,
                "always_live_bytes": int(category.always.sum()),
                "not_always_live_bytes": int(category.others.sum()),
                "max_tile_bytes": int(category.by_tile.max(initial=0)),
                "by_tile": category.by_tile.tolist(),
            }
            for category in profile.categories
        ],
    }


def _liveness(profile: Profile) -> dict[str, Any]:
    found = profile.liveness
    return {
        "tile": found.tile,
        "total_bytes": found.total.tolist(),
        "tile_bytes": found.on_tile.tolist(),
        "largest": [tensor._asdict() for tensor in found.largest],
    }
