"""Operations of the IPU API, one module a family; each lowers to ordinary HLO and also runs on the host.

The modules need TensorFlow, so each is imported when it is first used.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

_MODULES = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
