"""Which cases of the large tables of tests run: some always, some in turn, the rest when asked for.

A test marked `sweep(turns)` is one case of a table; by default it runs with one seed in `turns`, and `turns` seeds in
a row (the default is the day) reach every case. When it is not its turn it is marked `slow`; what is slow is left out.

    IPU_SWEEP_SEED=7        the choice of another day
    IPU_SWEEP=all           every case; so does naming tests (`-k`, `file::test`) or markers (`-m`)
    IPU_SWEEP_SHARD=1/6     the first of six parts of all that is selected
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections.abc import Collection, Iterable
from typing import Any

import pytest

TAKING_LONG = ("training", "hub", "parallel", "keras", "test_random_graphs.py")
"""Files and folders that start first, so that no worker is left with one of them at the end."""


def in_turns(values: Iterable[Any], turns: int, always: Collection[Any] = ()) -> list[Any]:
    """Parameters of a test: those in `always` run every day, the others in turn.

    Args:
        values: the cases.
        turns: seeds in a row that reach every case.
        always: some of the values.
    """
    values = list(values)
    unknown = [value for value in always if value not in values]
    assert not unknown, f"no such cases: {unknown}"
    return [pytest.param(value, marks=[] if value in always else [pytest.mark.sweep(turns=turns)]) for value in values]


def seed() -> int:
    return int(os.environ.get("IPU_SWEEP_SEED") or datetime.date.today().toordinal())


def in_turn(name: str, turns: int, seed: int) -> bool:
    """Whether the seed is one of those that a case runs with; whatever else is collected."""
    return (zlib.crc32(name.encode()) + seed) % turns == 0


def shard_of(text: str) -> tuple[int, int]:
    """(part from 0, parts) of "1/6"; of an empty text, all."""
    part, _, parts = (text or "1/1").partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"IPU_SWEEP_SHARD is {text!r}; it should be such as 1/6")
    return int(part) - 1, int(parts)


def pytest_report_header() -> str:
    choice = f"sweep: seed {seed()} (IPU_SWEEP_SEED={seed()} repeats the choice, IPU_SWEEP=all runs every case)"
    if os.environ.get("IPU_SWEEP") == "all":
        choice = "sweep: every case"
    part, parts = shard_of(os.environ.get("IPU_SWEEP_SHARD", ""))
    return choice if parts == 1 else f"{choice}, part {part + 1} of {parts}"


@pytest.hookimpl(tryfirst=True)  # the markers must be there when `-m` is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = os.environ.get("IPU_SWEEP") == "all" or config.option.markexpr or config.option.keyword
    asked = asked or any("::" in arg for arg in config.args)
    part, parts = shard_of(os.environ.get("IPU_SWEEP_SHARD", ""))
    left_out = []
    for i, item in enumerate(items):
        mark = item.get_closest_marker("sweep")
        waits = mark is not None and not in_turn(item.nodeid, mark.kwargs["turns"], seed())
        if waits:
            item.add_marker(pytest.mark.slow)
        if (item.get_closest_marker("slow") and not asked) or i % parts != part:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    items.sort(key=lambda item: rank(item.nodeid))


def rank(nodeid: str) -> int:
    """Place of a test's file or folder among those that take long."""
    first = nodeid.removeprefix("tests/").split("::")[0].split("/")[0]
    return TAKING_LONG.index(first) if first in TAKING_LONG else len(TAKING_LONG)
