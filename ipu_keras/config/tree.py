"""IPUConfig: the options as nested objects with attributes, made from the table."""

from __future__ import annotations

import copy
import difflib
import json
import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ipu_keras.config.metadata import AttributeMetadata
from ipu_keras.config.refusals import CategoryError, UnknownOptionError
from ipu_keras.config.table import OPTIONS
from ipu_keras.errors import ConfigError

__all__ = ["Category", "IPUConfig"]

logger = logging.getLogger("ipu_keras")


class Category:
    """Options that belong together, and the categories below them.

    Args:
        path: full name, "" for the whole configuration.

    Raises:
        UnknownOptionError: (a ValueError) an attribute is read or set that there is not; so ``hasattr`` raises, too.
        ConfigTypeError: (a TypeError) an option is set to a value of another type.
        CategoryError: a category is assigned to.
    """

    __slots__ = ("_children", "_path", "_values")
    _path: str
    _values: dict[str, Any]
    _children: dict[str, Category]

    def __init__(self, path: str = "") -> None:
        prefix = f"{path}." if path else ""
        values: dict[str, Any] = {}
        children: dict[str, Category] = {}
        for name, option in OPTIONS.items():
            if name.startswith(prefix):
                first, _, below = name[len(prefix) :].partition(".")
                if below:
                    if first not in children:
                        children[first] = Category(prefix + first)
                elif not option.deprecated:
                    values[first] = copy.deepcopy(option.default)
        for slot, value in (("_path", path), ("_values", values), ("_children", children)):
            object.__setattr__(self, slot, value)

    def __getattr__(self, name: str) -> Any:
        # Python and its libraries ask for special methods, and must be told that there are none.
        if name in Category.__slots__ or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        if name in self._children:
            return self._children[name]
        option = self._option(name)
        option.warn_if_deprecated(stacklevel=3)
        return self._read(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._children:
            below = ", ".join(dir(self._children[name]))
            raise CategoryError(
                f"{self._full(name)!r} is a category and cannot be assigned to; set what is in it: {below}"
            )
        option = self._option(name)
        option.warn_if_deprecated(stacklevel=3)
        option.check_type(value)
        self._write(name, value)

    def __delattr__(self, name: str) -> None:
        raise CategoryError(f"{self._full(name)!r} cannot be deleted from a config")

    def __dir__(self) -> list[str]:
        methods = [n for n in object.__dir__(self) if not n.startswith("_")]
        return sorted([*self._values, *self._children, *(methods if not self._path else [])])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = type(self)() if not self._path else Category(self._path)
        memo[id(self)] = new
        for name, value in self._values.items():
            new._values[name] = copy.deepcopy(value, memo)
        for name, child in self._children.items():
            new._children[name] = copy.deepcopy(child, memo)
        return new

    def __copy__(self) -> Any:
        return copy.deepcopy(self)  # a shallow copy would share its categories

    def __reduce__(self) -> Any:
        return _restored, (self._path, self._values, self._children)

    def __str__(self) -> str:
        prefix = f"{self._path}." if self._path else ""
        return "\n".join(f"{name} = {self._read(name[len(prefix) :])}" for name in OPTIONS if name.startswith(prefix))

    __repr__ = __str__

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """What is known of an option: name, doc, type, default, deprecated, deprecated_msg, and its checks.

        Args:
            attr: the option's name, from this category on, such as ``"math.fast"`` in ``optimizations``.

        Raises:
            UnknownOptionError: there is no such option; or it is a category.

        Example:
            >>> IPUConfig().optimizations.get_attribute_metadata("math.fast").default
            False
        """
        return self._option(attr)

    def _full(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _option(self, name: str) -> AttributeMetadata:
        full = self._full(name)
        if full not in OPTIONS:
            raise UnknownOptionError(_unknown(full))
        return OPTIONS[full]

    def _place(self, name: str) -> tuple[Category, str]:
        """The category that holds an option's value, and the name in it; both follow what has moved."""
        moved = OPTIONS[self._full(name)].moved_to
        *above, last = (".".join([*name.split(".")[:-1], moved]) if moved else name).split(".")
        node = self
        for step in above:
            node = node._children[step]
        return node, last

    def _read(self, name: str) -> Any:
        node, last = self._place(name)
        return node._values[last]

    def _write(self, name: str, value: Any) -> None:
        node, last = self._place(name)
        node._values[last] = value


class IPUConfig(Category):
    """The configuration of the IPU system, a tree of options whose values take effect when it is configured.

    Which options act: ``docs/config.md``; the others are accepted, and `configure_ipu_system` logs which are set.

    Raises:
        UnknownOptionError: (a ValueError) an attribute is read or set that there is not; so ``hasattr`` raises, too.
        ConfigTypeError: (a TypeError) an option is set to a value of another type. Types are exact: 1 is no float.
        CategoryError: a category such as ``config.matmuls`` is assigned to.

    Example:
        >>> import ipu_keras as ipu
        >>> config = ipu.config.IPUConfig()
        >>> config.auto_select_ipus = 1
        >>> config.device_connection.version = "ipu21"
        >>> config.matmuls.poplar_options = {"availableMemoryProportion": "0.3"}
        >>> config.configure_ipu_system()
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Makes this the configuration of the system: see the function `configure_ipu_system`.

        Args:
            device: of the host; not used.

        Raises:
            ConfigError, SelectionError, SeveralIPUsError: as the function.
        """
        from ipu_keras.config.system import configure_ipu_system

        configure_ipu_system(self, device)

    def to_dict(self) -> dict[str, Any]:
        """A copy of all values by full name; enums as integers.

        Example:
            >>> IPUConfig().to_dict()["selection_order"]
            0
        """
        values = {name: self._read(name) for name in OPTIONS}
        return {name: v.value if isinstance(v, Enum) else copy.deepcopy(v) for name, v in values.items()}

    def from_dict(self, values: Mapping[str, Any]) -> None:
        """Takes the values of a dictionary as `to_dict` gives it; what it lacks is kept, with a warning in the log.

        Args:
            values: by full name.

        Raises:
            UnknownOptionError, ConfigTypeError, ConfigError: a name or a value that cannot be; nothing is changed then.

        Example:
            >>> config = IPUConfig()
            >>> config.from_dict({**config.to_dict(), "allow_recompute": True})
        """
        taken: dict[str, Any] = {}
        for name, given in values.items():
            option = self._option(name)
            value = _member(option, given)
            option.check_type(value)
            if option.deprecated:
                if option.replacement in values:
                    continue
                option.warn_if_deprecated(stacklevel=3)
            taken[name] = copy.deepcopy(value)
        for name, value in taken.items():
            self._write(name, value)
        there = {OPTIONS[name].replacement or name for name in values}
        missing = [name for name, option in OPTIONS.items() if name not in there and not option.deprecated]
        if missing:
            logger.warning("IPUConfig.from_dict: these keys are missing and keep their values: %s", ", ".join(missing))

    def to_json(self) -> str:
        """`to_dict` as a JSON object."""
        return json.dumps(self.to_dict())

    def from_json(self, text: str) -> None:
        """As `from_dict`, from a JSON object.

        Args:
            text: as `to_json` gives it.

        Raises:
            ConfigError: it is no JSON object; further, as `from_dict`.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"IPUConfig.from_json: the text is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"IPUConfig.from_json: the text holds no JSON object but a {type(values).__name__}")
        self.from_dict(values)


def _restored(path: str, values: dict[str, Any], children: dict[str, Category]) -> Category:
    made = Category(path) if path else IPUConfig()
    made._values.update(values)
    made._children.update(children)
    return made


def _member(option: AttributeMetadata, value: Any) -> Any:
    """The enum member that an integer stands for; other values as they are."""
    if not (isinstance(option.type, type) and issubclass(option.type, Enum)) or type(value) is not int:
        return value
    try:
        return option.type(value)
    except ValueError:
        known = ", ".join(f"{m.value} ({m.name})" for m in option.type)
        raise ConfigError(f"{option.name} is {value}; there are {known}") from None


def _unknown(full: str) -> str:
    """The message for a name that there is not."""
    if any(name.startswith(f"{full}.") for name in OPTIONS):
        return f"{full!r} is not a valid attribute of this config to read or set: it is a category"
    above, _, last = full.rpartition(".")

    def likeness(name: str) -> float:
        category, _, own = name.rpartition(".")
        same = difflib.SequenceMatcher(None, last, own).ratio()
        return same + (0.05 if category == above else 0)

    categories = {name[:i] for name in OPTIONS for i, sign in enumerate(name) if sign == "."}
    candidates = [name for name, option in OPTIONS.items() if not option.deprecated] + sorted(categories)
    near = max(candidates, key=likeness)
    hint = f" Did you mean {near!r}?" if likeness(near) >= 0.5 else ""
    return f"{full!r} is not a valid attribute of this config.{hint}"
