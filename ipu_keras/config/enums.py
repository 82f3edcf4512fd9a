"""The enumerations that options take. They are no integers, so that ``str`` gives ``Class.NAME`` on every Python."""

from __future__ import annotations

from enum import Enum

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
]


class SelectionOrder(Enum):
    """Order of the chips in a device of several, such as ZIGZAG 0 1 2 3, SNAKE 0 1 3 2, HOOF 0 2 3 1."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(Enum):
    """When a device is attached: at once, when needed, never, or never with executables written to the cache."""

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class ExecutionProfileType(Enum):
    """What an execution profile holds; kept for scripts that name it."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether buffers in streaming memory are merged into one."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(Enum):
    """How the operations of a program are put in order."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Whether fp16 results are rounded stochastically."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> StochasticRoundingBehaviour:
        """ON for True, OFF for False.

        Args:
            value: whether to round stochastically.

        Example:
            >>> StochasticRoundingBehaviour.from_bool(True)
            <StochasticRoundingBehaviour.ON: 1>
        """
        return cls.ON if value else cls.OFF
