"""Holds BLAS to one thread while the engine runs: the tiles are already spread over the host's threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    import scipy.linalg.cython_blas  # noqa: F401  loads the library that is to be found
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS libraries of this process use one thread inside."""
    before = [(lib, lib.get_num_threads()) for lib in _libraries()]
    changed = [(lib, n) for lib, n in before if n != 1]
    for lib, _ in changed:
        lib.set_num_threads(1)
    try:
        yield
    finally:
        for lib, n in changed:
            lib.set_num_threads(n)


def kernel() -> str:
    """Which BLAS and kernel the dot codelet runs, for benchmark reports."""
    return ", ".join(f"{lib.internal_api} {lib.version} {getattr(lib, 'architecture', '')}" for lib in _libraries())
