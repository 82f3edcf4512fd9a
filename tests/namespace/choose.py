"""Parameters of the tests over a namespace of Keras: a few cases always, the others in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

TURNS = 6


def cases(names: Iterable[str], namespace: Any, always: Collection[str] = ()) -> list[Any]:
    """The names that this version of Keras has; those not in `always` run in turn (see `tests.sweep`)."""
    unknown = set(always) - set(names)
    assert not unknown, f"no such cases: {sorted(unknown)}"
    return [
        pytest.param(name, id=name, marks=[] if name in always else [pytest.mark.sweep(turns=TURNS)])
        for name in sorted(names)
        if hasattr(namespace, name)
    ]
