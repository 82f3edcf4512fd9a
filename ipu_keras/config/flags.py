"""The flags of the environment variable TF_POPLAR_FLAGS that a configuration depends on."""

from __future__ import annotations

import os

from ipu_keras.errors import ConfigError

__all__ = ["ENVIRONMENT", "model_tiles", "use_ipu_model"]

ENVIRONMENT = "TF_POPLAR_FLAGS"


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


def _value(name: str) -> str | None:
    """The value of the last flag of this name, "true" for one without; None if there is none."""
    found = None
    for word in os.environ.get(ENVIRONMENT, "").split():
        flag, _, value = word.lstrip("-").partition("=")
        if flag == name and word.startswith("--"):
            found = value or "true"
    return found
