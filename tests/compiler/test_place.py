"""Placement in a tile's memory: the lowest place that is free during a variable's life, against the plain algorithm."""

import numpy as np
import pytest

from ipu_keras.compiler._place import first_fit


def plain(sizes, first, last, guard):
    """Look at all variables placed before, in the order of their offsets, for the first gap."""
    placed, offsets, top = [], [], 0
    for size, f, e in zip(sizes, first, last, strict=True):
        at = 0
        for offset, end, f2, e2 in sorted(placed):
            if f2 <= e and f <= e2:
                if offset >= at + size + guard:
                    break
                at = max(at, end)
        offsets.append(at if size else 0)
        if size:
            placed.append((at, at + size + guard, f, e))
            top = max(top, at + size + guard)
    return offsets, top


@pytest.mark.parametrize("steps", [1, 5, 64, 400, 3000])
def test_against_the_plain_algorithm(steps):
    rng = np.random.default_rng(steps)
    for turn in range(60):
        n = int(rng.integers(0, 70))
        first = rng.integers(0, steps, n)
        length = np.where(rng.random(n) < 0.8, rng.integers(0, 6, n), rng.integers(0, steps, n))
        last = np.minimum(first + length, steps - 1)
        always = int(rng.integers(0, n + 1))
        first[:always], last[:always] = 0, steps - 1
        sizes, guard = 8 * rng.integers(0, 20, n), int(rng.choice([0, 8]))
        offsets, end = first_fit(sizes, np.arange(1, n + 1), first.astype(np.int32), last.astype(np.int32), guard)
        expected, top = plain(sizes.tolist(), first.tolist(), last.tolist(), guard)
        assert (offsets[sizes > 0] == np.array(expected, np.int64)[sizes > 0]).all(), turn
        assert end == top
