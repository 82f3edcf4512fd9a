"""What the host sees of metrics that each replica has of its own."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ipu_keras.errors import ConfigError

__all__ = ["ReplicatedMetricReductionMethod"]


class ReplicatedMetricReductionMethod(Enum):
    """``NONE`` gives the last replica's value, ``LIST`` one value for each, ``SUM`` their sum, ``MEAN`` their mean."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, method: Any) -> ReplicatedMetricReductionMethod:
        """The method that an argument means.

        Args:
            method: a member, or its name in upper or lower case.

        Raises:
            ConfigError: it is neither; a ValueError.
        """
        if isinstance(method, cls):
            return method
        if isinstance(method, str) and method.upper() in cls.__members__:
            return cls[method.upper()]
        raise ConfigError(
            f"Cannot parse {method!r} as a reduction method of replicated metrics; it is one of "
            f"{', '.join(cls.__members__)}, or a member of ReplicatedMetricReductionMethod."
        )
