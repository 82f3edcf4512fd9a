"""What a step is to be spread over: plain data, handed to ``compile_module``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.pipelining import PipelineSchedule

__all__ = ["ACCUMULATE", "CHECKPOINT", "DEQUEUE", "ENQUEUE", "PIPELINE", "REMOTE_BYTES", "Parallel", "offloads"]

ACCUMULATE = "ipu_keras.accumulate"
"""Target of the custom call whose operand is summed over an iteration's micro-batches; what follows it is done once."""

CHECKPOINT = "ipu_keras.checkpoint"
"""Target of the custom call whose operand is kept where a backward stage works activations out again."""

DEQUEUE, ENQUEUE = "ipu_keras.dequeue", "ipu_keras.enqueue"
"""Targets of the custom calls that take one tensor of the next element from a queue, and put one in.

Their configuration is JSON: ``queue``, a number; ``leaf``, the tensor's number in the element; ``mode``, ``"in"``,
``"all"`` or ``"last"`` (only the last element of an execution is kept)."""

PIPELINE = "ipu_keras.pipeline"
"""Target of the custom call that says how the program around it is spread, as JSON; it does nothing itself."""

REMOTE_BYTES = 128
"""What is smaller stays on the tiles. Source: api.md 2.2, optimizations.minimum_remote_tensor_size."""


def offloads(given: bool | None) -> bool:
    """Whether the state of the weight update lies in streaming memory, by the argument that says so.

    Args:
        given: ``offload_weight_update_variables``; None is automatic: yes, for streaming memory is there.

    Example:
        >>> offloads(None), offloads(False)
        (True, False)

    Source: api.md 7.
    """
    return given is None or bool(given)


@dataclass(frozen=True)
class Parallel:
    """How a step is spread over chips.

    Args:
        replicas: how many times the program runs at once, each on its own chips and with its own data.
        micro_batches: how many times the step's forward and backward pass run for one weight update.
        stages: forward pipeline stages, 0 for a step that is not pipelined.
        device_mapping: chip of each stage; empty for stage k on chip k.
        schedule: in which order the stages work (api.md 6).
        training: whether the step has a backward pass, so that each stage has two program stages.
        recompute: whether a backward stage works out again what its forward stage has made, from what that was given;
            else activations wait in queues.
        offload: whether what only the weight update uses (an optimizer's state) lies in streaming memory.
        stash: whether activations that wait for their backward stage do so in streaming memory.
        stage_options: options of the compiler over those of the program, as pairs: of each program stage, and of the
            weight update; empty for none.
        shard: whether replicas share what lies there: each streams its part, and the others get it over the links.
        remote_bytes: what is smaller stays on the tiles.

    Example:
        >>> Parallel(micro_batches=4).ipus
        1
        >>> Parallel(micro_batches=8, stages=2).ipus
        2
    """

    replicas: int = 1
    micro_batches: int = 1
    stages: int = 0
    device_mapping: tuple[int, ...] = ()
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    training: bool = True
    recompute: bool = False
    offload: bool = False
    stash: bool = False
    shard: bool = False
    remote_bytes: int = REMOTE_BYTES
    stage_options: tuple[tuple[tuple[str, Any], ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("replicas", "micro_batches"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a positive whole number, not {value!r}")
        if self.device_mapping and len(self.device_mapping) != self.stage_count:
            raise ConfigError(
                f"device_mapping has {len(self.device_mapping)} entries, the model has {self.stage_count} stages: "
                "each stage must be mapped to one IPU."
            )

    @property
    def stage_count(self) -> int:
        """Forward pipeline stages; 1 for a step that is not pipelined."""
        return max(self.stages, 1)

    @property
    def pipelined(self) -> bool:
        """Whether the step has pipeline stages."""
        return self.stages > 0

    def options_of(self, part: int) -> dict[str, Any]:
        """Options of a program stage, or of the weight update (-1), over those of the program.

        A step that is not trained has the forward stages alone.
        """
        return dict(self.stage_options[part]) if self.stage_options else {}

    @property
    def sharded(self) -> bool:
        """Whether there is a state in streaming memory that several replicas share."""
        return self.shard and self.offload and self.replicas > 1

    @property
    def devices(self) -> tuple[int, ...]:
        """Chip of each forward stage."""
        return self.device_mapping or tuple(range(self.stage_count))

    @property
    def ipus(self) -> int:
        """Chips of one replica."""
        return max(self.devices) + 1

    @property
    def in_parts(self) -> bool:
        """Whether the step is cut in parts: micro-batches and a weight update, or stages."""
        return self.micro_batches > 1 or self.pipelined
