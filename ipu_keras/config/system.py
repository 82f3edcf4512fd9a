"""The system: what is configured at present, for strategies that name no target of their own."""

from __future__ import annotations

import copy
import logging
import threading
from dataclasses import dataclass
from typing import Any

from ipu_keras.config.checks import as_list
from ipu_keras.config.effects import meaning_of
from ipu_keras.config.refusals import ConfigTypeError, SystemStateError
from ipu_keras.config.tree import IPUConfig
from ipu_keras.target import Target

__all__ = ["System", "configure_ipu_system", "current", "get_ipu_config", "reset_ipu_configuration", "spreading"]

logger = logging.getLogger("ipu_keras")


@dataclass(frozen=True)
class System:
    """A configured system.

    Attributes:
        config: a copy of the configuration as it was then.
        target: the chip.
        options: of the compiler.
        ipus: chips of the device.
    """

    config: IPUConfig
    target: Target
    options: dict[str, Any]
    ipus: int = 1

    def same(self, other: System) -> bool:
        """Whether both are configured alike.

        Args:
            other: to compare with.
        """
        mine, theirs = (s.config.to_dict() for s in (self, other))
        return mine == theirs and self.target == other.target


_lock = threading.Lock()
_system: System | None = None


def configure_ipu_system(config: IPUConfig, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Configures the system with the values that the configuration has now.

    Strategies without a target of their own use it from then on, also those that exist already: their programs are
    compiled anew when they run next. Options that are set and do nothing are logged, by name, in one warning. With
    the configuration that the system has already nothing happens.

    Args:
        config: the configuration. An integer in `auto_select_ipus` or `select_ipus` becomes a list of one.
        device: of the host; not used.
        reset_configuration: whether a system that is configured otherwise may be reset, with a warning in the log.

    Raises:
        ConfigTypeError: (a TypeError) it is no IPUConfig; or a list or dictionary in it holds what it may not.
        ConfigError: (a ValueError) a value that cannot be, or values that exclude each other.
        SelectionError: IPUs are selected twice, or by number on the IPU model.
        SeveralIPUsError: more than one device is selected.
        SystemStateError: (a RuntimeError) it is configured otherwise, and `reset_configuration` is False.

    Example:
        >>> config = IPUConfig()
        >>> config.device_connection.version = "ipu21"
        >>> configure_ipu_system(config)
        >>> IPUStrategy().target.name
        'c600'
    """
    global _system
    del device
    if not isinstance(config, IPUConfig):
        raise ConfigTypeError(f"configure_ipu_system takes an IPUConfig, not {config!r}, a {type(config).__name__}")
    meaning = meaning_of(config)
    with _lock:
        for name in ("auto_select_ipus", "select_ipus"):
            if isinstance(config._read(name), int):
                config._write(name, as_list(config._read(name)))
        new = System(copy.deepcopy(config), meaning.target, meaning.options, meaning.ipus)
        if _system is not None:
            if _system.same(new):
                return
            if not reset_configuration:
                raise SystemStateError(
                    "The IPU system has been configured differently already; call reset_ipu_configuration() first"
                )
            logger.warning("The IPU system has been configured differently already, and is reset.")
        _system = new
    if meaning.ineffective:
        logger.warning("configure_ipu_system: accepted, without an effect yet: %s", "; ".join(meaning.ineffective))
    for note in meaning.notes:
        logger.warning("configure_ipu_system: %s", note)


def reset_ipu_configuration() -> None:
    """Drops the configuration; strategies without a target of their own are back at the GC200 and compile anew.

    Nothing happens if nothing is configured. There is nothing to wait for: executions end before their call returns.

    Example:
        >>> reset_ipu_configuration()
    """
    global _system
    with _lock:
        _system = None


def get_ipu_config(session: Any = None) -> list[IPUConfig]:
    """Copies of the configurations of all devices, of which there is one.

    Args:
        session: not used; there are no sessions.

    Raises:
        SystemStateError: (a RuntimeError) nothing is configured.

    Example:
        >>> configure_ipu_system(IPUConfig())
        >>> get_ipu_config()[0].ipu_model.version
        'ipu2'
    """
    del session
    system = current()
    if system is None:
        raise SystemStateError("No IPU devices configured: call configure_ipu_system first")
    return [copy.deepcopy(system.config)]


def current() -> System | None:
    """The system as it is configured, None if it is not."""
    return _system


@dataclass(frozen=True)
class Spreading:
    """What the configuration says of how a program is spread; a program is made for one such.

    Attributes:
        recompute: whether pipelines may work activations out again.
        norm_group: replicas that share the statistics of a batch normalization.
        remote_bytes: of the smallest tensor that goes to streaming memory.
    """

    recompute: bool
    norm_group: int
    remote_bytes: int


def spreading() -> Spreading:
    """What is configured, or the defaults."""
    config = IPUConfig() if _system is None else _system.config
    return Spreading(
        bool(config.allow_recompute),
        int(config.norms.experimental.distributed_batch_norm_replica_group_size),
        int(config.optimizations.minimum_remote_tensor_size),
    )
