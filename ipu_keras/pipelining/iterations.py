"""How many mini-batches a pipeline of S stages can run, for each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from ipu_keras.pipelining.enums import PipelineSchedule
from ipu_keras.pipelining.errors import iterations_error

__all__ = ["check_iterations", "rows"]


def rows(schedule: PipelineSchedule, stages: int, training: bool, device_mapping: Sequence[int] | None = None) -> int:
    """Mini-batches in flight: how many stand side by side in the steady state.

    Args:
        schedule: of the pipeline.
        stages: number of forward stages.
        training: whether backward stages follow.
        device_mapping: IPU of each stage, None for one each. Interleaved, no two rows may want an IPU at once.

    Example:
        >>> rows(PipelineSchedule.Grouped, 2, training=True)
        4
    """
    if schedule is PipelineSchedule.Sequential:
        return 1
    if schedule is PipelineSchedule.Grouped:
        return 2 * stages if training else stages
    devices = list(device_mapping) if device_mapping else list(range(stages))
    if training:
        devices += devices[::-1]
    shifts: list[int] = []
    for shift in range(len(devices)):
        row = _shifted(devices, shift)
        if not any(one == other for s in shifts for one, other in zip(row, _shifted(devices, s))):
            shifts.append(shift)
    return len(shifts)


def _shifted(devices: list[int], shift: int) -> list[int]:
    return devices[-shift:] + devices[:-shift] if shift else devices


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
