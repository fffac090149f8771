"""Which tasks of a job graph a selector means, and what there is where it means none.

Names are matched once per distinct name, never per task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.replay.scenario import PATTERN_KEYS, Rule, Term, parse_selector
from foretrace.traces.errors import ScenarioError
from foretrace.traces.schema import COLLECTIVE_KINDS

Mask = NDArray[np.bool_]

KIND_TASKS = {
    "compute": (TaskKind.KERNEL,),
    "comm": (TaskKind.COMM,),
    "copy": (TaskKind.MEMCPY, TaskKind.MEMSET),
    "host": (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC),
    "launch": (TaskKind.CALL,),
    "sync": (TaskKind.SYNC,),
    "stall": (TaskKind.STALL,),
    "skew": (TaskKind.SKEW,),
    "kernel": (TaskKind.KERNEL,),
    "memcpy": (TaskKind.MEMCPY,),
    "memset": (TaskKind.MEMSET,),
}
"""The tasks that each value of ``kind:`` stands for."""

_HOST = (TaskKind.HOST, TaskKind.CALL, TaskKind.SYNC, TaskKind.STALL)
_DEVICE = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.COMM)
_NAMED = {"name": (*_HOST, *_DEVICE), "kernel": _DEVICE, "op": _HOST}
_SHOWN = 6  # names or numbers listed in an error
_WIDTH = 60  # characters of a name shown in an error


def selected(graph: JobGraph, text: str) -> Mask:
    """Which tasks a selector means, shape ``(n,)``.

    Args:
        graph: the job graph.
        text: such as ``kernel:*gemm*,rank:3``.

    Raises:
        ScenarioError: the text cannot be understood, or no task fits.
    """
    return select(graph, parse_selector(text))


def selected_with_arrivals(graph: JobGraph, text: str) -> Mask:
    """Like :func:`selected`, with the arrivals at the communication operations that it means."""
    kind = np.where(graph.kind == TaskKind.ARRIVE, np.int8(TaskKind.COMM), graph.kind)
    return selected(replace(graph, kind=kind), text)


def select(graph: JobGraph, rule: Rule) -> Mask:
    """Which tasks a rule means, shape ``(n,)``.

    Tasks without a duration of their own (arrivals, rendezvous, step marks) never belong
    to it; how late a lane enters the window (skew) only when asked for by ``kind:skew``.

    Raises:
        ScenarioError: no task fits; says which term matches nothing, and what there is.
    """
    mask = _workload(graph, rule)
    for term in rule.terms:
        fits = _fits(graph, term)
        if not fits.any():
            raise ScenarioError(_nothing(graph, rule, term))
        mask &= ~fits if term.negate else fits
    if not mask.any():
        raise ScenarioError(
            f"what-if {rule.text!r}: each part matches tasks, but no task matches all of them"
        )
    return mask


def _workload(graph: JobGraph, rule: Rule) -> Mask:
    kinds = list(_NAMED["name"])
    if any(t.key == "kind" and "skew" in t.values and not t.negate for t in rule.terms):
        kinds.append(TaskKind.SKEW)
    return _of_kinds(graph, kinds)


def _of_kinds(graph: JobGraph, kinds: Iterable[TaskKind]) -> Mask:
    table = np.zeros(len(TaskKind), dtype=bool)
    table[list(kinds)] = True
    mask: Mask = table[graph.kind]
    return mask


def _fits(graph: JobGraph, term: Term) -> Mask:
    """Tasks for which the term holds, its negation left out."""
    if term.key in PATTERN_KEYS:
        return _by_name(graph, term)
    if term.key == "kind":
        mask = _of_kinds(graph, {kind for value in term.values for kind in KIND_TASKS[value]})
        return mask | host_computation(graph) if "compute" in term.values else mask
    if term.key == "collective":
        wanted = [COLLECTIVE_KINDS.index(value) for value in term.values]
        return _by_collective(graph, np.isin(graph.collectives.kind, wanted))
    if term.key == "group":
        wanted_ranks = term.numbers
        same = np.array([frozenset(ranks) == wanted_ranks for ranks in graph.groups], dtype=bool)
        return _by_collective(graph, _take(same, graph.collectives.group))
    return np.isin(_numbers(graph, term.key), list(term.numbers))


def host_computation(graph: JobGraph) -> Mask:
    """Work of host threads on ranks without a device: there the operators are the computation."""
    device = graph.lanes.device[graph.lane] >= 0
    with_device = np.unique(graph.rank[(graph.lane >= 0) & device])
    result: Mask = (graph.kind == TaskKind.HOST) & ~np.isin(graph.rank, with_device)
    return result


def _by_name(graph: JobGraph, term: Term) -> Mask:
    patterns = [_pattern(value, term) for value in term.values]
    hit = np.array([any(p.search(name) for p in patterns) for name in graph.names], dtype=bool)
    return _take(hit, graph.name) & _of_kinds(graph, _NAMED[term.key])


def _pattern(value: str, term: Term) -> re.Pattern[str]:
    """``/regex/``, a glob over the whole name, or a part of the name; case does not matter."""
    if len(value) > 2 and value.startswith("/") and value.endswith("/"):
        try:
            return re.compile(value[1:-1], re.IGNORECASE)
        except re.error as error:
            raise ScenarioError(
                f"what-if {term.text!r}: {value} is no regular expression: {error}"
            ) from None
    if "*" in value or "?" in value:
        text = re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")
        return re.compile(rf"\A{text}\Z", re.IGNORECASE | re.DOTALL)
    return re.compile(re.escape(value), re.IGNORECASE)


def _by_collective(graph: JobGraph, wanted: Mask) -> Mask:
    return _take(wanted, graph.collective) & _of_kinds(graph, (TaskKind.COMM,))


def _take(table: Mask, index: NDArray[np.integer]) -> Mask:
    """``table[index]``, False where the index is -1."""
    mask: Mask = np.append(table, False)[index]
    return mask


def _numbers(graph: JobGraph, key: str) -> NDArray[np.integer]:
    """Rank, step or device stream of each task; -1 for none."""
    if key == "rank":
        return graph.rank
    if key == "step":
        return graph.step
    streams = np.where(graph.lanes.device >= 0, graph.lanes.number, -1)
    numbers: I64 = np.append(streams, -1)[graph.lane]
    return numbers


def _nothing(graph: JobGraph, rule: Rule, term: Term) -> str:
    text = f"what-if {rule.text!r}: nothing matches {term.text!r}; "
    if term.key == "kind":
        return text + "kinds in this trace: " + _listing(_kinds_present(graph))
    if term.key == "collective":
        present = np.unique(graph.collectives.kind)
        return text + "in this trace: " + _listing(COLLECTIVE_KINDS[k] for k in present)
    if term.key == "group":
        groups = sorted({tuple(sorted(graph.groups[g])) for g in set(graph.collectives.group)})
        return text + "groups: " + _listing(number_ranges(group) for group in groups)
    if term.key in PATTERN_KEYS:
        if "," in term.text:
            text += "a comma after a name is part of it, write '|' for either of two; "
        return text + "most time goes to: " + _listing(_costliest_names(graph, _NAMED[term.key]))
    numbers = np.unique(_numbers(graph, term.key))
    return text + f"{term.key}s in this trace: " + number_ranges(numbers[numbers >= 0].tolist())


def _kinds_present(graph: JobGraph) -> list[str]:
    present = set(np.unique(graph.kind).tolist())
    return [word for word, kinds in KIND_TASKS.items() if present & set(kinds)]


def _costliest_names(graph: JobGraph, kinds: Iterable[TaskKind]) -> list[str]:
    mask = _of_kinds(graph, kinds)
    total = np.bincount(graph.name[mask], graph.dur_ns[mask], minlength=len(graph.names))
    order = np.argsort(-total, kind="stable")
    return [graph.names[i] for i in order[: _SHOWN + 1] if total[i] > 0]


def _listing(items: Iterable[str]) -> str:
    shown = list(items)
    if not shown:
        return "none"
    text = ", ".join(s if len(s) <= _WIDTH else s[: _WIDTH - 1] + "…" for s in shown[:_SHOWN])
    return text + (", …" if len(shown) > _SHOWN else "")


def number_ranges(numbers: Iterable[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3, 7: as a selector takes it."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ",".join(shown[: 2 * _SHOWN]) + (",…" if len(shown) > 2 * _SHOWN else "") or "none"
