"""How a value comes from the part that makes it to the parts that use it.

On the same chip: it stays where it is while nothing overwrites it, else it goes through a queue (a FIFO) that is as
long as there are micro-batches in between. To another chip: over an IPU-Link at the end of the slot, from stage to
stage, as each stage hands on to the next one only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ipu_keras.compiler.parallel.schedule import Schedule

__all__ = ["Hop", "Keep", "Queue", "Route", "plan_route"]


@dataclass(frozen=True)
class Hop:
    """Over a link: from one program stage to the next one."""

    stage: int


@dataclass(frozen=True)
class Keep:
    """To a later stage of the same chip, without a copy."""

    holder: int
    stage: int


@dataclass(frozen=True)
class Queue:
    """To a later stage of the same chip, through a queue of `depth` blocks."""

    holder: int
    stage: int
    depth: int


@dataclass
class Route:
    """The ways of one value: its hops (each to `stage` + 1), and what each using stage reads."""

    hops: list[Hop] = field(default_factory=list)
    uses: list[Keep | Queue] = field(default_factory=list)


def plan_route(schedule: Schedule, maker: int, users: list[int]) -> Route:
    """Plan the ways of a value.

    Args:
        schedule: of the pipeline.
        maker: program stage that makes it.
        users: later program stages that use it, in order.

    Example:
        >>> from ipu_keras.pipelining import PipelineSchedule
        >>> plan_route(Schedule(PipelineSchedule.Grouped, (0, 1)), 0, [1, 3])
        Route(hops=[Hop(stage=0)], uses=[Queue(holder=0, stage=3, depth=3)])
    """
    route = Route()
    holders = [maker]
    for user in users:
        near = [h for h in holders if schedule.chip(h) == schedule.chip(user) and h < user]
        if user in holders:
            continue
        if not near:
            for stage in range(max(h for h in holders if h < user), user):
                route.hops.append(Hop(stage))
                holders.append(stage + 1)
            continue
        holder = near[-1]
        # A value that came over a link is overwritten at the end of the slot before the next one's; one that was made
        # here only when its stage works again.
        lasts = schedule.period - (0 if holder == maker else 1)
        if user - holder <= lasts:
            route.uses.append(Keep(holder, user))
        else:
            route.uses.append(Queue(holder, user, schedule.in_flight(holder, user)))
    return route
