"""Every field of a profile's JSON: its type, its unit and its meaning. docs/profile.md is made from this table.

A name is a path: `a.b` is b of the object a, `a[]` each element of a list, `a.*` each value of an object whose names
are data (a layer's phases, say).
"""

from __future__ import annotations

from typing import NamedTuple

SCHEMA = "ipu_keras.profile"
VERSION = 1
"""Raised when a field is removed or changes its meaning; a new field leaves it as it is."""


class Field(NamedTuple):
    """Type ("text", "integer", "number" or "truth"), unit ("" for none) and meaning of a field."""

    type: str
    unit: str
    meaning: str


FIELDS: dict[str, Field] = {
    "schema": Field("text", "", f"`{SCHEMA}`"),
    "version": Field("integer", "", "of the schema; a new field does not raise it"),
    "name": Field("text", "", "of the program"),
    "target.*": Field("text or number", "", "the chip, as `ipu_keras.target.Target` describes it"),
    "ipus": Field("integer", "chips", "of one replica; tile t of chip c has the number c x tiles + t"),
    "replicas": Field("integer", "replicas", "that run the program at once"),
    "micro_batches": Field("integer", "micro-batches", "of an iteration, that is of a weight update"),
    "cycles": Field("integer", "cycles", "of one iteration; with several chips until the last one is done"),
    "startup_cycles": Field("integer", "cycles", "of what is computed once an execution, before the first iteration"),
    "seconds": Field("number", "s", "of one iteration at the target's clock"),
    "phases.*": Field(
        "integer",
        "cycles",
        "of an iteration: compute, exchange, sync, host; together `cycles`. With "
        "several chips those of all chips, and waiting: together `cycles` for each",
    ),
    "rearrangement_cycles": Field("integer", "cycles", "of `phases.compute`, what puts data in order on a tile"),
    "unvalidated": Field(
        "number",
        "share of cycles",
        "of an iteration, from formulas of the project's own that no published source backs; the target's constants "
        "without a source (see [timing](timing.md)) are not counted here",
    ),
    "open_loops": Field("integer", "loops", "whose trips only the data knows; they are counted once"),
    "loop_start": Field("integer", "step", "the first step of an iteration; those before run once an execution"),
    "flops": Field(
        "integer",
        "operations",
        "of an iteration: two for each multiply-accumulate of products and convolutions of floats as the vertices do "
        "them, taps on padding and on zeros between elements too",
    ),
    "elementwise_ops": Field(
        "integer",
        "operations",
        "of an iteration: one for each element and operation of element-wise vertices, two for each "
        "multiply-accumulate of integers; reductions, conversions and copies are not counted",
    ),
    "flops_per_second": Field("number", "operations/s", "`flops` over `seconds`"),
    "utilisation": Field(
        "number", "share", "`flops` over what the AMPs of all tiles could do in `cycles` with operands of these dtypes"
    ),
    "counts.variables": Field("integer", "variables", "that have a place on tiles; those of a function in each call"),
    "counts.vertices": Field(
        "integer", "vertices", "of all compute sets; those of a function, which equal products share, once"
    ),
    "counts.compute_sets": Field("integer", "steps", "that run vertices"),
    "counts.exchanges": Field("integer", "steps", "that move data between or on tiles"),
    "counts.streams": Field("integer", "steps", "that move data from or to the host"),
    "counts.steps": Field("integer", "steps", "of all kinds"),
    "vertex_types[].name": Field("text", "", "of the codelet"),
    "vertex_types[].source": Field("text", "", "of its cycle formula; empty: unvalidated"),
    "vertex_types[].vertices": Field("integer", "vertices", "of this type"),
    "vertex_types[].code_bytes": Field("integer", "bytes", "of code over all tiles that use it"),
    "vertex_types[].state_bytes": Field("integer", "bytes", "of vertex state over all tiles"),
    "vertex_types[].cycles": Field(
        "number",
        "cycles",
        "of an iteration's compute sets, on the fullest tile of each; all types and `rearrangement_cycles` together "
        "are `phases.compute`",
    ),
    "layers[].layer": Field("text", "", "path of the Keras layer; empty: of no layer"),
    "layers[].cycles": Field(
        "number", "cycles", "of an iteration, with syncs, on all chips; on one all layers together are `cycles`"
    ),
    "layers[].phases.*": Field("number", "cycles", "the same by phase: forward, backward, variable, stream"),
    "layers[].flops": Field("integer", "operations", "of an iteration"),
    "layers[].elementwise_ops": Field("integer", "operations", "of an iteration"),
    "layers[].utilisation": Field(
        "number",
        "share",
        "`flops` over what the AMPs of all tiles could do in the layer's cycles; where it runs beside a longer layer, "
        "in the cycles of its own fullest tile",
    ),
    "layers[].memory.*": Field(
        "integer", "bytes", "of its variables over all tiles, by category, whether they live at once or not"
    ),
    "layers[].vertices": Field(
        "integer", "vertices", "in the program; those of a function are its first call's layer's"
    ),
    "layers[].exchange_bytes": Field("integer", "bytes", "that its copies bring to other tiles in an iteration"),
    "steps[].number": Field("integer", "step", "place in the program"),
    "steps[].kind": Field(
        "text",
        "",
        "OnTileExecute, DoExchange, StreamCopyIn, StreamCopyOut, CrossReplicaReduce, Repeat, EndRepeat, RepeatSlots, "
        "EndRepeatSlots, IfDue, Label, If, Jump; a sync is a part of the step that it precedes",
    ),
    "steps[].layer": Field("text", "", "of what takes most of the step; empty: of no layer"),
    "steps[].phase": Field("text", "", "the same: forward, backward, variable, stream, control"),
    "steps[].op": Field("text", "", "the same: name of the operation or variable"),
    "steps[].cycles": Field("integer", "cycles", "of the step run once: sync, compute and exchange"),
    "steps[].sync": Field("integer", "cycles", "of its syncs"),
    "steps[].compute": Field("integer", "cycles", "of vertices, on the fullest tile"),
    "steps[].exchange": Field("integer", "cycles", "of the exchange or the host stream"),
    "steps[].times": Field("integer", "runs", "in an iteration (before `loop_start`: in an execution)"),
    "steps[].active_tiles": Field("integer", "tiles", "with work"),
    "steps[].tile_balance": Field("number", "share", "mean over all tiles of their busy cycles, over the largest"),
    "steps[].bytes_moved": Field("integer", "bytes", "received by tiles from others or the host, or by the host"),
    "steps[].unvalidated": Field("number", "share of cycles", "of the step, as `unvalidated`"),
    "memory.fits": Field("truth", "", "every tile has room, and room for instructions where they can be executed"),
    "memory.limit_bytes": Field("integer", "bytes", "of a tile"),
    "memory.max_tile_bytes": Field("integer", "bytes", "that the fullest tile needs"),
    "memory.fullest_tile": Field("integer", "tile", "which one"),
    "memory.total_bytes": Field("integer", "bytes", "that all tiles need"),
    "memory.always_live_bytes": Field("integer", "bytes", "over all tiles that live through the whole program"),
    "memory.peak_bytes": Field("integer", "bytes", "over all tiles that live at the fullest step"),
    "memory.peak_step": Field("integer", "step", "which one"),
    "memory.executable_limit_bytes": Field("integer", "bytes", "of a tile that instructions can be fetched from"),
    "memory.max_executable_bytes": Field("integer", "bytes", "of instructions on the tile that has most"),
    "memory.by_tile[]": Field("integer", "bytes", "that each tile needs: variables, gaps, fixed bytes"),
    "memory.executable_by_tile[]": Field("integer", "bytes", "of instructions on each tile"),
    "memory.categories[].category": Field("text", "", "see the table of categories"),
    "memory.categories[].always_live_bytes": Field("integer", "bytes", "over all tiles that live always"),
    "memory.categories[].not_always_live_bytes": Field(
        "integer", "bytes", "over all tiles of what else lives on each tile at that tile's fullest step"
    ),
    "memory.categories[].max_tile_bytes": Field("integer", "bytes", "on the tile that has most of it"),
    "memory.categories[].by_tile[]": Field(
        "integer", "bytes", "on each tile at that tile's fullest step; all categories together are `memory.by_tile`"
    ),
    "liveness.tile": Field("integer", "tile", "whose bytes `liveness.tile_bytes` gives: the fullest"),
    "liveness.total_bytes[]": Field("integer", "bytes", "over all tiles that live at each step, fixed bytes too"),
    "liveness.tile_bytes[]": Field("integer", "bytes", "on that tile that live at each step, fixed bytes too"),
    "liveness.largest[].nbytes": Field(
        "integer", "bytes", "of a variable live at `memory.peak_step`, on all its tiles"
    ),
    "liveness.largest[].category": Field("text", "", "its category"),
    "liveness.largest[].layer": Field("text", "", "its layer; empty: of no layer"),
    "liveness.largest[].name": Field("text", "", "its name, or that of the operation that makes it"),
    "liveness.largest[].always_live": Field("truth", "", "whether it lives through the whole program"),
    "timeline.busy_cycles[]": Field("integer", "cycles", "of an iteration that each chip works"),
    "timeline.events[].chip": Field("integer", "chip", "that works"),
    "timeline.events[].what": Field("text", "", "forward, backward, exchange (between chips) or update (all else)"),
    "timeline.events[].stage": Field("integer", "stage", "forward pipeline stage; -1: of none"),
    "timeline.events[].micro_batch": Field("integer", "micro-batch", "of the iteration; -1: of none"),
    "timeline.events[].start": Field("integer", "cycles", "since the iteration began"),
    "timeline.events[].end": Field("integer", "cycles", "since the iteration began"),
}

CATEGORIES: dict[str, str] = {
    "variable": "weights, optimizer state and other states of the program; always live",
    "constant": "constants; always live",
    "activation": "everything else that is computed, and feeds and outputs while they are on the tiles",
    "rearrangement": "buffers of exchanges that put data in order before or after they cross",
    "hostMessage": "buffers of host streams: none, feeds and outputs land where they are used",
    "vertexCode": "code of vertices, once on each tile that uses it",
    "vertexInstanceState": "fields of vertices",
    "controlCode": "the program's own steps",
    "internalExchangeCode": "instructions that send and receive between tiles",
    "hostExchangeCode": "the same for host streams; what has to be put in order is put in order by the host",
    "stack": "stacks of the workers and the supervisor",
    "gaps": "what placement loses: bytes below the end of a tile's last variable that none takes at its fullest step",
}
"""What occupies a tile, in the words of the Poplar tools' profile (hardware.md 5.1). They have `message`, too: bytes
received by an exchange. Here these land in the operands that they are for, and are counted as those."""
