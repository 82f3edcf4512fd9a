"""The sequence of steps: which groups are in which, where branches go, and the loops that they are in."""

from __future__ import annotations

import numpy as np

from ipu_runtime.codelets import registry
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
    Program,
)
from ipu_runtime.validate.needs import MAX_IPUS, MAX_TURNS, bytes_of, need, range_of


def check_steps(program: Program, host: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Loops are closed and not nested, branches stay in them, streams have the slots that they may have.

    Args:
        program: whose.
        host: bytes of each host slot.

    Returns:
        kind, and for streams the host array's bytes, of each group.
    """
    kinds: dict[int, tuple[int, int]] = {}
    inputs = {f["slot"] for f in program.header["feeds"]}
    inputs |= {q["slot"] for q in program.header.get("queues", []) if q["mode"] == "in"}
    remote = {s["remote"] for s in program.header["states"] if "remote" in s}
    remote |= {s["slot"] for s in program.header.get("stashes", [])}
    functions: dict[int, tuple[int, int]] = {}
    depth, turning, at = 0, -1, 0
    kinds_of = program.steps[:, 0]
    # Before, in or behind which loop over iterations or slots.
    side = np.cumsum(np.isin(kinds_of, (REPEAT, END, FOR, NEXT)))
    for number, (kind, first, last, label) in enumerate(program.steps.tolist()):
        need(0 <= kind <= COLLECTIVE, f"a step has kind {kind}")
        need(first <= last <= len(program.groups), "a step's groups are out of order")
        if first < at and kind in (COMPUTE, EXCHANGE):
            need(functions.get(first) == (kind, last), "a step's groups are some of an earlier step's")
        else:
            need(first == at, "a step's groups are out of order")
            functions[first] = kind, last
            at = last
        need(0 <= label < max(1, len(program.header["labels"])), "a step's label")
        if kind == REPEAT:
            depth += 1
        elif kind == END:
            depth -= 1
        need(0 <= depth <= 1, "loops are nested or not closed")
        need(kind not in (REPEAT, END, LABEL) or first == last, "a control step has groups")
        if kind in (FOR, NEXT, WINDOW):
            turning = _turning(program, number, turning, depth)
        if kind in (BRANCH, JUMP):
            need(last == first + 1 and program.groups[first, 0] == registry.BRANCH, "a branch needs one flag")
            view = program.group(first)
            need(view.rows == 1 and len(view.params) == 1, "a branch needs one flag")
            goal = int(view.params[0])
            need(0 <= goal < len(program.steps) and kinds_of[goal] == LABEL, f"step {number} goes to no label")
            need(side[goal] == side[number], f"step {number} leaves its loop")
        for group in range(first, last):
            size = -1
            if kind in (STREAM_IN, STREAM_OUT):
                slot = int(program.group(group).params[2])
                right = slot in remote or (slot in inputs) == (kind == STREAM_IN)
                need(slot in host and right, f"group {group}: slot {slot}")
                size = host[slot]
            kinds[group] = (kind, size)
    need(depth == 0 and turning < 0, "a loop is not closed")
    need(len(program.header["group_labels"]) >= at, "a group has no label")
    for state in program.header["states"]:
        if "remote" in state:
            continue
        for name, kind in (("write", STREAM_IN), ("read", STREAM_OUT)):
            for group in range_of(state[name], len(program.groups)):
                kinds[group] = (kind, bytes_of(state))
    for constant in program.header["constants"]:
        first, n = constant["first"], constant["nbytes"]
        need(
            isinstance(first, int) and isinstance(n, int) and 0 <= first <= first + n <= len(program.blob), "a constant"
        )
        for group in range_of(constant["groups"], len(program.groups)):
            kinds[group] = (STREAM_IN, n)
    return kinds


def _turning(program: Program, number: int, inside: int, depth: int) -> int:
    """Checks a step of the loop over micro-batches.

    Args:
        program: the program.
        number: of the step.
        inside: the step at which the loop begins that this one is in, or -1.
        depth: 1 in the loop over iterations.

    Returns:
        `inside` for the next step.
    """
    kind, first, last, _ = program.steps[number].tolist()
    need(last == first + 1 and program.groups[first, 0] == registry.CONTROL, "a control step needs its parameters")
    params = program.group(first).params.tolist()
    if kind == FOR:
        need(inside < 0 and depth == 1 and len(params) == 1 and 1 <= params[0] <= MAX_TURNS, "a loop over slots")
        return number
    need(inside >= 0, "a step of a loop over slots outside one")
    if kind == NEXT:
        need(params == [inside], "the end of another loop")
        return -1
    need(len(params) == 3 and params[2] == program.micro_batches and abs(params[1]) <= MAX_TURNS, "a window")
    goal = params[0]
    need(number < goal < len(program.steps) and program.steps[goal, 0] == LABEL, f"step {number} goes to no label")
    need(not np.isin(program.steps[number:goal, 0], (FOR, NEXT, REPEAT, END)).any(), "a window leaves its loop")
    return inside


def check_pipeline(program: Program) -> None:
    """What the header says of the loop over slots is what the steps are.

    Args:
        program: whose.
    """
    header, kinds = program.header, program.steps[:, 0]
    loops = np.flatnonzero(kinds == FOR)
    slots = header.get("slots_loop")
    need((slots is None) == (len(loops) == 0), "slots_loop without a loop, or a loop without it")
    if slots is None:
        need(not header.get("windows") and not header.get("pipeline"), "a pipeline without a loop over slots")
        return
    low, high = slots
    need(len(loops) == 1 and low == int(loops[0]) and kinds[high] == NEXT, "slots_loop is not the loop over slots")
    turns = int(program.group(int(program.steps[low, 1])).params[0])
    need([low, high, turns] in [list(loop) for loop in header["loops"]], "the loop over slots is none of the loops")
    plan = header["pipeline"]
    numbers = [plan[name] for name in ("program_stages", "stages", "period", "rows", "slots", "micro_batches")]
    need(all(type(n) is int and 0 <= n <= MAX_TURNS for n in numbers), "a pipeline's numbers")
    count, forward, period = numbers[:3]
    need(1 <= count <= 2 * MAX_IPUS and count in (max(1, forward), 2 * forward), "a pipeline's stages")
    need(period >= 1 and plan["micro_batches"] == program.micro_batches, "a pipeline's period or micro-batches")
    chips = plan["chips"]
    need(len(chips) == count and all(type(c) is int and 0 <= c < program.ipus for c in chips), "a pipeline's chips")
    need(isinstance(plan["schedule"], str) and isinstance(plan["queues"], list), "a pipeline's words")
    found = set()
    for begin, end, stage, link in header["windows"]:
        need(all(type(n) is int for n in (begin, end, stage, link)), "a window's numbers")
        need(low < begin < end < high and kinds[begin] == WINDOW and kinds[end] == LABEL, "a window's steps")
        need(0 <= stage < count and link in (0, 1), "a window's stage")
        params = program.group(int(program.steps[begin, 1])).params.tolist()
        need(params[:2] == [end, stage // period], "a window is of another stage")
        found.add(begin)
    need(found == set(np.flatnonzero(kinds == WINDOW).tolist()), "the windows are not all of them")
