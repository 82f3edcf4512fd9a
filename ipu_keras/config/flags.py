"""The flags of the environment variable TF_POPLAR_FLAGS that a configuration or a program depends on."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ipu_keras.errors import ConfigError

__all__ = [
    "ENVIRONMENT",
    "Synthetic",
    "executable_cache_path",
    "initializer",
    "model_tiles",
    "synthetic_data",
    "use_ipu_model",
]

ENVIRONMENT = "TF_POPLAR_FLAGS"

CATEGORIES = ("seed", "infeed", "outfeed", "hostembedding", "parameters")
"""Kinds of data that may be made up. Source: api.md section 17."""

INITIALIZERS = ("uniform", "random", "normal")


class Synthetic(NamedTuple):
    """What is made up on the chip instead of sent there or fetched from it.

    Attributes:
        categories: some of `CATEGORIES`.
        initializer: one of `INITIALIZERS`, a number as text, or None for zero.
    """

    categories: tuple[str, ...] = ()
    initializer: str | None = None


def use_ipu_model() -> bool:
    """Whether the software model of the chip is asked for: ``--use_ipu_model``, also ``=true`` or ``=1``."""
    return (_value("use_ipu_model") or "false").lower() in ("true", "1")


def model_tiles() -> int:
    """Tiles of the model by ``--ipu_model_tiles=64``, 0 if not given or without ``--use_ipu_model``.

    Raises:
        ConfigError: it is no number of tiles.
    """
    text = _value("ipu_model_tiles") if use_ipu_model() else None
    if text is None:
        return 0
    try:
        tiles = int(text)
    except ValueError:
        tiles = -1
    if tiles < 0:
        raise ConfigError(f"{ENVIRONMENT}: --ipu_model_tiles must be a number of tiles, not {text!r}")
    return tiles


def executable_cache_path() -> str | None:
    """The folder of compiled programs by ``--executable_cache_path=/tmp/cache``, None if there is none."""
    path = _value("executable_cache_path")
    return None if path is None else path.strip("\"'")


def synthetic_data() -> Synthetic:
    """What ``--use_synthetic_data``, ``--synthetic_data_categories`` and ``--synthetic_data_initializer`` ask for.

    Raises:
        ConfigError: an unknown category or initializer, an initializer for nothing, or both ways at once.
    """
    every = (_value("use_synthetic_data") or "false").lower() in ("true", "1")
    some = _value("synthetic_data_categories")
    values = _value("synthetic_data_initializer")
    categories: tuple[str, ...] = CATEGORIES if every else ()
    if some is not None:
        if every:
            raise ConfigError(
                f"{ENVIRONMENT}: --use_synthetic_data is all categories; give it or --synthetic_data_categories"
            )
        asked = [word.strip().lower() for word in some.strip("\"'").split(",")]
        unknown = [word for word in asked if word not in CATEGORIES]
        if unknown:
            raise ConfigError(
                f"{ENVIRONMENT}: --synthetic_data_categories has {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(CATEGORIES)}"
            )
        categories = tuple(name for name in CATEGORIES if name in asked)
    if values is None:
        return Synthetic(categories)
    if not categories:
        raise ConfigError(
            f"{ENVIRONMENT}: --synthetic_data_initializer needs --use_synthetic_data or --synthetic_data_categories"
        )
    return Synthetic(categories, initializer(f"{ENVIRONMENT}: --synthetic_data_initializer", values))


def initializer(where: str, value: Any) -> str:
    """An initializer of synthetic data, if it is one.

    Args:
        where: for the message.
        value: a name, or a number.

    Raises:
        ConfigError: it is neither.
    """
    text = str(value)
    try:
        if text in INITIALIZERS or abs(float(text)) < 1 << 63:
            return text
    except ValueError:
        pass
    raise ConfigError(f"{where} must be a number or one of {', '.join(INITIALIZERS)}, not {value!r}")


def _value(name: str) -> str | None:
    """The value of the last flag of this name, "true" for one without; None if there is none."""
    found = None
    for word in os.environ.get(ENVIRONMENT, "").split():
        flag, _, value = word.lstrip("-").partition("=")
        if flag == name and word.startswith("--"):
            found = value or "true"
    return found
