"""What a rank's device did in a step, one operation behind the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretrace.replay.build import Build
from foretrace.replay.build.columns import dictionary
from foretrace.replay.costs.kernel_class import KERNEL_CLASSES
from foretrace.replay.costs.kernel_table import KernelTable, read_kernels
from foretrace.replay.costs.kernel_work import Work, work_of
from foretrace.replay.graph import I64, JobGraph, TaskKind
from foretrace.traces.schema import COLLECTIVE_KINDS
from foretrace.traces.store import TraceSet

P2P = [COLLECTIVE_KINDS.index(kind) for kind in ("send", "recv", "send_recv")]
_WORK = (TaskKind.KERNEL, TaskKind.MEMCPY, TaskKind.MEMSET, TaskKind.COMM)
_ENGINE = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class Chain:
    """Device work of one rank in one step, by start; arrays of shape ``(n,)``.

    Attributes:
        rank: global rank.
        step: number of the step.
        begin_ns: the step's begin on the host, aligned clock.
        end_ns: the step's end on the host.
        busy_ns: when the device was taken up; communication waits from then on.
        start_ns: when the work began: communication begins when all members have arrived.
        end_ns_of: when it ended.
        dur_ns: duration, waiting excluded.
        gap_ns: time before it in which nothing of the rank occupied the device.
        token: equal for equal work: number in ``Tokens``.
        collective: index into the graph's collectives, -1 for computation.
        backward: launched by a thread that runs backward passes.
        main: on the stream with most computation.
        work: what computations have to do.
    """

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    busy_ns: I64
    start_ns: I64
    end_ns_of: I64
    dur_ns: I64
    gap_ns: I64
    token: I64
    collective: I64
    backward: NDArray[np.bool_]
    main: NDArray[np.bool_]
    work: Work

    def __len__(self) -> int:
        return len(self.dur_ns)

    @property
    def tail_ns(self) -> int:
        """From the end of the last work to the end of the step."""
        return max(self.end_ns - int(self.end_ns_of.max(initial=self.begin_ns)), 0)


@dataclass(slots=True)
class Tokens:
    """Kinds of work, numbered over all ranks.

    Attributes:
        ids: (name, operator, shapes) -> number.
    """

    ids: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def number(self, text: tuple[str, str, str]) -> int:
        """The number of a kind of work."""
        return self.ids.setdefault(text, len(self.ids))

    def labels(self) -> list[str]:
        """What to call each kind: its operator, else its kernel."""
        return [operator or _short(name) for name, operator, _ in self.ids]


def read_chains(trace: TraceSet, built: Build) -> tuple[list[Chain], Tokens]:
    """Chains of all ranks and steps, by rank and step.

    Args:
        trace: the trace set.
        built: its job graph.
    """
    tokens = Tokens()
    graph = built.graph
    arrived = _arrivals(graph)
    ranks = np.unique(graph.rank[graph.rank >= 0]).tolist()
    steps = graph.steps
    chains = []
    for rank in ranks:
        rows = np.flatnonzero((graph.rank == rank) & np.isin(graph.kind, _WORK))
        rows = rows[graph.event[rows] >= 0]
        if not len(rows):
            continue
        side = _Side(trace, rank, tokens)
        for mark in np.flatnonzero(steps.rank == rank).tolist():
            mine = rows[graph.step[rows] == steps.step[mark]]
            if len(mine):
                chains.append(_chain(graph, mine, arrived, side, mark))
    return chains, tokens


def _arrivals(graph: JobGraph) -> I64:
    """Of each communication task when its rank reached it; else the measured start."""
    arrived = graph.measured_start_ns.copy()
    ranks = int(graph.rank.max(initial=0)) + 1
    key = graph.collective.astype(np.int64) * ranks + graph.rank
    of = np.flatnonzero((graph.kind == TaskKind.ARRIVE) & (graph.collective >= 0))
    done = np.flatnonzero((graph.kind == TaskKind.COMM) & (graph.collective >= 0))
    if len(of):
        of = of[np.argsort(key[of], kind="stable")]
        at = np.minimum(np.searchsorted(key[of], key[done]), len(of) - 1)
        known = key[of[at]] == key[done]
        reached = graph.measured_start_ns[of[at[known]]]
        arrived[done[known]] = np.minimum(arrived[done[known]], reached)
    return arrived


class _Side:
    """What a rank's tables say of its device rows."""

    def __init__(self, trace: TraceSet, rank: int, tokens: Tokens) -> None:
        kernels = read_kernels(trace, rank)
        columns = ["kind", "name", "thread", "correlation", "fwd_thread"]
        table = trace.events(rank, columns=columns)
        kinds, words = dictionary(table["kind"])
        names, texts = dictionary(table["name"])
        self.count = len(table)
        place = np.full(self.count, -1, np.int64)
        place[kernels.event] = np.arange(len(kernels.event))
        self.kernel = place
        self.work = work_of(kernels)
        self.token = _tokens(kernels, names, texts, self.count, tokens)
        thread = table["thread"].to_numpy()
        correlation = table["correlation"].to_numpy()
        host = np.isin(kinds, [i for i, w in enumerate(words) if w == "host_op"])
        engine = np.isin(names, [i for i, t in enumerate(texts) if t.startswith(_ENGINE)])
        backs = host & (engine | (table["fwd_thread"].to_numpy() > 0)) & (thread >= 0)
        calls = np.isin(kinds, [i for i, w in enumerate(words) if w == "runtime"])
        at = np.flatnonzero(calls & (correlation > 0))
        launcher = np.full(int(correlation.max(initial=0)) + 1, -1, np.int64)
        launcher[correlation[at]] = thread[at]
        by = np.where(correlation > 0, launcher[np.maximum(correlation, 0)], -1)
        self.backward = np.isin(by, np.unique(thread[backs])) & (by >= 0)


def _tokens(
    kernels: KernelTable, names: np.ndarray, texts: list[str], count: int, tokens: Tokens
) -> I64:
    """Token of every event; copies and fills go by their names."""
    result = np.full(count, -1, np.int64)
    columns = (kernels.name, kernels.operator, kernels.shapes)
    codes = np.stack([np.asarray(c.codes, np.int64) for c in columns], axis=1)
    distinct, back = np.unique(codes, axis=0, return_inverse=True)
    found = [
        tokens.number((columns[0].values[a], columns[1].values[b], columns[2].values[c]))
        for a, b, c in distinct.tolist()
    ]
    result[kernels.event] = np.array(found or [0], np.int64)[back.reshape(-1)]
    rest = np.flatnonzero(result < 0)
    used, place = np.unique(names[rest], return_inverse=True)
    numbers = [tokens.number((texts[i], "", "")) for i in used.tolist()]
    result[rest] = np.array(numbers or [0], np.int64)[place.reshape(-1)]
    return result


def _chain(graph: JobGraph, rows: I64, arrived: I64, side: _Side, mark: int) -> Chain:
    rank = int(graph.rank[rows[0]])
    talks = graph.kind[rows] == TaskKind.COMM
    start, end = graph.measured_start_ns[rows], graph.measured_end_ns[rows]
    collective = np.where(talks, graph.collective[rows], -1).astype(np.int64)
    busy = arrived[rows]
    order = np.lexsort((~talks, busy, start))
    rows, busy, start, end = rows[order], busy[order], start[order], end[order]
    collective, talks = collective[order], talks[order]
    event = graph.event[rows]
    begin = int(graph.measured_start_ns[graph.steps.begin[mark]])
    kernel = side.kernel[event]
    work = side.work.only(np.maximum(kernel, 0)) if len(side.work) else _no_work(len(rows))
    work = _blanked(work, kernel < 0)
    return Chain(
        rank=rank,
        step=int(graph.steps.step[mark]),
        begin_ns=begin,
        end_ns=int(graph.measured_end_ns[graph.steps.end[mark]]),
        busy_ns=busy,
        start_ns=start,
        end_ns_of=end,
        dur_ns=graph.dur_ns[rows],
        gap_ns=_gaps(busy, end, begin),
        token=side.token[event],
        collective=collective,
        backward=side.backward[event],
        main=_main(graph, rows, talks),
        work=work,
    )


def _gaps(busy: I64, end: I64, begin: int) -> I64:
    """Idle time of the device before each piece of work."""
    order = np.argsort(busy, kind="stable")
    reach = np.maximum.accumulate(np.maximum(end[order], begin))
    before = np.append(begin, reach[:-1])
    result = np.empty(len(busy), np.int64)
    result[order] = np.maximum(busy[order] - before, 0)
    return result


def _main(graph: JobGraph, rows: I64, talks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    lane = graph.lane[rows]
    kernels = (graph.kind[rows] == TaskKind.KERNEL) & ~talks
    if not kernels.any():
        return np.asarray(kernels)
    time = np.bincount(lane[kernels], graph.dur_ns[rows][kernels].astype(np.float64))
    return np.asarray((lane == int(np.argmax(time))) & ~talks)


def _no_work(count: int) -> Work:
    zero = np.zeros(count)
    return Work(
        kind=np.full(count, KERNEL_CLASSES.index("other"), np.int8),
        dtype=np.full(count, "", np.str_),
        sides=np.zeros((count, 4)),
        causal=np.zeros(count, np.bool_),
        backward=np.zeros(count, np.bool_),
        flops=zero,
        bytes=zero,
    )


def _blanked(work: Work, mask: NDArray[np.bool_]) -> Work:
    """Nothing is known of the rows of a mask: copies and fills."""
    if not mask.any():
        return work
    empty = _no_work(len(work))
    columns: list[np.ndarray] = []
    for name in Work.__slots__:
        old, new = getattr(work, name), getattr(empty, name)
        wide = mask[:, None] if old.ndim == 2 else mask
        columns.append(np.where(wide, new, old))
    return Work(*columns)


def _short(name: str) -> str:
    """A kernel's name without types and arguments."""
    text = name.removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    return text.rsplit("::", 1)[-1] or name
