"""The flags of the environment variable TF_POPLAR_FLAGS: what each means here, and which do nothing."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import shlex
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

logger = logging.getLogger("ipu_keras")

ENVIRONMENT = "TF_POPLAR_FLAGS"

FLAGS = {
    "help": "list the flags in the log",
    "use_ipu_model": "the software model of the chip is asked for",
    "ipu_model_tiles": "tiles of that model",
    "executable_cache_path": "a folder that keeps compiled programs",
    "use_synthetic_data": "nothing is sent to the chip or fetched from it",
    "synthetic_data_categories": "some kinds of data are not sent or fetched",
    "synthetic_data_initializer": "the values that are on the chip instead",
}
"""Flags that act here, and what they ask for. Source of these and the next: api.md section 17."""

IDLE = (
    "allow_nans",
    "disable_poplar_version_check",
    "dump_schedule_as_dot",
    "enable_hlo_verifier",
    "fallback_scheduler",
    "log_cycle_count",
    "max_compilation_threads",
    "max_infeed_threads",
    "null_data_feed",
    "on_demand_device_poll_time",
    "on_demand_device_timeout",
    "save_vertex_graph",
    "show_progress_bar",
    "sync_replica_start",
    "tensor_map_file_path",
    "use_on_demand",
    "while_loop_brute_force_max_trip_count",
)
"""Flags of the chip's front end that do nothing here."""

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
    return _value("executable_cache_path")


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
        asked = [word.strip().lower() for word in some.split(",")]
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
    return _parsed(os.environ.get(ENVIRONMENT, "")).get(name)


@functools.lru_cache
def _parsed(text: str) -> dict[str, str]:
    """Flags and their values. What does nothing is logged, once in a process because the answer is kept.

    Raises:
        ConfigError: words that are no flag of the chip's front end, all at once; there it ends the process.
    """
    found: dict[str, str] = {}
    unknown = []
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{ENVIRONMENT} is {text!r}: {error}") from error
    for word in words:
        flag, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or flag not in (*FLAGS, *IDLE):
            near = difflib.get_close_matches(flag.lstrip("-"), (*FLAGS, *IDLE), n=1)
            unknown.append(f"{word!r}" + (f" (did you mean --{near[0]}?)" if near else ""))
        found[flag] = value or "true"
    if unknown:
        known = ", ".join(f"--{name}" for name in (*FLAGS, *IDLE))
        raise ConfigError(f"{ENVIRONMENT} has {', '.join(unknown)}; its flags are {known}")
    if (found.get("help") or "false").lower() in ("true", "1"):
        acting = "\n".join(f"  --{name}: {meaning}" for name, meaning in FLAGS.items())
        logger.warning("%s\n%s\n  accepted, without an effect: %s", ENVIRONMENT, acting, ", ".join(IDLE))
    if idle := [f"--{name}={found[name]}" for name in found if name in IDLE]:
        logger.warning("%s: accepted, without an effect: %s", ENVIRONMENT, " ".join(idle))
    return found
