"""Compile options: names, defaults, meaning; an unknown name is refused with the nearest known one."""

from __future__ import annotations

import difflib
import functools
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from ipu_keras.config import flags
from ipu_keras.errors import ConfigError
from ipu_runtime import rounding

logger = logging.getLogger("ipu_keras")

OPTIONS: dict[str, tuple[Any, str]] = {
    "available_memory_proportion": (
        0.6,
        "share of a tile's memory that a product's operands and partial sums may take",
    ),
    "matmul_partials": ("float", 'partial sums of fp16 matrix products: "float" or "half"'),
    "convolution_partials": ("float", 'partial sums of fp16 convolutions: "float" or "half"'),
    "internal_exchange": (
        "balanced",
        'what exchanges are made for: "cycles", "memory" (fewer fragments, less code), or "balanced", which becomes '
        '"memory" for a program that does not fit, if outlining is not enough',
    ),
    "outline": (
        True,
        "whether equal products of a program that does not fit become one function: less code, more copies",
    ),
    "stochastic_rounding": (
        "off",
        'how fp16 results are rounded: "off", to nearest even; "on", at random, by each replica\'s own random bits; '
        '"stable", by the same ones where the operands are the same on all replicas; "identical", only there',
    ),
    "half_overflow": (
        "inf",
        'what a finite result beyond the largest fp16 number becomes: "inf" (IEEE 754), "clip" (that number) or "nan"',
    ),
    "traps": ((), 'what stops an execution: some of "inv" (not a number), "div0" (x / 0, log 0), "oflo" (overflow)'),
    "seed": (0, "first state of the generator of `rng` operations, which keep a state of their own"),
    "guard_bytes": (None, "bytes between allocations, watched in strict mode; default 8 in strict mode, else 0"),
    "allow_out_of_memory": (
        None,
        "a program that overflows a tile is compiled for its profile and cannot run; default what the environment "
        'variable POPLAR_ENGINE_OPTIONS says of "debug.allowOutOfMemory", else False',
    ),
    "synthetic_data": (
        None,
        'what is made up on the chip instead of streamed: some of "infeed" and "outfeed"; default what the environment '
        "variable TF_POPLAR_FLAGS says by --use_synthetic_data or --synthetic_data_categories",
    ),
    "synthetic_data_initializer": (
        None,
        'the values of such data: "uniform" or "random", "normal", or a number; None is zero; default what '
        "--synthetic_data_initializer says",
    ),
}

INITIALIZERS = flags.INITIALIZERS

STREAMS = ("infeed", "outfeed")

STOCHASTIC_ROUNDING = ("off", "on", "stable", "identical")

FRAGMENT_PRICES: dict[str, float | None] = {"cycles": 3.0, "balanced": None, "memory": 48.0}
"""Cycles that a received fragment may cost before it is rearranged instead, by the option `internal_exchange`.

None: the target's own `fragment_price`."""

ENVIRONMENT, OUT_OF_MEMORY_KEY = "POPLAR_ENGINE_OPTIONS", "debug.allowOutOfMemory"
"""The variable holds a JSON object of options of the engine, of which this one means something here."""


def resolve_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Defaults with the given options over them.

    Raises:
        ConfigError: an unknown name, or a value it cannot take.
    """
    out = {name: default for name, (default, _) in OPTIONS.items()}
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"no compile option is called {name!r}; there are {', '.join(OPTIONS)}.{hint}")
        out[name] = value
    proportion = out["available_memory_proportion"]
    if not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
        raise ConfigError(f"available_memory_proportion must lie between 0 and 1, not {proportion!r}")
    if out["internal_exchange"] not in FRAGMENT_PRICES:
        raise ConfigError(
            f"internal_exchange must be one of {', '.join(FRAGMENT_PRICES)}, not {out['internal_exchange']!r}"
        )
    for name in ("matmul_partials", "convolution_partials"):
        if out[name] not in ("float", "half"):
            raise ConfigError(f"{name} must be 'float' or 'half', not {out[name]!r}")
    if isinstance(out["stochastic_rounding"], bool):
        out["stochastic_rounding"] = "on" if out["stochastic_rounding"] else "off"
    for name, known in (("stochastic_rounding", STOCHASTIC_ROUNDING), ("half_overflow", rounding.OVERFLOW)):
        if out[name] not in known:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, known))}, not {out[name]!r}")
    traps = out["traps"]
    if isinstance(traps, str) or not all(t in rounding.TRAPS for t in traps):
        raise ConfigError(f"traps must be a collection of {', '.join(map(repr, rounding.TRAPS))}, not {traps!r}")
    out["traps"] = [t for t in rounding.TRAPS if t in traps]
    if not isinstance(out["seed"], int) or not 0 <= out["seed"] < 1 << 64:
        raise ConfigError(f"seed must be an integer of 64 bits without sign, not {out['seed']!r}")
    guard = out["guard_bytes"]
    if guard is None:
        out["guard_bytes"] = 8 if os.environ.get("IPU_RUNTIME_STRICT", "0") not in ("", "0") else 0
    elif not isinstance(guard, int) or guard < 0 or guard % 8:
        raise ConfigError(f"guard_bytes must be a multiple of 8, not {guard!r}")
    if out["allow_out_of_memory"] is None:
        out["allow_out_of_memory"] = _allowed_by_environment()
    elif not isinstance(out["allow_out_of_memory"], bool):
        raise ConfigError(f"allow_out_of_memory must be True or False, not {out['allow_out_of_memory']!r}")
    _synthetic(out)
    return out


def _synthetic(out: dict[str, Any]) -> None:
    said = flags.synthetic_data()
    given = out["synthetic_data"]
    if given is None:
        given = [name for name in STREAMS if name in said.categories]
    elif isinstance(given, str) or not all(name in STREAMS for name in given):
        raise ConfigError(f"synthetic_data must be a collection of {', '.join(map(repr, STREAMS))}, not {given!r}")
    out["synthetic_data"] = [name for name in STREAMS if name in given]
    if out["synthetic_data_initializer"] is None:
        out["synthetic_data_initializer"] = said.initializer
    else:
        out["synthetic_data_initializer"] = flags.initializer(
            "synthetic_data_initializer", out["synthetic_data_initializer"]
        )


def _allowed_by_environment() -> bool:
    return _allowed_by(os.environ.get(ENVIRONMENT, ""))


@functools.lru_cache
def _allowed_by(text: str) -> bool:
    """What the variable's text says; keys that do nothing are logged, once in a process because the answer is kept."""
    if not text.strip():
        return False
    example = f"""{ENVIRONMENT}='{{"{OUT_OF_MEMORY_KEY}": "true"}}'"""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the environment variable {ENVIRONMENT} is no JSON ({error}); such as {example}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"the environment variable {ENVIRONMENT} must hold a JSON object, such as {example}")
    if idle := [f"{key} = {value}" for key, value in given.items() if key != OUT_OF_MEMORY_KEY]:
        logger.warning("%s: accepted, without an effect: %s", ENVIRONMENT, "; ".join(idle))
    value = given.get(OUT_OF_MEMORY_KEY, False)
    known = {"true": True, "false": False}
    allowed = known.get(value) if isinstance(value, str) else value
    if not isinstance(allowed, bool):
        raise ConfigError(
            f"the environment variable {ENVIRONMENT}: {OUT_OF_MEMORY_KEY} must be true or false, not {value!r}"
        )
    return allowed
