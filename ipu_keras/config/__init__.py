"""Configuration of the IPU system: `IPUConfig`, its options and enumerations, and the functions that apply it.

    import ipu_keras as ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from ipu_keras.config.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from ipu_keras.config.metadata import AttributeMetadata
from ipu_keras.config.refusals import (
    CategoryError,
    ConfigTypeError,
    SelectionError,
    SeveralIPUsError,
    SystemStateError,
    UnknownOptionError,
)
from ipu_keras.config.system import configure_ipu_system, get_ipu_config, reset_ipu_configuration
from ipu_keras.config.tree import IPUConfig

__all__ = [
    "IPUConfig",
    "configure_ipu_system",
    "get_ipu_config",
    "reset_ipu_configuration",
    "AttributeMetadata",
    "DeviceConnectionType",
    "ExecutionProfileType",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "CategoryError",
    "ConfigTypeError",
    "SelectionError",
    "SeveralIPUsError",
    "SystemStateError",
    "UnknownOptionError",
]
