"""Compiled loops over values that carry labels: numbering, medians, nearest values, low ends."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)


def distinct(values: I64) -> tuple[I64, I64]:
    """The distinct values, ascending, and the place of each value among them.

    What ``numpy.unique`` gives, for few distinct values many times faster.
    """
    group, labels = numbered(values)
    order = np.argsort(labels)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return labels[order], place[group]


@njit(cache=True)
def grouped(number: I64, count: int) -> tuple[I64, I64]:
    """Positions by their number, in order within; a number's are ``order[first[g]:first[g + 1]]``.

    Args:
        number: 0 to ``count - 1``, shape ``(n,)``.
        count: how many numbers there are.

    Returns:
        ``(order, first)``, shapes ``(n,)`` and ``(count + 1,)``.
    """
    first = np.zeros(count + 1, np.int64)
    for g in number:
        first[g + 1] += 1
    for g in range(count):
        first[g + 1] += first[g]
    fill = first[:-1].copy()
    order = np.empty(len(number), np.int64)
    for i in range(len(number)):
        order[fill[number[i]]] = i
        fill[number[i]] += 1
    return order, first


@njit(cache=True)
def nearest(labels: tuple[I64, I64], instants: tuple[I64, I64], side: int) -> I64:
    """The last of some sorted instants before others, or the first not before them, by label.

    Args:
        labels: label of each instant, shape ``(n,)``, and the label that is asked for,
            shape ``(k,)``; -1 finds nothing.
        instants: sorted instants, shape ``(n,)``, and those asked for, shape ``(k,)``.
        side: -1 before, 0 not before.

    Returns:
        Positions among the sorted instants, -1 for none, shape ``(k,)``.
    """
    label, wanted = labels
    at, asked = instants
    n = len(label)
    group, found = numbered(np.concatenate((label, wanted)))
    place, first = grouped(group[:n], len(found))
    result = np.full(len(asked), -1, np.int64)
    for k in range(len(asked)):
        if wanted[k] == -1:
            continue
        begin, stop = first[group[n + k]], first[group[n + k] + 1]
        low, high = begin, stop
        while low < high:
            middle = (low + high) // 2
            if at[place[middle]] < asked[k]:
                low = middle + 1
            else:
                high = middle
        low += side
        if begin <= low < stop:
            result[k] = place[low]
    return result


@njit(cache=True)
def medians(label: I64, value: I64, least: int) -> tuple[I64, I64, I64]:
    """Median of the values of each label, and the median distance from it.

    Of an even number of values the upper middle one counts.

    Args:
        label: shape ``(n,)``.
        value: shape ``(n,)``.
        least: labels with fewer values are left out.

    Returns:
        ``(label, median, deviation)``, by label ascending.
    """
    group, labels = numbered(label)
    order, first = grouped(group, len(labels))
    together = value[order]
    found = np.empty((3, len(labels)), np.int64)
    count = 0
    for g in np.argsort(labels):
        own = together[first[g] : first[g + 1]]
        if len(own) < least:
            continue
        middle = len(own) // 2
        median = np.partition(own, middle)[middle]
        found[0, count] = labels[g]
        found[1, count] = median
        found[2, count] = np.partition(np.abs(own - median), middle)[middle]
        count += 1
    return found[0, :count].copy(), found[1, :count].copy(), found[2, :count].copy()


@njit(cache=True)
def numbered(label: I64) -> tuple[I64, I64]:
    """Labels numbered in order of first use, and the label of each number."""
    group = np.empty(len(label), np.int64)
    size, count = 1 << 12, 0
    table = np.full(size, -1, np.int32)
    labels = np.empty(size, np.int64)
    for i in range(len(label)):
        if i > 0 and label[i] == label[i - 1]:
            group[i] = group[i - 1]
            continue
        if 2 * count >= size:
            size *= 2
            table = np.full(size, -1, np.int32)
            longer = np.empty(size, np.int64)
            longer[:count] = labels[:count]
            labels = longer
            for g in range(count):
                table[_slot(table, labels, labels[g])] = g
        at = _slot(table, labels, label[i])
        if table[at] < 0:
            table[at] = count
            labels[count] = label[i]
            count += 1
        group[i] = table[at]
    return group, labels[:count].copy()


@njit(cache=True)
def _slot(table: I32, labels: I64, label: int) -> int:
    """Where a label stands in the table, or may be put."""
    mask = np.uint64(len(table) - 1)
    mixed = np.uint64(label) * _MIX
    at = (mixed >> np.uint64(32)) & mask
    while table[at] >= 0 and labels[table[at]] != label:
        at = (at + np.uint64(1)) & mask
    return int(at)
