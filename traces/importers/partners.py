"""Which events of two sources are the same: by record-function id, else by their order.

Old profilers wrote no ids. There a thread's operators in one source are those of the other
where its whole sequence of names occurs there in exactly one place, or nearly so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]

_ENOUGH = 16
"""Operators that a thread must have to be recognised by their order."""

_MOSTLY = 0.9
"""Share of operators that must be in the same place where their order differs a little."""


def partners(ours: pa.Table, theirs: pa.Table) -> I64:
    """For each of our events the row of the same one in theirs, -1 where there is none.

    Args:
        ours: events in time order.
        theirs: events in the order in which they began.
    """
    partner = by_id(ours["rf_id"].to_numpy(), theirs["rf_id"].to_numpy())
    return partner if (partner >= 0).any() else by_order(ours, theirs)


def by_id(ours: I64, theirs: I64) -> I64:
    """For each of our ids the place of the same one in theirs, -1 if there is none."""
    if not len(theirs) or not len(ours):
        return np.full(len(ours), -1, np.int64)
    order = np.argsort(theirs, kind="stable")
    ranked = theirs[order]
    at = np.minimum(np.searchsorted(ranked, ours), len(ranked) - 1)
    found = (ranked[at] == ours) & (ours > 0)
    partner: I64 = np.where(found, order[at], -1)
    return partner


def by_order(ours: pa.Table, theirs: pa.Table) -> I64:
    """Like :func:`partners`, by the sequence of operators of each thread."""
    partner = np.full(len(ours), -1, np.int64)
    codes: dict[str, int] = {}
    lanes = _lanes(ours, codes)
    for rows, names in _lanes(theirs, codes):
        if len(rows) < _ENOUGH:
            continue
        found = [(place, at) for place, lane in enumerate(lanes) for at in _places(lane[1], names)]
        if not found:  # as many, and nearly all the same: coarse clocks swap some neighbours
            found = [(place, 0) for place, lane in enumerate(lanes) if _alike(lane[1], names)]
        if len(found) == 1:
            ((place, at),) = found
            here = slice(at, at + len(rows))
            same = lanes[place][1][here] == names
            partner[lanes[place][0][here][same]] = rows[same]
    return partner


def _alike(ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> bool:
    return len(ours) == len(theirs) and bool((ours == theirs).mean() >= _MOSTLY)


def _lanes(events: pa.Table, codes: dict[str, int]) -> list[tuple[I64, NDArray[np.int32]]]:
    """(rows, name codes) of the operators of each host thread."""
    name, kind = events["name"].combine_chunks(), events["kind"].combine_chunks()
    new = np.array([codes.setdefault(n, len(codes)) for n in name.dictionary.to_pylist()], np.int32)
    kinds = kind.dictionary.to_pylist()
    if "host_op" not in kinds:
        return []
    rows = np.flatnonzero(kind.indices.to_numpy() == kinds.index("host_op"))
    threads: NDArray[Any] = events["thread"].to_numpy()[rows]
    names = new[name.indices.to_numpy()[rows]]
    return [(rows[threads == t], names[threads == t]) for t in np.unique(threads)]


def _places(names: NDArray[np.int32], wanted: NDArray[np.int32]) -> list[int]:
    """Where ``wanted`` occurs in ``names``; the first two places are enough."""
    text, part = names.tobytes(), wanted.tobytes()
    places: list[int] = []
    at = text.find(part)
    while at >= 0 and len(places) < 2:
        if at % names.itemsize == 0:
            places.append(at // names.itemsize)
        at = text.find(part, at + 1)
    return places
