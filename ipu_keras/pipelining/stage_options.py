"""Options of the compiler for one stage of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipu_keras.pipelining.errors import PipelineTypeError

__all__ = ["PipelineStageOptions"]


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
