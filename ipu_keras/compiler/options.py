"""Compile options: names, defaults, meaning; an unknown name is refused with the nearest known one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from ipu_keras.errors import ConfigError

OPTIONS: dict[str, tuple[Any, str]] = {
    "available_memory_proportion": (
        0.6,
        "share of a tile's memory that a product's operands and partial sums may take",
    ),
    "seed": (0, "first state of the generator of `rng` operations, which keep a state of their own"),
    "guard_bytes": (None, "bytes between allocations, watched in strict mode; default 8 in strict mode, else 0"),
}


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
    if not isinstance(out["seed"], int) or not 0 <= out["seed"] < 1 << 64:
        raise ConfigError(f"seed must be an integer of 64 bits without sign, not {out['seed']!r}")
    guard = out["guard_bytes"]
    if guard is None:
        out["guard_bytes"] = 8 if os.environ.get("IPU_RUNTIME_STRICT", "0") not in ("", "0") else 0
    elif not isinstance(guard, int) or guard < 0 or guard % 8:
        raise ConfigError(f"guard_bytes must be a multiple of 8, not {guard!r}")
    return out
