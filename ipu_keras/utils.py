"""Small functions of the IPU API: seeds, the number of IPUs, and names that moved to `ipu_keras.config`."""

from __future__ import annotations

import random
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
from ipu_keras.config.flags import use_ipu_model

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "running_on_ipu_model",
]


def reset_ipu_seed(
    seed: int | None = None,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Starts the random numbers of the device again: those of operations and layers without a seed of their own.

    Args:
        seed: the same seed gives the same numbers; None for a random one.
        device: accepted; there is one.
        cpu_device: accepted.
        experimental_identical_replicas: only False: replicas draw different numbers.

    Raises:
        NotImplementedError: equal numbers on all replicas are asked for.
    """
    from ipu_keras.ops import _seeds

    del device, cpu_device
    if experimental_identical_replicas:
        raise NotImplementedError("reset_ipu_seed: identical random numbers on all replicas are not there.")
    _seeds.reset(random.getrandbits(31) if seed is None else seed)


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """IPUs of the configured device; 1 while nothing is configured.

    Args:
        ipu_device: its name, such as ``"/device:IPU:0"``.
        device: accepted.
    """
    del ipu_device, device
    configured = system.current()
    return configured.ipus if configured is not None else 1


def running_on_ipu_model() -> bool:
    """Whether ``--use_ipu_model`` is in TF_POPLAR_FLAGS."""
    return use_ipu_model()


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Nothing is to be done: initial values are computed on the host.

    Args:
        graph: accepted.
    """
    del graph
