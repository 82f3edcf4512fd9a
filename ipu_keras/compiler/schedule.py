"""Joins independent steps of one kind into supersteps: fewer syncs, on the chip and in the emulation.

Steps are taken in program order. Each round looks at the first step that can run and takes with it every other step of
its kind that can run too and stands not far behind: far-ahead steps would only fill the tiles' memory early. A
function's steps stay alone: each of its calls has the same.
"""

from __future__ import annotations

import heapq

from ipu_keras.compiler.lower.parts import RawStep, Var
from ipu_runtime.program import REPEAT

WINDOW = 32
"""How far behind the first one a step may stand to join its superstep."""


def dependencies(steps: list[RawStep]) -> list[set[int]]:
    """For each step the earlier steps that it must follow: writers before readers, readers before writers."""
    writer: dict[Var, int] = {}
    readers: dict[Var, list[int]] = {}
    found = []
    for i, step in enumerate(steps):
        needs: set[int] = set()
        for var in step.reads:
            if var in writer:
                needs.add(writer[var])
        for var in step.writes:
            if var in writer:
                needs.add(writer[var])
            needs.update(readers.get(var, ()))
        for var in step.reads:
            readers.setdefault(var, []).append(i)
        for var in step.writes:
            writer[var] = i
            readers[var] = []
        needs.discard(i)
        found.append(needs)
    return found


def in_order(steps: list[RawStep]) -> list[list[RawStep]]:
    """Supersteps of a program with control steps: nothing moves across one."""
    out: list[list[RawStep]] = []
    straight: list[RawStep] = []
    for step in steps:
        if step.kind >= REPEAT:
            out += [*supersteps(straight), [step]]
            straight = []
        else:
            straight.append(step)
    return out + supersteps(straight)


def supersteps(steps: list[RawStep], window: int = WINDOW) -> list[list[RawStep]]:
    """Group steps into supersteps, each a list of independent steps of one kind."""
    needs = dependencies(steps)
    users: list[list[int]] = [[] for _ in steps]
    waiting = [len(n) for n in needs]
    for i, n in enumerate(needs):
        for j in n:
            users[j].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    out: list[list[RawStep]] = []
    while ready:
        first = ready[0]
        kind = steps[first].kind
        taken: list[int] = []
        left: list[int] = []
        if steps[first].shared:
            taken.append(heapq.heappop(ready))
        while ready and ready[0] <= first + window and not steps[first].shared:
            i = heapq.heappop(ready)
            (taken if steps[i].kind == kind and not steps[i].shared else left).append(i)
        for i in left:
            heapq.heappush(ready, i)
        out.append([steps[i] for i in taken])
        for i in taken:
            for user in users[i]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, user)
    return out
