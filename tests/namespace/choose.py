"""Parameters of the tests over a namespace of Keras: a few cases always, the others in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tests.sweep import in_turns

TURNS = 6


def cases(names: Iterable[str], namespace: Any, always: Collection[str] = ()) -> list[Any]:
    """The names that this version of Keras has; those not in `always` run in turn (see `tests.sweep`)."""
    unknown = set(always) - set(names)
    assert not unknown, f"no such cases: {sorted(unknown)}"
    there = [name for name in sorted(names) if hasattr(namespace, name)]
    return in_turns(there, TURNS, [name for name in always if name in there])
