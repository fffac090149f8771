"""Which groups of ranks a job has, and what each is for, from what they send and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from foretrace.replay.graph import I64, JobGraph
from foretrace.replay.workload.recognise.chain import P2P, Chain
from foretrace.replay.workload.recognise.passes import Passes
from foretrace.traces.schema import COLLECTIVE_KINDS

_BIG = 1 << 20
"""Bytes from which a data-parallel message counts as gradients or parameters."""

_P2P = {COLLECTIVE_KINDS[k] for k in P2P}
Members = tuple[int, ...]


@dataclass(slots=True)
class Use:
    """Kinds of collectives of a family of groups, by where they stand."""

    forward: set[str] = field(default_factory=set)
    backward: set[str] = field(default_factory=set)
    outside: dict[str, int] = field(default_factory=dict)  # kind -> largest message


@dataclass(frozen=True, slots=True)
class Talks:
    """Groups of a job.

    Attributes:
        kind: members -> one of ``GROUP_KINDS``, or ``world``.
        size: kind -> members of a group.
        sequence_parallel: whether tensor-parallel ranks scatter in forward passes.
        sharded: parameters are gathered in every forward pass.
        scattered: gradients are reduced and scattered instead of reduced.
    """

    kind: dict[Members, str]
    size: dict[str, int]
    sequence_parallel: bool
    sharded: bool
    scattered: bool

    def of(self, graph: JobGraph, collective: int) -> str:
        """Kind of group of a collective."""
        return self.kind.get(graph.groups[graph.collectives.group[collective]], "world")

    def is_state(self, graph: JobGraph, collective: int) -> bool:
        """Whether it moves gradients or parameters, which follow from the layout."""
        kind = self.of(graph, collective)
        big = int(graph.collectives.bytes[collective]) >= _BIG
        return kind == "shard" or (kind in ("dp", "replica", "edp") and big)


def transfers(graph: JobGraph, chain: Chain) -> I64:
    """Places of a chain's messages from rank to rank."""
    kind = graph.collectives.kind
    if not len(kind):
        return np.zeros(0, np.int64)
    p2p = (chain.collective >= 0) & np.isin(kind[np.maximum(chain.collective, 0)], P2P)
    return np.flatnonzero(p2p)


def find_talks(graph: JobGraph, chains: Sequence[Chain], passes: Passes, world: int) -> Talks:
    """Tell the groups apart.

    Tensor-parallel ranks sum activations within layers of forward passes; experts swap tokens;
    sharded parameters are only gathered there. Messages between passes are of the pipeline, and
    large sums outside layers, or within those of backward passes alone, are data-parallel.

    Args:
        graph: the job graph.
        chains: what each rank did.
        passes: passes found in them.
        world: ranks of the job.
    """
    uses = _uses(graph, chains, passes)
    kind_of: dict[tuple[int, ...], str] = {}
    for family, use in uses.items():
        kind = _inside(use) or ("pp" if set(use.outside) & _P2P else "")
        if kind:
            kind_of[family] = kind
    kinds = {m: kind_of.get(_family(m), "") for m in graph.groups}
    sizes = {kind: max(len(m) for m in kinds if kinds[m] == kind) for kind in set(kinds.values())}
    known = {m for m, kind in kinds.items() if kind}
    stages = max((len(line) for line in pipelines(graph)), default=1)
    each = world // max(sizes.get("tp", 1) * stages, 1)
    for members in graph.groups:
        if members not in known:
            kinds[members] = _outside(uses.get(_family(members), Use()), members, each, kinds)
    sizes = {kind: max(len(m) for m in kinds if kinds[m] == kind) for kind in set(kinds.values())}
    sizes["pp"] = stages
    tensor = [uses[_family(m)] for m in graph.groups if kinds[m] == "tp" and _family(m) in uses]
    data = [uses[_family(m)] for m in graph.groups if kinds[m] == "dp" and _family(m) in uses]
    return Talks(
        kinds,
        sizes,
        any("reduce_scatter" in use.forward for use in tensor),
        "shard" in kinds.values(),
        any("reduce_scatter" in {*use.backward, *use.outside} for use in data),
    )


def _uses(graph: JobGraph, chains: Sequence[Chain], passes: Passes) -> dict[Members, Use]:
    uses: dict[Members, Use] = {}
    inside: list[set[int]] = [set() for _ in chains]
    table = graph.collectives
    for p in passes.passes:
        chain = chains[p.chain]
        begin, end = p.layers_at
        for place in (np.flatnonzero(chain.collective[begin:end] >= 0) + begin).tolist():
            c = int(chain.collective[place])
            use = uses.setdefault(_family(graph.groups[table.group[c]]), Use())
            (use.backward if p.backward else use.forward).add(COLLECTIVE_KINDS[table.kind[c]])
            inside[p.chain].add(place)
    for chain, seen in zip(chains, inside, strict=True):
        for place in np.flatnonzero(chain.collective >= 0).tolist():
            if place in seen:
                continue
            c = int(chain.collective[place])
            use = uses.setdefault(_family(graph.groups[table.group[c]]), Use())
            kind = COLLECTIVE_KINDS[table.kind[c]]
            use.outside[kind] = max(use.outside.get(kind, 0), int(table.bytes[c]))
    return uses


def _family(members: Members) -> Members:
    """Equal for groups that are laid out alike: size and distances."""
    return (len(members), *(b - a for a, b in pairwise(members)))


def _inside(use: Use) -> str:
    """Kind of group by what it does within layers, "" if that tells nothing."""
    both = use.forward | use.backward
    if "all_to_all" in both:
        return "ep"
    if {"all_reduce", "reduce_scatter"} & use.forward:
        return "tp"
    if use.forward == {"all_gather"}:
        return "shard"
    if {"all_reduce", "reduce_scatter"} & use.backward:
        return "dp"
    return ""


def _outside(use: Use, members: Members, each: int, kinds: dict[Members, str]) -> str:
    alike = [kind for other, kind in kinds.items() if kind and set(other) == set(members)]
    if alike:
        return alike[0]
    big = max((size for kind, size in use.outside.items() if kind != "broadcast"), default=0)
    crosses = any(
        kind == "pp" and len(set(other) & set(members)) > 1 for other, kind in kinds.items()
    )
    if crosses:
        return "pp" if len(members) <= 2 else "world"
    if len(members) == each and (big or use.outside):
        return "dp"
    return "world"


def pipelines(graph: JobGraph) -> list[list[int]]:
    """Ranks that messages connect, each ascending."""
    table = graph.collectives
    of = np.unique(table.group[np.isin(table.kind, P2P)]).tolist()
    line: dict[int, set[int]] = {}
    for group in of:
        joined = set(graph.groups[group])
        for rank in graph.groups[group]:
            joined |= line.get(rank, set())
        for rank in joined:
            line[rank] = joined
    return [list(ranks) for ranks in sorted({tuple(sorted(ranks)) for ranks in line.values()})]
