"""The choice of cases from the large tables (tests/sweep.py)."""

import pytest

from tests.sweep import in_turn, shard_of

NAMES = [f"test_x.py::test_x[{i}]" for i in range(100)]


def test_as_many_seeds_in_a_row_as_turns_reach_every_case_once():
    for name in NAMES:
        assert sum(in_turn(name, 4, seed) for seed in range(739_000, 739_004)) == 1


def test_a_seed_takes_about_its_share():
    assert all(10 < sum(in_turn(name, 4, seed) for name in NAMES) < 40 for seed in range(4))


def test_shards():
    assert shard_of("") == (0, 1)
    assert shard_of("2/6") == (1, 6)


@pytest.mark.parametrize("text", ["0/6", "7/6", "1", "a/b", "1/0"])
def test_no_such_shard(text):
    with pytest.raises(pytest.UsageError, match="1/6"):
        shard_of(text)
