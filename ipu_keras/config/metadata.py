"""What is known of one option: its name, type, default and meaning, and whether a value is of its type."""

from __future__ import annotations

import types
import typing
import warnings
from dataclasses import dataclass
from typing import Any

from ipu_keras.config.refusals import ConfigTypeError

__all__ = ["AttributeMetadata"]


@dataclass(frozen=True)
class AttributeMetadata:
    """An option.

    Attributes:
        name: with its categories, such as ``"ipu_model.version"``.
        type: a class or a generic type such as ``dict[str, str]``.
        default: the value of a new IPUConfig, which copies it.
        doc: what it means.
        tier: how common it is in public scripts: 1 (common) to 3.
        acts: whether the emulator does something with it.
        moved_to: the name that replaced it, within the same category; "" if it is not deprecated.

    Example:
        >>> IPUConfig().get_attribute_metadata("ipu_model.version").default
        'ipu2'
    """

    name: str
    type: Any
    default: Any
    doc: str
    tier: int
    acts: bool = False
    moved_to: str = ""

    @property
    def deprecated(self) -> bool:
        """Whether another option has replaced it."""
        return bool(self.moved_to)

    @property
    def replacement(self) -> str:
        """The full name of the option that replaced it, or ""."""
        return ".".join([*self.name.split(".")[:-1], self.moved_to]) if self.moved_to else ""

    @property
    def deprecated_msg(self) -> str:
        """What the warning says, or ""."""
        return f"{self.name} is deprecated: use {self.replacement}" if self.moved_to else ""

    @property
    def type_name(self) -> str:
        """The type as people write it."""
        return self.type.__name__ if isinstance(self.type, type) and not _origin(self.type) else str(self.type)

    def check_type(self, value: Any) -> None:
        """Checks a value's type, which has to be the very one: True is no int, and 1 is no float.

        Args:
            value: to check.

        Raises:
            ConfigTypeError: it is of another type.
        """
        if not _matches(value, self.type):
            raise ConfigTypeError(f"{self.name} must be of type {self.type_name}, not {value!r}, a {_kind(value)}")

    def warn_if_deprecated(self, stacklevel: int = 2) -> None:
        """Issues a DeprecationWarning if another option has replaced this one.

        Args:
            stacklevel: of ``warnings.warn``; 2 is the line that calls this method.
        """
        if self.deprecated:
            warnings.warn(self.deprecated_msg, DeprecationWarning, stacklevel=stacklevel)


def _origin(kind: Any) -> Any:
    return typing.get_origin(kind)


def _kind(value: Any) -> str:
    if type(value) in (list, tuple, dict) and value:
        inner = sorted({type(v).__name__ for v in (value.values() if isinstance(value, dict) else value)})
        return f"{type(value).__name__} of {' and '.join(inner)}"
    return type(value).__name__


def _matches(value: Any, kind: Any) -> bool:
    origin, inner = _origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(_matches(value, k) for k in inner)
    if origin is dict:
        return type(value) is dict and all(type(k) is inner[0] and type(v) is inner[1] for k, v in value.items())
    if origin in (list, tuple):
        return type(value) is origin and all(type(v) is inner[0] for v in value)
    return type(value) is kind
