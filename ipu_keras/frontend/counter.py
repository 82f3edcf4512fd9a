"""The number of device executions that this process has made: the only proof that the emulator was used."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_count = 0


def add(executions: int = 1) -> None:
    """Counts finished device executions.

    Args:
        executions: how many more there were.
    """
    global _count
    with _lock:
        _count += executions


def executions() -> int:
    """Number of device executions that this process has finished.

    Example:
        >>> import ipu_keras
        >>> before = ipu_keras.executions()
        >>> # model.fit(...)
        >>> ipu_keras.executions() - before
        0
    """
    return _count
