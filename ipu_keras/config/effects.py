"""What a configuration means here: a chip, options of the compiler, and what has no effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ipu_keras.config import checks, flags
from ipu_keras.config.enums import StochasticRoundingBehaviour
from ipu_keras.config.metadata import AttributeMetadata
from ipu_keras.config.table import OPTIONS
from ipu_keras.config.tree import IPUConfig
from ipu_keras.errors import ConfigError
from ipu_keras.target import TARGETS, VERSIONS, Target

__all__ = ["Meaning", "meaning_of", "product_options"]

_BOOLEANS = {"true": True, "false": False}
_PARTIALS = {"float": "float", "half": "half"}
_EXCHANGES = {"cycles": "cycles", "memory": "memory", "balanced": "balanced"}

_ENGINE: dict[str, tuple[str, dict[str, Any]]] = {
    "debug.allowOutOfMemory": ("allow_out_of_memory", _BOOLEANS),
    "opt.internalExchangeOptimisationTarget": ("internal_exchange", _EXCHANGES),
}
"""Keys of compilation_poplar_options: the compiler's option, and its values by theirs."""

_PRODUCTS = {"matmuls": "matmul_partials", "convolutions": "convolution_partials"}
"""Categories of products: the compiler's option for their "partialsType"."""

PROPORTION, PARTIALS = "availableMemoryProportion", "partialsType"


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A configuration as the compiler takes it.

    Attributes:
        target: the chip.
        options: of the compiler; only those that are configured, and what an overflow of fp16 becomes.
        ineffective: ``name = value`` of each option that is set and does nothing.
        notes: sentences on what was decided between options.
        ipus: chips of the device.
    """

    target: Target
    options: dict[str, Any]
    ineffective: list[str]
    notes: list[str]
    ipus: int = 1


def meaning_of(config: IPUConfig) -> Meaning:
    """Works out what a configuration means; changes nothing.

    Args:
        config: the configuration.

    Raises:
        ConfigError, ConfigTypeError, SelectionError, SeveralIPUsError: see `configure_ipu_system`.
    """
    checks.check(config)
    ineffective = [f"{o.name} = {config._read(o.name)}" for o in OPTIONS.values() if _set_in_vain(config, o)]
    notes: list[str] = []
    target = _target(config, ineffective)
    options = {
        **_engine(config, ineffective),
        **_products(config, ineffective, notes),
        **_floating_point(config, ineffective),
    }
    if not config._read("optimizations.enable_graph_outlining"):
        options["outline"] = False
    return Meaning(target, options, ineffective, notes, checks.ipus(config))


def _set_in_vain(config: IPUConfig, option: AttributeMetadata) -> bool:
    return not option.acts and not option.deprecated and config._read(option.name) != option.default


def _target(config: IPUConfig, ineffective: list[str]) -> Target:
    device = _version(config, "device_connection.version")
    model = _version(config, "ipu_model.version")
    if not model and flags.use_ipu_model():
        raise ConfigError(f"ipu_model.version is ''; the IPU model needs one of {', '.join(VERSIONS)}")
    if device and model not in ("", device, OPTIONS["ipu_model.version"].default):
        ineffective.append(f"ipu_model.version = {model} (device_connection.version is {device})")
    target = TARGETS[VERSIONS[device or model or OPTIONS["ipu_model.version"].default]]
    tiles: int = config._read("ipu_model.tiles_per_ipu")
    if tiles < 0:
        raise ConfigError(f"ipu_model.tiles_per_ipu is {tiles}; it must be a number of tiles, or 0 for the version's")
    tiles = tiles or flags.model_tiles()
    return dataclasses.replace(target, tiles=tiles) if tiles else target


def _version(config: IPUConfig, name: str) -> str:
    value: str = config._read(name)
    if value and value not in VERSIONS:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, VERSIONS))}")
    return value


def _engine(config: IPUConfig, ineffective: list[str]) -> dict[str, Any]:
    name = "compilation_poplar_options"
    options = {}
    for key, value in config._read(name).items():
        if key not in _ENGINE:
            ineffective.append(f"{name}[{key!r}] = {value}")
            continue
        option, known = _ENGINE[key]
        options[option] = _one_of(f"{name}[{key!r}]", value, known)
    return options


def _products(config: IPUConfig, ineffective: list[str], notes: list[str]) -> dict[str, Any]:
    given = {category: config._read(f"{category}.poplar_options") for category in _PRODUCTS}
    return product_options(given, "{}.poplar_options", ineffective, notes)


def product_options(
    given: Mapping[str, Mapping[str, Any]], name: str, ineffective: list[str], notes: list[str]
) -> dict[str, Any]:
    """The compiler's options that Poplar options of matrix products and convolutions stand for.

    Args:
        given: options of ``"matmuls"`` and of ``"convolutions"``.
        name: what they are called, with ``{}`` for which of the two.
        ineffective: gets ``name = value`` of each that does nothing.
        notes: gets sentences on what was decided between them.

    Raises:
        ConfigError: a value that cannot be.
    """
    options: dict[str, Any] = {}
    proportions: dict[str, float] = {}
    for category, values in given.items():
        for key, value in values.items():
            where = f"{name.format(category)}[{key!r}]"
            if key == PROPORTION:
                proportions[category] = _proportion(where, value)
            elif key == PARTIALS:
                options[_PRODUCTS[category]] = _one_of(where, value, _PARTIALS)
            else:
                ineffective.append(f"{where} = {value}")
    if proportions:
        least = min(proportions.values())
        options["available_memory_proportion"] = least
        if len(set(proportions.values())) > 1:
            said = " and ".join(f"{value:g} for {category}" for category, value in proportions.items())
            notes.append(f"{PROPORTION} is {said}; the compiler has one for both, and the smaller, {least:g}, is taken")
    return options


def _floating_point(config: IPUConfig, ineffective: list[str]) -> dict[str, Any]:
    said = {name: config._read(f"floating_point_behaviour.{name}") for name in ("inv", "div0", "oflo", "esr", "nanoo")}
    if config._read("floating_point_behaviour.set_all"):
        said = dict.fromkeys(said, True) | {"esr": StochasticRoundingBehaviour.ON}
    stable = config._read("experimental.enable_prng_stability")
    if stable and said["esr"] is StochasticRoundingBehaviour.OFF:
        ineffective.append("experimental.enable_prng_stability = True (floating_point_behaviour.esr is OFF)")
    rounding = {
        StochasticRoundingBehaviour.OFF: "off",
        StochasticRoundingBehaviour.ON: "stable" if stable else "on",
        StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY: "identical",
    }
    options = {"half_overflow": "nan" if said["nanoo"] else "clip"}
    if said["esr"] is not StochasticRoundingBehaviour.OFF:
        options["stochastic_rounding"] = rounding[said["esr"]]
    traps = [name for name in ("inv", "div0", "oflo") if said[name]]
    return {**options, "traps": traps} if traps else options


def _proportion(where: str, value: Any) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1:
        raise ConfigError(f"{where} is {value!r}; it must be a number from 0 to 1, such as '0.6'")
    return number


def _one_of(where: str, value: Any, known: dict[str, Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, known))}")
    return known[value]
