"""How many mini-batches a pipeline of S stages can run, for each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from ipu_keras.pipelining.enums import PipelineSchedule
from ipu_keras.pipelining.errors import iterations_error

__all__ = ["check_iterations", "offsets", "rows"]


def offsets(schedule: PipelineSchedule, chips: Sequence[int]) -> tuple[int, ...]:
    """Time slots in which mini-batches enter an empty pipeline, before the first of them has left.

    Interleaved, each enters as early as no two want a chip in the same slot.

    Args:
        schedule: of the pipeline.
        chips: where each of its program stages works, forward and backward ones.

    Example:
        >>> offsets(PipelineSchedule.Interleaved, [0, 1, 1, 0])
        (0, 2)
    """
    if schedule is PipelineSchedule.Sequential:
        return (0,)
    if schedule is PipelineSchedule.Grouped:
        return tuple(range(len(chips)))
    found: list[int] = []
    for offset in range(len(chips)):
        if not any(chips[p] == chips[p + offset - other - len(chips)] for other in found for p in range(len(chips))):
            found.append(offset)
    return tuple(found)


def rows(schedule: PipelineSchedule, stages: int, training: bool, device_mapping: Sequence[int] | None = None) -> int:
    """Mini-batches in flight: how many stand side by side in the steady state.

    Args:
        schedule: of the pipeline.
        stages: number of forward stages.
        training: whether backward stages follow.
        device_mapping: IPU of each stage, None for one each.

    Example:
        >>> rows(PipelineSchedule.Grouped, 2, training=True)
        4
    """
    chips = list(device_mapping or range(stages))
    return len(offsets(schedule, chips + chips[::-1] if training else chips))


def check_iterations(
    what: str,
    argument: str,
    iterations: int,
    schedule: PipelineSchedule,
    stages: int,
    *,
    training: bool,
    device_mapping: Sequence[int] | None = None,
    io_tiles: bool = False,
) -> None:
    """Refuses a number of mini-batches that does not fill the pipeline.

    Args:
        what: for messages, such as ``"model 'm'"``.
        argument: what the number was set by, for messages.
        iterations: mini-batches of one execution of the pipeline.
        schedule: of the pipeline.
        stages: number of forward stages.
        training: whether backward stages follow.
        device_mapping: IPU of each stage, None for one each.
        io_tiles: whether transfers overlap on I/O tiles (Grouped only), which needs longer and no whole rounds.

    Raises:
        IPUError: of class `iterations_error`, a FailedPreconditionError; names the number that is needed.
    """
    kind = f"{what}: the {schedule.name} schedule with {stages} stages in {'training' if training else 'inference'}"
    if io_tiles and schedule is PipelineSchedule.Grouped:
        least = (2 * stages if training else stages) + 2
        if iterations < least:
            raise iterations_error()(
                f"{kind} and I/O tiles: the number of iterations of the pipeline must be at least {least}, and "
                f"{argument} is {iterations}. Set it to {least} or more."
            )
        return
    step = rows(schedule, stages, training, device_mapping)
    if iterations >= step and iterations % step == 0:
        return
    if iterations < step:
        raise iterations_error()(
            f"{kind}: the number of iterations of the pipeline must be at least {step}, and a multiple of it, and "
            f"{argument} is {iterations}. {_advice(training, [step])}"
        )
    lower = iterations // step * step
    raise iterations_error()(
        f"{kind}: the number of iterations of the pipeline must be a multiple of {step}, and {argument} is "
        f"{iterations}. {_advice(training, [lower, lower + step])}"
    )


def _advice(training: bool, numbers: list[int]) -> str:
    """What would do."""
    allowed = " or ".join(map(str, numbers))
    if training:
        return f"Set it to {allowed}."
    return f"Set it to {allowed}, and give each replica a multiple of that many batches."
