"""The compiled loops of the builders against plain Python that says what they mean."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from foretrace.replay.build.gapkernel import boundary_order
from foretrace.replay.build.labelkernel import distinct, grouped, nearest
from foretrace.replay.build.named import matching, numbers_behind


@pytest.mark.parametrize("seed", range(40))
def test_starts_and_ends_stand_in_the_order_of_the_rule(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, lanes = int(random.integers(0, 40)), 3
    start = np.sort(random.integers(0, 25, count))
    end = start + random.integers(0, 12, count) * random.integers(0, 2, count)
    lane = random.integers(0, lanes, count)

    def key(item: int) -> tuple[int, ...]:
        row, closes = item % count, item >= count
        begin, stop = int(start[row]), int(end[row])
        time = stop if closes else begin
        if begin == stop:  # empty rows open and close between what ends and what begins
            return int(lane[row]), time, 1, 2 * row + closes, item
        return int(lane[row]), time, 0 if closes else 2, -begin if closes else -stop, item

    order, first = boundary_order(start, end, lane, lanes)
    assert order.tolist() == sorted(range(2 * count), key=key)
    assert np.diff(first).tolist() == (2 * np.bincount(lane, minlength=lanes)).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_the_nearest_instant_with_a_label(seed: int) -> None:
    random = np.random.default_rng(seed)
    at = np.sort(random.integers(0, 20, random.integers(0, 30)))
    label = random.integers(-1, 4, len(at))
    asked = random.integers(-2, 22, 20)
    wanted = random.integers(-1, 5, 20)
    for side in (-1, 0):
        expected = []
        for label_of, when in zip(wanted, asked, strict=True):
            mine = [i for i in range(len(at)) if label[i] == label_of != -1]
            before = [i for i in mine if at[i] < when]
            after = [i for i in mine if at[i] >= when]
            chosen = before[-1:] if side else after[:1]
            expected.append(chosen[0] if chosen else -1)
        assert nearest((label, wanted), (at, asked), side).tolist() == expected


def test_values_by_label() -> None:
    values = np.array([7, 7, -3, 1 << 40, 7, -3])
    labels, place = distinct(values)
    assert labels.tolist() == [-3, 7, 1 << 40]
    assert labels[place].tolist() == values.tolist()
    order, first = grouped(place, len(labels))
    assert [order[a:b].tolist() for a, b in pairwise(first)] == [
        [2, 5], [0, 1, 4], [3]
    ]  # fmt: skip


def test_names_by_pattern_and_by_number() -> None:
    names = ("ProfilerStep#12", "cudaFree", "ProfilerStep#", "cudaFreeHost")
    assert matching(re.compile("Free$"), names).tolist() == [False, True, False, False]
    assert numbers_behind("ProfilerStep#", names).tolist() == [12, -1, -1, -1]
