"""How the gradients of several mini-batches become one: the methods, by name and by number."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ipu_keras.errors import ConfigError

__all__ = ["GradientAccumulationReductionMethod"]


class GradientAccumulationReductionMethod(Enum):
    """What N gradients g of N mini-batches are reduced to before they are summed over replicas and applied.

    ``SUM`` adds them up, ``MEAN`` adds g / N, and ``RUNNING_MEAN`` keeps the mean of those seen so far, whose size does
    not grow with N, which fp16 accumulators need.
    """

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: Any) -> GradientAccumulationReductionMethod:
        """The method that an argument means.

        Args:
            reduction_method: a member, or its name in upper or lower case.

        Raises:
            ConfigError: it is neither; a ValueError.

        Example:
            >>> GradientAccumulationReductionMethod.parse("running_mean")
            <GradientAccumulationReductionMethod.RUNNING_MEAN: 2>
        """
        if isinstance(reduction_method, cls):
            return reduction_method
        if isinstance(reduction_method, str) and reduction_method.upper() in cls.__members__:
            return cls[reduction_method.upper()]
        names = ", ".join(name.lower() for name in cls.__members__)
        raise ConfigError(
            f"Cannot parse {reduction_method!r} as a gradient accumulation reduction method; it is one of {names}, or "
            "a member of GradientAccumulationReductionMethod."
        )
