"""Scopes of the IPU API. What runs on the device is what `strategy.run` and models run, so most of them do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["frontend_attribute", "ipu_jit_scope", "ipu_scope"]


@contextlib.contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Operations in it are the device's, if `strategy.run` traces them.

    Args:
        device: its name, such as ``"/device:IPU:0"``.
    """
    del device
    yield


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: Any) -> Iterator[None]:
    """The same under another name.

    Args:
        ipu_scope: accepted.
    """
    del ipu_scope
    yield


@contextlib.contextmanager
def frontend_attribute(attribute_name: str, attribute_value: Any, restore_to: Any = None) -> Iterator[None]:
    """A remark for another compiler; this one reads none.

    Args:
        attribute_name: accepted.
        attribute_value: accepted.
        restore_to: accepted.
    """
    del attribute_name, attribute_value, restore_to
    yield
