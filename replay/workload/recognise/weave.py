"""Computations and communication of a block in order: what runs together stands together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64
from foretrace.replay.workload.recognise.chain import Chain
from foretrace.replay.workload.recognise.rows import Row

_TOGETHER = 0.3  # of the shorter one's time that two operations share when they run together


def beside_of(chain: Chain, talks: I64, places: I64) -> tuple[I64, NDArray[np.bool_]]:
    """How many operations begin before each communication, and which run beside it.

    Args:
        chain: the chain.
        talks: places of communication, shape ``(c,)``.
        places: places of computations, shape ``(p,)``.

    Returns:
        Shapes ``(c,)`` and ``(c, p)``.
    """
    start, end = chain.start_ns, chain.end_ns_of
    first, last = start[talks][:, None], end[talks][:, None]
    shared = np.minimum(last, end[places]) - np.maximum(first, start[places])
    shorter = np.minimum(last - first, (end - start)[places])
    beside = shared > _TOGETHER * np.maximum(shorter, 1)
    return np.searchsorted(start[places], start[talks]), beside


def weave(
    base: list[Row], talks: list[Row], place: I64, shared: NDArray[np.bool_]
) -> list[Row]:  # fmt: skip
    """Rows of computations with communication put in.

    Args:
        base: computations.
        talks: communication, shape ``(c,)``.
        place: computations that stand before each, shape ``(c,)``.
        shared: computations that run beside each, shape ``(c, p)``.
    """
    spans: list[tuple[int, int, list[int]]] = []  # first and last computation, communication
    alone: dict[int, list[int]] = {}
    for number in range(len(talks)):
        beside = np.flatnonzero(shared[number])
        if not len(beside):
            alone.setdefault(int(place[number]), []).append(number)
        elif spans and int(beside[0]) <= spans[-1][1]:
            first, last, inside = spans[-1]
            spans[-1] = (first, max(last, int(beside[-1])), [*inside, number])
        else:
            spans.append((int(beside[0]), int(beside[-1]), [number]))
    rows: list[Row] = []
    starts = {first: (last, inside) for first, last, inside in spans}
    at = 0
    while at <= len(base):
        rows += [talks[n] for n in alone.get(at, [])]
        if at in starts:
            last, inside = starts[at]
            rows.append(base[at])
            rows += [replace(r, beside=True) for r in base[at + 1 : last + 1]]
            rows += [replace(talks[n], beside=True) for n in inside]
            for within in range(at + 1, last + 1):
                rows += [replace(talks[n], beside=True) for n in alone.get(within, [])]
            at = last + 1
        else:
            rows += base[at : at + 1]
            at += 1
    return rows
