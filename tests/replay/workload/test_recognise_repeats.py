"""Repeated work: against a search by brute force, and cases worked out by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.workload.recognise.repeats import (
    Repeat,
    occurrences,
    pattern,
    repeats,
)


def tokens(text: str) -> np.ndarray:
    return np.array([ord(c) for c in text], np.int64)


def shape(text: str) -> tuple[int, ...]:
    return tuple(ord(c) for c in text)


@given(st.text("ab", min_size=2, max_size=14), st.data())
def test_no_stretch_of_whole_occurrences_weighs_more(text: str, data: st.DataObject) -> None:
    n = len(text)
    weight = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), np.float64)
    best = 0.0
    for period in range(1, n // 2 + 1):
        for start in range(n - 2 * period + 1):
            end = start + period
            while end < n and text[end] == text[end - period]:
                end += 1
            if end - start >= 2 * period:
                best = max(best, float(weight[start:end].sum()))
    found = repeats(tokens(text), weight)
    if not found:
        assert best == 0.0
        return
    for one in found:
        end = one.start + one.length
        assert one.count >= 2
        assert all(text[i] == text[i + one.period] for i in range(one.start, end - one.period))
    first = found[0]
    assert weight[first.start : first.start + first.length].sum() >= 0.98 * best


def test_several_layers_are_no_layer() -> None:
    found = repeats(tokens("E" + "nqao" * 4 + "H"), np.ones(18))
    assert found == [Repeat(start=1, period=4, length=16)]
    assert (found[0].count, found[0].spare) == (4, 0)


def test_heavy_work_outweighs_many_small_kernels() -> None:
    text = "gggggggg" + "nqa" * 2
    weight = np.array([1.0] * 8 + [10.0] * 6)
    assert repeats(tokens(text), weight)[0] == Repeat(8, 3, 6)


def test_nothing_recurs() -> None:
    assert repeats(tokens("abcdef"), np.ones(6)) == []
    assert repeats(tokens("a"), np.ones(1)) == []


def test_neighbours_that_look_like_a_layer_are_settled_by_other_stages() -> None:
    # Behind the last stage's layers stands another norm: two cuts are possible there.
    first, last = tokens("E" + "nqo" * 3 + "s"), tokens("nqo" * 3 + "nH")
    both = [repeats(t, np.ones(len(t)))[0] for t in (first, last)]
    assert [r.spare for r in both] == [0, 1]
    assert pattern([first, last], both, last=False) == shape("nqo")
    assert pattern([first, last], both, last=True) == shape("nqo")
    assert pattern([last], both[1:], last=False) == shape("nqo")
    assert pattern([last], both[1:], last=True) == shape("qon")


def starts(text: str, of: str) -> list[int]:
    return occurrences(tokens(text), shape(of))[:, 0].tolist()


def test_layers_at_the_edge_may_differ_a_little() -> None:
    layer = "abcdefghij"
    text = "x" + "Abcdefghij" + layer * 3 + "abcdefghiJ" + "abcdXXXXij"
    assert starts(text, layer) == [1, 11, 21, 31, 41]


def test_other_work_may_stand_between() -> None:
    text = "zz" + "abXcd" + "abcd" + "YY" + "abcd" + "aZbcd" + "abQQQcd"
    found = occurrences(tokens(text), shape("abcd"))
    assert found.tolist() == [[2, 3, 5, 6], [7, 8, 9, 10], [13, 14, 15, 16], [17, 19, 20, 21]]


def test_only_the_longest_row_counts() -> None:
    assert starts("ab" + "xyz" + "ab" * 3, "ab") == [5, 7, 9]
    assert starts("x", "ab") == []
