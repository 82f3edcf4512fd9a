"""Small functions of the IPU API: seeds, the number of IPUs, and names that moved to `ipu_keras.config`."""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

from ipu_keras.config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    configure_ipu_system,
    get_ipu_config,
    system,
)
from ipu_keras.config.flags import synthetic_data, use_ipu_model

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "SyntheticDataCategory",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "use_synthetic_data_for",
]


class SyntheticDataCategory(Enum):
    """Kinds of data that a program may be run without."""

    Seed = 0
    Infeed = 1
    Outfeed = 2
    HostEmbedding = 3
    Parameters = 4


def reset_ipu_seed(
    seed: int | None = None,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Starts the random numbers of the device again: those of operations and layers without a seed of their own, and
    those of stochastic rounding.

    Args:
        seed: the same seed gives the same numbers; None for a random one.
        device: accepted; there is one.
        cpu_device: accepted.
        experimental_identical_replicas: whether all replicas round by the same random bits. Operations and layers draw
            what their replica draws in any case; `set_replication_options` has an option for those.

    Example:
        >>> reset_ipu_seed(42)
    """
    from ipu_keras.ops import _seeds

    del device, cpu_device
    _seeds.reset(random.getrandbits(31) if seed is None else seed, bool(experimental_identical_replicas))


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """IPUs of the configured device; 1 while nothing is configured.

    Args:
        ipu_device: its name, such as ``"/device:IPU:0"``.
        device: accepted.

    Example:
        >>> get_num_of_ipus_in_device("/device:IPU:0")
        1
    """
    del ipu_device, device
    configured = system.current()
    return configured.ipus if configured is not None else 1


def running_on_ipu_model() -> bool:
    """Whether ``--use_ipu_model`` is in TF_POPLAR_FLAGS.

    Example:
        >>> running_on_ipu_model()
        False
    """
    return use_ipu_model()


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Nothing is to be done: initial values are computed on the host.

    Args:
        graph: accepted.

    Example:
        >>> move_variable_initialization_to_cpu()
    """
    del graph


def use_synthetic_data_for(synthetic_data_category: SyntheticDataCategory) -> bool:
    """Whether a kind of data is made up on the device instead of sent, by the flags in TF_POPLAR_FLAGS.

    Args:
        synthetic_data_category: the kind.

    Raises:
        TypeError: it is no SyntheticDataCategory.
        ConfigError: the flags contradict each other.

    Example:
        >>> use_synthetic_data_for(SyntheticDataCategory.Infeed)
        False
    """
    if not isinstance(synthetic_data_category, SyntheticDataCategory):
        raise TypeError(f"{synthetic_data_category!r} is no SyntheticDataCategory.")
    return synthetic_data_category.name.lower() in synthetic_data().categories
