"""Rules between options that are checked when the system is configured."""

from __future__ import annotations

from typing import Any

from ipu_keras.config import flags
from ipu_keras.config.enums import DeviceConnectionType
from ipu_keras.config.refusals import SelectionError, SeveralIPUsError
from ipu_keras.config.table import OPTIONS
from ipu_keras.config.tree import IPUConfig
from ipu_keras.errors import ConfigError

__all__ = ["as_list", "check", "ipus"]

_SEVERAL = "several processes are not there yet: all replicas are emulated in one"


def check(config: IPUConfig) -> None:
    """Checks types once more (lists and dictionaries may have changed since they were set), and the rules.

    Args:
        config: the configuration.

    Raises:
        ConfigError, ConfigTypeError, SelectionError, SeveralIPUsError: see `configure_ipu_system`.
    """
    for name, option in OPTIONS.items():
        option.check_type(config._read(name))
    _selection(config)
    _connection(config)
    _replicas(config)
    _io_tiles(config)


def as_list(value: Any) -> list[int]:
    """A selection as a list: one device for each element.

    Args:
        value: an integer, a list or a tuple of them.
    """
    return [value] if isinstance(value, int) else list(value)


def _selection(config: IPUConfig) -> None:
    auto, chosen = as_list(config.auto_select_ipus), as_list(config.select_ipus)
    if auto and chosen:
        raise SelectionError(f"Only one of auto_select_ipus ({auto}) and select_ipus ({chosen}) can be set")
    if chosen and flags.use_ipu_model():
        raise SelectionError(
            f"select_ipus is {chosen}, and the IPU model, which {flags.ENVIRONMENT} asks for, has no devices to select "
            "by number; use auto_select_ipus"
        )
    if len(set(chosen)) != len(chosen):
        raise ConfigError(f"select_ipus is {chosen}: a device is selected twice")
    if any(number < 0 for number in chosen):
        raise ConfigError(f"select_ipus is {chosen}; devices are numbered from 0")
    if any(number < 1 for number in auto):
        raise ConfigError(f"auto_select_ipus is {auto}; a device has at least one IPU")
    if len(auto) > 1 or len(chosen) > 1:
        name, value = ("auto_select_ipus", auto) if auto else ("select_ipus", chosen)
        raise SeveralIPUsError(
            f"{name} is {value}: each number is a device of its own, and one device is emulated. For a device of "
            "several IPUs set auto_select_ipus to their number.",
            [name],
        )


def ipus(config: IPUConfig) -> int:
    """Chips of the device.

    Args:
        config: the configuration, checked.
    """
    auto = as_list(config.auto_select_ipus)
    return auto[0] if auto else 1


def _connection(config: IPUConfig) -> None:
    kind = config.device_connection.type
    needing = (DeviceConnectionType.NEVER, DeviceConnectionType.PRE_COMPILE)
    if kind in needing and not config.device_connection.version:
        raise ConfigError(f"device_connection.type is {kind.name}; this requires device_connection.version to be set")


def _replicas(config: IPUConfig) -> None:
    name = "experimental.multi_replica_distribution"
    spread = config.experimental.multi_replica_distribution
    index, count = spread.process_index, spread.process_count
    if count < 0:
        raise ConfigError(f"{name}.process_count is {count}; it must be a number of processes, or 0 for off")
    if count and not 0 <= index < count:
        raise ConfigError(f"{name}.process_index is {index}; with {count} process(es) it must be from 0 to {count - 1}")
    if count and flags.use_ipu_model():
        raise SelectionError(f"{name}.process_count is {count}, and the IPU model has no replicas in other processes")
    if count > 1:
        raise SeveralIPUsError(f"{name}.process_count is {count}; {_SEVERAL}.", [f"{name}.process_count"])


def _io_tiles(config: IPUConfig) -> None:
    tiles = config.io_tiles.num_io_tiles
    if config.io_tiles.place_ops_on_io_tiles and tiles == 0:
        raise ConfigError("io_tiles.place_ops_on_io_tiles is True and io_tiles.num_io_tiles is 0")
    size = config.norms.experimental.distributed_batch_norm_replica_group_size
    name = "norms.experimental.distributed_batch_norm_replica_group_size"
    if size < 1:
        raise ConfigError(f"{name} is {size}; a group has at least one replica")
    if size > 1 and tiles:
        raise ConfigError(f"{name} is {size}, which cannot be had together with I/O tiles (there are {tiles})")
    if size > 1 and ipus(config) % size:
        # How many replicas there are depends on the model's stages, too; more than IPUs there cannot be.
        raise ConfigError(
            f"{name} is {size}; it must divide the number of replicas, and the device has {ipus(config)} IPU(s)"
        )
