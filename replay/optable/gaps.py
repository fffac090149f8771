"""Launch gaps: how long a worker pauses before each kind of operation.

A gap is measured from the end of the last thing an operation waited for to its start. One
constant stands for all gaps of a worker between the same two operation types. Constants are
taken from some steps and used on others, where no start is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.replay.graph import F64, I64, JobGraph
from foretrace.replay.optable.graph import OpGraph, build_issued_graph
from foretrace.replay.optable.match import Matches, packed, step_index
from foretrace.replay.wavefront import ends_of_many
from foretrace.traces.optable.table import OpTable


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Steps replayed with constants from other steps; arrays of shape ``(steps,)``.

    Attributes:
        step: the steps that no constant was taken from.
        measured_ns: last end minus first start of each.
        replayed_ns: the same in the replay.
        meetings: waits that no row shows and that were inferred, one line each.
    """

    step: I64
    measured_ns: I64
    replayed_ns: I64
    meetings: tuple[str, ...]

    @property
    def error(self) -> float:
        """Mean distance between replayed and measured, as a share of the mean step."""
        distance: F64 = np.abs(self.replayed_ns - self.measured_ns)
        return float(distance.mean() / self.measured_ns.mean())


def replay_held_out(table: OpTable, matches: Matches | None = None) -> HeldOut | None:
    """Fit constant gaps on every second step and replay the steps between.

    Args:
        table: the table.
        matches: which rows belong together, where that is known already.

    Returns:
        The steps that were not used for the fit; None for a table of one step.
    """
    index = step_index(table)
    steps = int(index[-1]) + 1
    if steps < 2:
        return None
    fit = index % 2 == 0
    issued = build_issued_graph(table, fit, matches)
    graph = with_gaps(issued, fit)
    end = ends_of_many(graph, issued.level_ptr, lambda a, b: graph.dur_ns[a:b, None], 1)[:, 0]
    entry = issued.entry_task
    start = end[entry] - graph.dur_ns[entry]
    row = np.flatnonzero(np.diff(index, prepend=-1))
    measured = _span(table.start_ns, table.end_ns, row)
    replayed = _span(start, end[issued.exec_task], row)
    held = np.arange(steps) % 2 == 1
    return HeldOut(table.step[row][held], measured[held], replayed[held], issued.meetings.where)


def with_gaps(issued: OpGraph, fit: np.ndarray) -> JobGraph:
    """The job graph with the constant gaps of some rows as delays of the edges.

    Args:
        issued: the job graph in the order of issue.
        fit: rows that constants are taken from, bool, shape ``(rows,)``.
    """
    graph, entry = issued.graph, issued.entry_task
    delay = np.zeros(len(graph), np.int64)
    delay[entry] = _constants(issued.table, gaps_ns(issued), fit)
    target = np.repeat(delay, np.diff(graph.pred_ptr))
    return replace(graph, edge_delay_ns=target)


def gaps_ns(issued: OpGraph) -> I64:
    """Measured gap before each row, ns, shape ``(rows,)``; rounding may make it negative."""
    graph, entry = issued.graph, issued.entry_task
    waits = np.flatnonzero(np.diff(graph.pred_ptr))
    allowed = np.zeros(len(graph), np.int64)
    ready = graph.measured_end_ns[graph.pred]
    allowed[waits] = np.maximum.reduceat(ready, graph.pred_ptr[waits])
    gaps: I64 = issued.table.start_ns - allowed[entry]
    return gaps


def _constants(table: OpTable, gap_ns: I64, fit: np.ndarray) -> I64:
    """Gap of each row: the median of its worker's, else of all workers', else none."""
    kinds = len(table.operations)
    first = np.diff(table.slot, prepend=-1) != 0
    before = np.where(first, kinds, np.append(0, table.op[:-1]))
    for_all, _ = packed((before, table.op))
    for_worker, _ = packed((table.dp, table.stage, before, table.op))
    constant, known = _medians(for_worker, gap_ns, fit)
    other, _ = _medians(for_all, gap_ns, fit)
    return np.where(known, constant, other)


def _medians(key: I64, value: I64, fit: np.ndarray) -> tuple[I64, np.ndarray]:
    """Median over the fitted rows with the same key (0 for none), and whether there was one."""
    order = np.lexsort((value[fit], key[fit]))
    keys, values = key[fit][order], value[fit][order]
    found, low = np.unique(keys, return_index=True)
    middle = values[(low + np.append(low[1:], len(keys))) // 2]
    at = np.minimum(np.searchsorted(found, key), len(found) - 1)
    known = found[at] == key
    return np.where(known, middle[at], 0), known


def _span(start_ns: I64, end_ns: I64, first_row: I64) -> I64:
    """Last end minus first start of each step, ns."""
    span: I64 = np.maximum.reduceat(end_ns, first_row) - np.minimum.reduceat(start_ns, first_row)
    return span
