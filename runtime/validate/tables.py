"""The header, and the tables of groups, columns, variables and cells."""

from __future__ import annotations

import numpy as np

from ipu_runtime import rounding
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER
from ipu_runtime.program import CATEGORIES, Program
from ipu_runtime.validate.needs import MAX_IPUS, MAX_TILE_BYTES, MAX_TILES, MAX_TURNS, bytes_of, need


def check_header(program: Program) -> None:
    """What the header says is possible, and of the right type.

    Args:
        program: whose.
    """
    header = program.header
    need(isinstance(header, dict), "the header is not an object")
    target = header["target"]
    for name in ("tiles", "bytes_per_tile", "clock_hz", "exchange_bytes_per_cycle", "memcpy_bytes_per_cycle",
                 "weight_load_bytes_per_cycle", "sync_cycles", "exchange_fixed_cycles", "fragment_cycles",
                 "host_bytes_per_second", "host_fixed_cycles"):  # fmt: skip
        need(isinstance(target[name], (int, float)) and target[name] > 0, f"target.{name} is not a positive number")
    need(isinstance(target["tiles"], int) and target["tiles"] <= MAX_TILES, "target.tiles")
    used = header["used_bytes"]
    need(isinstance(used, int) and 0 <= used <= MAX_TILE_BYTES, "used_bytes")
    need(isinstance(header["slots"], int) and 0 <= header["slots"] <= 1 << 20, "slots")
    for kind in ("feeds", "outputs", "states"):
        for entry in header[kind]:
            need(entry["dtype"] in DTYPE_NUMBER, f"{kind}: dtype {entry['dtype']!r}")
            need(all(isinstance(n, int) and n >= 0 for n in entry["shape"]), f"{kind}: shape {entry['shape']!r}")
    for entry in header["feeds"]:
        wide = entry.get("host_dtype")
        need(wide is None or (wide, entry["dtype"]) in (("s64", "s32"), ("u64", "u32")), "a feed's dtype on the host")
    made_up = header.get("synthetic", {})
    need(isinstance(made_up, dict), "synthetic")
    for kind, number in (("feeds", "param"), ("outputs", "output")):
        for entry in made_up.get(kind, []):
            need(isinstance(entry, dict) and isinstance(entry.get(number), int), f"synthetic {kind}: no number")
            need(entry.get("dtype") in DTYPE_NUMBER, f"synthetic {kind}: dtype")
            shape = entry.get("shape")
            right = isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape)
            need(right and bytes_of(entry) >= 0, f"synthetic {kind}: shape {shape!r}")  # too many bytes are refused
            need(entry.get("micro", 1) in (1, program.micro_batches), f"synthetic {kind}: how often it is made")
    floating = header.get("floating_point", {})
    need(isinstance(floating, dict), "floating_point")
    need(floating.get("overflow", "inf") in rounding.OVERFLOW, "floating_point.overflow")
    need(all(t in rounding.TRAPS for t in floating.get("traps", [])), "floating_point.traps")
    for group, members in header.get("members", {}).items():
        known = group.isdecimal() and int(group) < len(program.groups) and len(members) > 0
        need(known and all(0 <= label < len(header["labels"]) for label in members), "the operations of a chain")
    for low, high, trips in header.get("loops", []):
        need(0 <= low <= high < len(program.steps) and (trips is None or 0 <= trips < 1 << 40), "a loop")
    for branch, otherwise, end in header.get("choices", []):
        need(0 <= branch <= otherwise <= end < len(program.steps), "a conditional")
    for name, most in (("ipus", MAX_IPUS), ("replicas", MAX_IPUS), ("micro_batches", MAX_TURNS)):
        need(isinstance(header.get(name, 1), int) and 1 <= header.get(name, 1) <= most, name)
    for kind in ("feeds", "outputs"):
        for entry in header[kind]:
            need(entry.get("micro", 1) in (1, program.micro_batches), f"{kind}: how often it is streamed")
    for entry in header["constants"]:
        least = {None: 0, "number": 4, "seed": 8}
        need(entry.get("replica") in least and entry["nbytes"] >= least[entry.get("replica")], "a replica's constant")
    for entry in header.get("queues", []):
        need(entry["mode"] in ("in", "all", "last"), "a queue's mode")
        need(entry["dtype"] in DTYPE_NUMBER, "a queue's dtype")
        need(all(isinstance(n, int) and n >= 0 for n in entry["shape"]), "a queue's shape")
    for entry in header["states"]:
        # Who shares a state and who has a copy of it decides where a replica's copies go on the host.
        right = "remote" in entry and type(entry.get("shared")) is int and 1 < entry["shared"] == program.replicas
        need("shared" not in entry or right, "replicas that share a state")
    for entry in header.get("stashes", []):
        right = entry["dtype"] in DTYPE_NUMBER and all(type(n) is int and n >= 0 for n in entry["shape"])
        need(right and type(entry["depth"]) is int, "a stash's shape, dtype or depth")
        need(1 <= entry["depth"] <= program.micro_batches, "a stash holds micro-batches of one iteration")
    slots = [entry["slot"] for kind in ("feeds", "outputs", "queues", "stashes") for entry in header.get(kind, [])]
    slots += [entry["remote"] for entry in header["states"] if "remote" in entry]
    need(sorted(slots) == list(range(header["slots"])), "every slot belongs to one feed or output")
    need(all(isinstance(t, str) for t in header["labels"]), "labels are texts")


def check_tables(program: Program) -> None:
    """Every index of a table lies inside the one that it is for.

    Args:
        program: whose.
    """
    groups, columns = program.groups, program.columns
    if len(groups):
        need((groups >= 0).all(), "a group has a negative number")
        need((groups[:, 0] < len(registry.MODELS)).all(), "a group has an unknown codelet")
        need((groups[:, 2] + groups[:, 3] <= len(program.params)).all(), "a group's parameters leave the table")
        need((groups[:, 4] + groups[:, 5] <= len(columns)).all(), "a group's columns leave the table")
        need((groups[:, 5] >= 1).all() and (groups[:, 1] >= 1).all(), "a group without rows or columns")
        need((groups[:, 1] < 1 << 31).all(), "a group with too many rows")
        need((groups[:, 6] <= rounding.COMMON).all(), "a group's results are rounded in an unknown way")
    if len(columns):
        need((columns >= 0).all() and (columns.sum(1) <= len(program.data)).all(), "a column leaves the data")
    for codelet, rows, _, _, first, n, _ in groups.tolist():
        length = columns[first : first + n, 1]
        need(
            ((length == 1) | (length == rows)).all(), f"a column of codelet {codelet} has another length than its rows"
        )
    variables, cells = program.variables, program.cells
    if len(variables):
        need((variables >= 0).all() and (variables[:, 0] < len(CATEGORIES)).all(), "a variable's category or life")
        need((variables[:, 3].astype(np.int64) + variables[:, 4] <= len(cells)).all(), "a variable's cells")
        need((variables[:, 5] < len(program.header["labels"])).all(), "a variable's label")
        need(int(variables[:, 4].sum(dtype=np.int64)) == len(cells), "cells without a variable")
    if len(cells):
        wide = cells.astype(np.int64)
        need((wide >= 0).all() and (wide[:, 0] < program.tile_count).all(), "a cell's tile")
        need((wide[:, 1] + wide[:, 2] <= program.header["used_bytes"]).all(), "a cell leaves its tile")


def host_sizes(program: Program) -> dict[int, int]:
    """Bytes of one iteration of each host slot.

    Args:
        program: whose.
    """
    sizes = {}
    for kind in ("feeds", "outputs", "queues", "stashes"):
        for entry in program.header.get(kind, []):
            sizes[entry["slot"]] = bytes_of(entry)
    sizes.update({entry["remote"]: bytes_of(entry) for entry in program.header["states"] if "remote" in entry})
    return sizes
