"""Tile mappings and the copies between them, against NumPy: every element arrives where its layout says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_keras.compiler.homes import partition
from ipu_keras.compiler.layout import Layout, common_view, even, grid_layout, spread, squeeze
from ipu_keras.compiler.move import Line, plan_move


def memories(layout, array):
    """What each tile holds: {tile: flat block}."""
    array = array.reshape(layout.view)
    found = {}
    for index in np.ndindex(*layout.tiles.shape):
        cut = tuple(slice(layout.starts[d][i], layout.stops[d][i]) for d, i in enumerate(index[:-1]))
        found[int(layout.tiles[index])] = array[cut].transpose(layout.order).reshape(-1).copy()
    return found


def carry_out(rows, src, dst):
    def at(column, r):
        return int(column[r] if len(column) > 1 else column[0])

    for r in range(len(rows)):
        counts = [at(c, r) for c in rows.counts]
        for k in np.ndindex(*counts):
            a = at(rows.src_off, r) + sum(i * at(s, r) for i, s in zip(k, rows.src_strides, strict=True))
            b = at(rows.dst_off, r) + sum(i * at(s, r) for i, s in zip(k, rows.dst_strides, strict=True))
            assert a >= 0 and b >= 0
            dst[at(rows.dst_tile, r)][b] = src[at(rows.src_tile, r)][a]


@st.composite
def layouts(draw, view):
    rank = len(view)
    parts = [draw(st.integers(1, 5)) for _ in view]
    order = tuple(draw(st.permutations(range(rank))))
    return grid_layout(view, parts, draw(st.integers(0, 4)), order)


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    views = [shape, (int(np.prod(shape)),)]
    if len(shape) > 1:
        views.append((shape[0] * shape[1], *shape[2:]))
    src = draw(layouts(draw(st.sampled_from(views))))
    dst = draw(layouts(draw(st.sampled_from(views))))
    return src, dst, int(np.prod(shape))


@given(cases())
@settings(max_examples=100, deadline=None)
def test_moving_between_any_two_mappings(case):
    src, dst, size = case
    array = np.arange(size)
    want = memories(dst, array)
    got = {tile: np.full_like(block, -1) for tile, block in want.items()}
    carry_out(plan_move(dst, src), memories(src, array), got)
    for tile, block in want.items():
        np.testing.assert_array_equal(got[tile], block)


@pytest.mark.parametrize("parts", [5, 400])
@pytest.mark.parametrize("first, step, count", [(1000, -1, 700), (1000, -3, 300), (30, 1, 600), (100, 4, 250)])
def test_lines_of_many_intervals(parts, first, step, count):
    """More intervals than are compared one by one; some hold nothing of the line."""
    src, dst = (grid_layout((n,), [p], 0, (0,)) for n, p in ((1472, parts), (count, 300)))
    array = np.arange(1472)
    want = memories(dst, array[first + step * np.arange(count)])
    got = {tile: np.full_like(block, -1) for tile, block in want.items()}
    carry_out(plan_move(dst, src, [Line(0, count, 0, 1, first, step)]), memories(src, array), got)
    for tile, block in want.items():
        np.testing.assert_array_equal(got[tile], block)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_moving_along_lines(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    lines, picks = [], []
    for d, n in enumerate(shape):
        first, step = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 3))
        count = -(-(n - first) // step)
        if data.draw(st.booleans()):
            lines.append(Line(d, count, 0, 1, first + (count - 1) * step, -step))
            picks.append(list(range(first, n, step))[::-1])
        else:
            lines.append(Line(d, count, 0, 1, first, step))
            picks.append(list(range(first, n, step)))
    result = array[np.ix_(*picks)]
    src, dst = data.draw(layouts(shape)), data.draw(layouts(result.shape))
    got = {tile: np.full_like(block, -1) for tile, block in memories(dst, result).items()}
    carry_out(plan_move(dst, src, lines), memories(src, array), got)
    for tile, block in memories(dst, result).items():
        np.testing.assert_array_equal(got[tile], block)


def test_repeated_and_overlapping_destinations():
    src = grid_layout((12,), [4])
    starts, stops = np.array([0, 2, 5]), np.array([4, 8, 12])
    dst = Layout((12,), [starts], [stops], np.arange(6).reshape(3, 2) + 10)
    array = np.arange(12) * 3
    got = {t: np.full_like(b, -1) for t, b in memories(dst, array).items()}
    carry_out(plan_move(dst, src), memories(src, array), got)
    for tile, block in memories(dst, array).items():
        np.testing.assert_array_equal(got[tile], block)


def test_overlapping_destinations_of_another_shape():
    # No view refines both [6, 4] and [8, 3]: element by element, and overlaps and repetitions are filled too.
    src = grid_layout((6, 4), [3, 2])
    rows, columns = (np.array([0, 2, 5]), np.array([4, 7, 8])), (np.array([0, 1]), np.array([2, 3]))
    for order in ((0, 1), (1, 0)):
        dst = Layout((8, 3), [rows[0], columns[0]], [rows[1], columns[1]], np.arange(12).reshape(3, 2, 2) + 20, order)
        array = np.arange(24) * 5
        got = {t: np.full_like(b, -1) for t, b in memories(dst, array).items()}
        carry_out(plan_move(dst, src), memories(src, array), got)
        for tile, block in memories(dst, array).items():
            np.testing.assert_array_equal(got[tile], block)


def test_several_windows_of_a_size_1_dimension():
    # Three intervals of a dimension of 1: two hold the element, one lies in the border.
    src = grid_layout((5,), [2])
    starts, stops = np.array([0, 0, 1]), np.array([1, 1, 1])
    whole = [np.array([0])], [np.array([5])]
    dst = Layout((1, 5), [starts, *whole[0]], [stops, *whole[1]], np.arange(3).reshape(3, 1, 1) + 7)
    array = np.arange(5) + 1
    got = {t: np.full_like(b, -1) for t, b in memories(dst, array).items()}
    carry_out(plan_move(dst, src), memories(src, array), got)
    np.testing.assert_array_equal(got[7], array)
    np.testing.assert_array_equal(got[8], array)
    assert got[9].size == 0
    assert squeeze(dst).flat_tiles.tolist() == [7, 8]


def test_a_home_covers_every_element_once():
    for layout in (
        Layout((12,), [np.array([0, 2, 5])], [np.array([4, 8, 12])], np.arange(6).reshape(3, 2)),
        Layout((12,), [np.array([1, 4, 9])], [np.array([2, 6, 10])], np.arange(3).reshape(3, 1)),
        grid_layout((5, 7), [2, 3]).keep([1]),
    ):
        home = partition(layout)
        count = np.zeros(home.view, int)
        for index in np.ndindex(*home.grid):
            count[tuple(slice(home.starts[d][i], home.stops[d][i]) for d, i in enumerate(index))] += 1
        assert (count == 1).all()
        assert len(set(home.flat_tiles.tolist())) == home.flat_tiles.size


@pytest.mark.parametrize(
    ("a", "b", "view"),
    [
        ((32, 4, 4, 16), (32, 256), (32, 4, 4, 16)),
        ((6, 4), (2, 12), (2, 3, 4)),
        ((6, 4), (8, 3), None),
        ((1, 5, 1), (5,), (5,)),
        ((), (1, 1), ()),
    ],
)
def test_common_view(a, b, view):
    assert common_view(a, b) == view


@given(st.integers(0, 2000), st.integers(1, 1472), st.integers(1, 16))
def test_even_cuts_cover_and_balance(size, parts, grain):
    starts, stops = even(size, parts, grain)
    assert starts[0] == 0 and stops[-1] == size and (starts[1:] == stops[:-1]).all()
    lengths = stops - starts
    assert len(lengths) <= parts
    if len(lengths) > 1:
        assert lengths[:-1].max() - lengths[:-1].min() <= grain and (lengths[:-1] % grain == 0).all()


def test_small_arrays_stay_on_few_tiles():
    # 128 bytes a tile at least (poplibs mapTensorLinearly): 1,000 floats take 32 tiles at most.
    assert spread((1000,), 4, 1472).flat_tiles.size == 32
    assert spread((10,), 4, 1472).flat_tiles.size == 1
    assert 1470 <= spread((1 << 20,), 4, 1472).flat_tiles.size <= 1472
