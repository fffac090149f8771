"""Collectives that the library runs on the copy engines: no kernel, only copies."""

from __future__ import annotations

import re

import numpy as np

from foretrace.traces.classify import collective_kind
from foretrace.traces.collectives.model import I64, EventView, Metadata
from foretrace.traces.enclosing import enclosing_rows

_BETWEEN_DEVICES = re.compile(r"\b(?:PtoP|DtoD|P2P|D2D)\b")


def copy_engine_work(
    events: EventView, metadata: dict[int, Metadata], launch: I64, kernels: I64
) -> I64:
    """Rows of the copies that end a collective, one for each that no kernel works for.

    Args:
        events: the rank's events.
        metadata: what was recorded about collectives, by row.
        launch: row of the call that launched each row, -1 for none, shape ``(events,)``.
        kernels: rows of communication kernels.
    """
    between = events.name.marked(lambda name: bool(_BETWEEN_DEVICES.search(name)))
    copies = np.flatnonzero(events.is_kind("memcpy") & between & (launch >= 0))
    calls = [row for row, meta in metadata.items() if collective_kind(meta.collective)]
    records = np.intersect1d(calls, events.host_rows(lambda name: name == "record_param_comms"))
    if not len(copies) or not len(records):
        return np.empty(0, np.int64)
    of_copy = _around(events, records.astype(np.int64), launch[copies])
    launched = kernels[launch[kernels] >= 0]
    served = _around(events, records.astype(np.int64), launch[launched])
    alone = (of_copy >= 0) & ~np.isin(of_copy, served)
    copies, of_copy = copies[alone], of_copy[alone]
    order = np.lexsort((events.end_ns[copies], of_copy))
    copies, of_copy = copies[order], of_copy[order]
    last = np.append(of_copy[1:] != of_copy[:-1], True)[: len(copies)]
    ending: I64 = copies[last]
    return ending


def _around(events: EventView, records: I64, calls: I64) -> I64:
    """The record that was running at each call, -1 for none."""
    if not len(calls):
        return np.empty(0, np.int64)
    spans = (events.start_ns, events.end_ns, events.thread)
    return enclosing_rows(records, spans, (events.start_ns[calls], events.thread[calls]))
