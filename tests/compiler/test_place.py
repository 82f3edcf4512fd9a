"""Placement in a tile's memory: the lowest place that is free during a variable's life, against the plain algorithm."""

import numpy as np
import pytest

from ipu_keras.compiler._place import first_fit


def plain(sizes, lives, guard):
    """Look at all variables placed before, in the order of their offsets, for the first gap."""
    placed, offsets, top = [], [], 0
    for size, own in zip(sizes, lives, strict=True):
        at = 0
        for offset, end, others in sorted(placed):
            if any(f2 <= e and f <= e2 for f, e in own for f2, e2 in others):
                if offset >= at + size + guard:
                    break
                at = max(at, end)
        offsets.append(at if size else 0)
        if size:
            placed.append((at, at + size + guard, own))
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
        lives = [[(f, e)] for f, e in zip(first.tolist(), last.tolist(), strict=True)]
        # Every third lives again now and then: a function's.
        for own in lives[always::3]:
            for _ in range(int(rng.integers(0, 4))):
                begin = own[-1][1] + 1 + int(rng.integers(0, 9))
                own += [(begin, min(begin + 3, steps - 1))] if begin < steps else []
        ends = np.cumsum([len(own) for own in lives]).astype(np.int64)
        spans = np.array([life for own in lives for life in own], np.int32).reshape(-1, 2)
        offsets, end = first_fit(sizes, ends, spans[:, 0].copy(), spans[:, 1].copy(), guard)
        expected, top = plain(sizes.tolist(), lives, guard)
        assert (offsets[sizes > 0] == np.array(expected, np.int64)[sizes > 0]).all(), turn
        assert end == top
