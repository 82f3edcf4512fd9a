"""When which program stage works on which micro-batch. Source of all rules: api.md 6.

A pipeline of S stages has P program stages: S in inference, 2 S in training, where P - 1 - k is the backward pass of
stage k. Time goes in slots. A *row* is a micro-batch in flight; row i is at program stage (t - offset i) mod P at time
t. Micro-batch n follows R after micro-batch n - R, where R is the number of rows. The offsets are equally far apart, by
the *period*, so after each period the same stages are at work on the next micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ipu_keras.pipelining import PipelineSchedule, offsets

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """A pipeline's schedule.

    Args:
        kind: by name.
        devices: chip of each forward stage.
        training: whether there are backward stages.

    Raises:
        NotImplementedError: Interleaved with two stages on one chip, where no even spacing of rows exists.

    Example:
        >>> s = Schedule(PipelineSchedule.Grouped, (0, 1), training=True)
        >>> s.stages, s.rows, s.slots(4), [s.slot(3, p) for p in range(4)]
        (4, 4, 7, [3, 4, 5, 6])
    """

    kind: PipelineSchedule
    devices: tuple[int, ...]
    training: bool = True

    def __post_init__(self) -> None:
        if self.kind is PipelineSchedule.Interleaved and self.training and len(set(self.devices)) < len(self.devices):
            raise NotImplementedError(
                "The Interleaved schedule has one stage on each IPU in training; device_mapping is "
                f"{list(self.devices)}. Use PipelineSchedule.Grouped or Sequential."
            )
        step = self.stages / self.rows
        if self.offsets != tuple(int(i * step) for i in range(self.rows)) or step != int(step):
            raise NotImplementedError(
                f"{self.kind.name} with device_mapping {list(self.devices)}: micro-batches would enter at slots "
                f"{list(self.offsets)} of {self.stages}, which are not equally far apart. Use another mapping or "
                "PipelineSchedule.Sequential."
            )

    @property
    def stages(self) -> int:
        """Program stages P."""
        return len(self.devices) * (2 if self.training else 1)

    def chip(self, stage: int) -> int:
        """Chip of a program stage."""
        return self.devices[self.forward(stage)]

    def forward(self, stage: int) -> int:
        """The forward stage that a program stage is, or is the backward pass of."""
        return min(stage, 2 * len(self.devices) - 1 - stage)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Slot in which each row enters."""
        return offsets(self.kind, [self.chip(p) for p in range(self.stages)])

    @property
    def rows(self) -> int:
        """Micro-batches in flight."""
        return len(self.offsets)

    @property
    def period(self) -> int:
        """Slots from one micro-batch to the next."""
        return self.stages // self.rows

    def slot(self, micro_batch: int, stage: int) -> int:
        """The slot in which a program stage works on a micro-batch."""
        return micro_batch * self.period + stage

    def slots(self, micro_batches: int) -> int:
        """Slots of an iteration, ramp-up and ramp-down with them."""
        return self.slot(micro_batches - 1, self.stages - 1) + 1

    def turns(self, micro_batches: int) -> int:
        """How often the program's loop over slots runs: each turn is a period."""
        return -(-self.slots(micro_batches) // self.period)

    def shift(self, stage: int) -> int:
        """Turns from a micro-batch's first stage to this one."""
        return stage // self.period

    def in_flight(self, first: int, last: int) -> int:
        """How many of a value's blocks are kept: made by one program stage, used by a later one on the same chip."""
        return -(-(last - first) // self.period)

    def twins(self) -> dict[int, int]:
        """Backward stage -> forward stage, but for the last one, whose values are fresh."""
        return {p: self.forward(p) for p in range(len(self.devices) + 1, self.stages)}
