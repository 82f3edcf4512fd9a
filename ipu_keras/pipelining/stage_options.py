"""Options of the compiler for the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipu_keras.config.effects import product_options
from ipu_keras.pipelining.errors import PipelineTypeError

__all__ = ["PipelineStageOptions", "options_of_stages"]


@dataclass
class PipelineStageOptions:
    """Options for the convolutions, products and slices of one stage, over those of the configuration.

    Args:
        convolution_options: such as ``{"availableMemoryProportion": "0.3"}``; None for none.
        matmul_options: the same for matrix products.
        slice_options: the same for gathers and scatters.

    Raises:
        PipelineTypeError: one of them is no dict; a TypeError.

    Example:
        >>> PipelineStageOptions(matmul_options={"availableMemoryProportion": "0.2"}).matmul_options
        {'availableMemoryProportion': '0.2'}
    """

    convolution_options: dict[str, Any] | None = None
    matmul_options: dict[str, Any] | None = None
    slice_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("convolution_options", "matmul_options", "slice_options"):
            value = getattr(self, name)
            if value is None:
                value = {}
            if not isinstance(value, dict):
                raise PipelineTypeError(
                    f"PipelineStageOptions: {name} is {value!r}; it must be a dict, such as "
                    '{"availableMemoryProportion": "0.3"}.'
                )
            setattr(self, name, dict(value))


def options_of_stages(
    stages: int,
    forward: Sequence[PipelineStageOptions] | None,
    backward: Sequence[PipelineStageOptions] | None,
    update: PipelineStageOptions | None,
) -> tuple[tuple[tuple[tuple[str, Any], ...], ...], list[str]]:
    """What the compiler is told of each program stage, and what somebody should know about it.

    Args:
        stages: of the model.
        forward, backward: one for each stage, in the order of the forward stages; None for none.
        update: of the weight update.

    Returns:
        Options as pairs, of each forward stage, of each backward stage in the order in which they run, and of the
        weight update, nothing at all if none says anything; and notes: what does nothing, what was decided.

    Raises:
        ConfigError: a value that cannot be.

    Example:
        >>> half = PipelineStageOptions(matmul_options={"partialsType": "half"})
        >>> options_of_stages(2, [PipelineStageOptions(), half], None, None)
        (((), (('matmul_partials', 'half'),), (), (), ()), [])
    """
    none = [PipelineStageOptions()] * stages
    named = [(f"forward_propagation_stages_poplar_options[{i}]", o) for i, o in enumerate(forward or none)]
    named += reversed([(f"backward_propagation_stages_poplar_options[{i}]", o) for i, o in enumerate(backward or none)])
    named.append(("weight_update_poplar_options", update or PipelineStageOptions()))
    idle: list[str] = []
    notes: list[str] = []
    found = []
    for name, options in named:
        of_stage: list[str] = []
        given = {"matmuls": options.matmul_options or {}, "convolutions": options.convolution_options or {}}
        said = product_options(given, f"{name} of {{}}", idle, of_stage)
        found.append(tuple(sorted(said.items())))
        notes += [f"{name}: {note}" for note in of_stage]
        idle += [f"{name} of slices[{key!r}] = {value}" for key, value in (options.slice_options or {}).items()]
    if idle:
        notes.append("accepted, without an effect: " + ", ".join(idle))
    return tuple(found) if any(found) else (), notes
