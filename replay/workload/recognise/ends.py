"""What stands before and behind the layers of a pass, and behind the last pass of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.recognise.chain import P2P
from foretrace.replay.workload.recognise.layers import Job
from foretrace.replay.workload.recognise.passes import Pass
from foretrace.replay.workload.recognise.rows import GAPS, Row, Talk, work_row
from foretrace.replay.workload.recognise.weave import beside_of, weave
from foretrace.traces.schema import COLLECTIVE_KINDS


@dataclass(frozen=True, slots=True)
class Finish:
    """End of a step, behind the last pass; medians over steps, ns.

    Attributes:
        work_ns: computations of the main stream.
        gap_ns: idle time of the device, up to the end of the step.
        talks: (what, time) of communication that is neither gradients nor parameters nor the
            norm over all ranks.
    """

    work_ns: float
    gap_ns: float
    talks: list[tuple[Talk, float]]

    def total_ns(self, groups: set[str]) -> float:
        """All of it, with the communication of some kinds of groups."""
        sent = sum(ns for talk, ns in self.talks if talk.group in groups)
        return self.work_ns + self.gap_ns + sent


def edge(job: Job, passes: list[Pass], behind: bool, virtual: int) -> list[Row]:
    """Operations before (or behind) the layers of passes, means over micro-batches.

    Passes may differ: the first one of a step clears gradients, and of a rank's several stages
    one at most is at an end of the model. What only some do counts by its share. As in layers, of
    the ranks of a tensor-parallel group the slowest one counts.

    Args:
        job: the job.
        passes: passes of one phase and stage.
        behind: what stands behind the layers instead of before them.
        virtual: stages of a pipeline rank.
    """
    if not passes:
        return []
    stretches = [(p, _places(job, p, behind)) for p in passes]
    slowest = _slowest(job, stretches)
    mine = [s for s in stretches if job.rank_in.get(job.chains[s[0].chain].rank, 0) == slowest]
    mine.sort(key=lambda s: -len(s[1]))
    backward = passes[0].backward
    start = Phase.INPUT if backward else Phase.FORWARD
    total: dict[Hashable, float] = {}
    found: dict[Hashable, tuple[Pass, int]] = {}
    gap = 0.0
    for p, places in mine:
        chain = job.chains[p.chain]
        gap += float(chain.gap_ns[places].sum())
        for key, place in zip(_keys(job, p, places), places, strict=True):
            total[key] = total.get(key, 0.0) + float(chain.dur_ns[place])
            found.setdefault(key, (p, place))
    if not total and not gap:
        return []
    share = virtual / len(mine)
    rows = _rows(job, mine[0], found, {k: ns * share for k, ns in total.items()}, start)
    return [Row(GAPS, start, gap * share), *rows]


def _places(job: Job, p: Pass, behind: bool) -> list[int]:
    first, stop = p.layers_at
    begin, end = (stop, p.end) if behind else (p.begin, first)
    return (np.flatnonzero(job.counts[p.chain][begin:end]) + begin).tolist()


def _slowest(job: Job, stretches: list[tuple[Pass, list[int]]]) -> int:
    """Number within tensor-parallel groups of the ranks that take longest."""
    times: dict[int, list[float]] = {}
    for p, places in stretches:
        chain = job.chains[p.chain]
        own = [c for c in places if chain.main[c]]
        where = job.rank_in.get(chain.rank, 0)
        taken = chain.dur_ns[own].sum() + chain.gap_ns[places].sum()
        times.setdefault(where, []).append(float(taken))
    return max(times, key=lambda where: float(np.mean(times[where])))


def _keys(job: Job, p: Pass, places: list[int]) -> list[Hashable]:
    """What each operation is, and which of its kind it is."""
    chain = job.chains[p.chain]
    seen: Counter[Hashable] = Counter()
    keys: list[Hashable] = []
    for place in places:
        c = int(chain.collective[place])
        what: Hashable = job.talk(c) if c >= 0 else int(chain.token[place])
        keys.append((what, seen[what]))
        seen[what] += 1
    return keys


def _rows(
    job: Job, model: tuple[Pass, list[int]], found: dict[Hashable, tuple[Pass, int]],
    ns: dict[Hashable, float], phase: Phase,
) -> list[Row]:  # fmt: skip
    """Rows in the order of one pass; what other passes have on top stands in front."""
    p, places = model
    keys = _keys(job, p, places)
    rows = {key: _row(job, *found[key], ns[key], phase) for key in found}
    extra = [rows[key] for key in found if key not in set(keys)]
    own = [key for key in keys if rows[key].talk is None]
    talks = [key for key in keys if rows[key].talk is not None]
    chain = job.chains[p.chain]
    at = dict(zip(keys, places, strict=True))
    base = [rows[key] for key in own]
    if not talks:
        return extra + base
    where = np.array([at[key] for key in talks])
    place, shared = beside_of(chain, where, np.array([at[key] for key in own], np.int64))
    return extra + weave(base, [rows[key] for key in talks], place, shared)


def _row(job: Job, p: Pass, place: int, ns: float, phase: Phase) -> Row:
    chain = job.chains[p.chain]
    c = int(chain.collective[place])
    if c >= 0:
        talk = job.talk(c)
        name = f"{COLLECTIVE_KINDS[talk.collective]} {talk.group}"
        return Row(name, phase, ns, talk=talk)
    return Row(job.labels[chain.token[place]], phase, ns, work_row(chain.work, place))


def finish(job: Job) -> Finish:
    """What ranks do behind their last pass.

    Computations and gaps are those of the rank whose last pass ends last in a step: the others
    may wait for it, and a host that waits shows as a gap.
    """
    talks: dict[Talk, list[float]] = {}
    latest: dict[int, tuple[int, int]] = {}  # step -> (end of the last pass, chain)
    kinds = job.graph.collectives.kind
    for number, (chain, begin) in enumerate(zip(job.chains, job.passes.tail, strict=True)):
        last = int(chain.end_ns_of[:begin].max(initial=chain.begin_ns))
        latest[chain.step] = max(latest.get(chain.step, (last, number)), (last, number))
        behind = np.arange(begin, len(chain))
        for place in behind[chain.collective[behind] >= 0].tolist():
            c = int(chain.collective[place])
            group = job.talks.of(job.graph, c)
            if int(kinds[c]) in P2P or job.talks.is_state(job.graph, c) or group == "world":
                continue
            talks.setdefault(job.talk(c), []).append(float(chain.dur_ns[place]))
    work, gap = [], []
    for _, number in latest.values():
        chain, begin = job.chains[number], job.passes.tail[number]
        work.append(float(chain.dur_ns[begin:][chain.main[begin:]].sum()))
        gap.append(float(chain.gap_ns[begin:].sum()) + chain.tail_ns)
    middle = [(talk, float(np.median(ns))) for talk, ns in talks.items()]
    return Finish(float(np.median(work)), float(np.median(gap)), _distinct(middle))


def _distinct(talks: list[tuple[Talk, float]]) -> list[tuple[Talk, float]]:
    """One of each kind and group: ranks of different stages send different sizes."""
    longest: dict[tuple[int, str], tuple[Talk, float]] = {}
    for talk, ns in talks:
        key = (talk.collective, talk.group)
        if key not in longest or ns > longest[key][1]:
            longest[key] = (talk, ns)
    return list(longest.values())
