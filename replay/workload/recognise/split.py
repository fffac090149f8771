"""How the recorded job was split: stages, micro-batches, schedule, parallel dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.replay.graph import JobGraph
from foretrace.replay.schedule.named import named_schedule
from foretrace.replay.schedule.order import Phase
from foretrace.replay.workload.recognise.chain import Chain
from foretrace.replay.workload.recognise.passes import Pass, Passes
from foretrace.replay.workload.recognise.talks import Talks, pipelines
from foretrace.traces.errors import LayoutError

_NAMES = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True, slots=True)
class Split:
    """Stages and micro-batches.

    Attributes:
        stage: rank -> pipeline rank.
        layers: layers that each pipeline rank holds, all its stages together.
        micro_batches: micro-batches of a step on each rank.
        virtual: stages of a pipeline rank.
        schedule: name of the schedule that the recorded order fits.
        fits: share of the passes that stand where the schedule has them.
    """

    stage: dict[int, int]
    layers: tuple[int, ...]
    micro_batches: int
    virtual: int
    schedule: str
    fits: float


def find_split(graph: JobGraph, chains: Sequence[Chain], passes: Passes) -> Split:
    """Stages by the order in which the ranks of a pipeline begin; the rest by counting.

    Raises:
        LayoutError: ranks or steps disagree about the number of passes or layers.
    """
    stage = _stages(graph, chains, passes)
    pp = max(stage.values(), default=0) + 1
    count = _agreed(passes, chains, len, "forward passes in a step")
    _check_backward(chains, passes)
    virtual = _virtual(chains, passes, stage, count, pp)
    layers = tuple(
        _agreed(
            passes, chains, lambda ps: sum(len(p.layers) for p in ps) * virtual // len(ps),
            f"layers of pipeline rank {s}", {r for r, where in stage.items() if where == s},
        )
        for s in range(pp)
    )  # fmt: skip
    orders: dict[int, list[bool]] = {}
    first = {chains[p.chain].rank: p.chain for p in reversed(passes.passes)}
    for rank, chain in sorted(first.items(), reverse=True):
        orders[stage[rank]] = [p.backward for p in passes.passes if p.chain == chain]
    name, fits = _schedule(orders, pp, count // virtual, virtual)
    return Split(stage, layers, count // virtual, virtual, name, fits)


def _check_backward(chains: Sequence[Chain], passes: Passes) -> None:
    """Refuse passes of a rank in which different numbers of layers were found."""
    seen: dict[int, dict[bool, set[int]]] = {}
    for p in passes.passes:
        seen.setdefault(p.chain, {False: set(), True: set()})[p.backward].add(len(p.layers))
    for chain, found in seen.items():
        if found[False] != found[True]:
            ahead, back = (sorted(found[b]) for b in (False, True))
            raise LayoutError(
                f"{ahead} layers in the forward passes of rank {chains[chain].rank} and {back} in "
                "the backward ones; something that not every layer runs stands between them"
            )


def _stages(graph: JobGraph, chains: Sequence[Chain], passes: Passes) -> dict[int, int]:
    begins: dict[int, int] = {}
    for p in passes.passes:
        chain = chains[p.chain]
        if not p.backward:
            at = int(chain.start_ns[p.main[0]])
            begins[chain.rank] = min(begins.get(chain.rank, at), at)
    stage = dict.fromkeys(begins, 0)
    for line in pipelines(graph):
        here = sorted((r for r in line if r in begins), key=lambda r: begins[r])
        stage.update({rank: number for number, rank in enumerate(here)})
    return stage


def _agreed(
    passes: Passes, chains: Sequence[Chain], value: Callable[[list[Pass]], int], what: str,
    ranks: set[int] | None = None,
) -> int:  # fmt: skip
    """A number that all ranks and steps must have."""
    by_chain: dict[int, list[Pass]] = {}
    for p in passes.passes:
        if not p.backward and (ranks is None or chains[p.chain].rank in ranks):
            by_chain.setdefault(p.chain, []).append(p)
    found = {chain: value(ps) for chain, ps in by_chain.items()}
    numbers = sorted(set(found.values()))
    if len(numbers) != 1:
        a, b = (next(c for c, v in found.items() if v == n) for n in (numbers[0], numbers[-1]))
        raise LayoutError(
            f"{what}: {numbers[0]} on rank {chains[a].rank} step {chains[a].step}, {numbers[-1]} "
            f"on rank {chains[b].rank} step {chains[b].step}; expected equal numbers"
        )
    return int(numbers[0])


def _virtual(
    chains: Sequence[Chain], passes: Passes, stage: dict[int, int], count: int, pp: int
) -> int:
    """Stages of a rank: only passes of the model's first stage begin with the embedding.

    Before the layers of other stages of the same rank stands less work.
    """
    if pp == 1:
        return 1
    first = next(p.chain for p in passes.passes if stage[chains[p.chain].rank] == 0)
    mine = [p for p in passes.passes if p.chain == first and not p.backward]
    chain = chains[first]
    work = np.array([chain.dur_ns[p.main[: p.layers[0, 0]]].sum() for p in mine], np.float64)
    with_embedding = int((work > work.max() / 2).sum()) if work.max() > 0 else count
    return count // with_embedding if count % with_embedding == 0 else 1


def _schedule(
    orders: dict[int, list[bool]], pp: int, micro_batches: int, virtual: int
) -> tuple[str, float]:
    """The named schedule whose phases fit the recorded order best."""
    best = ("1f1b", -1.0)
    for name in _NAMES:
        if (name == "interleaved") != (virtual > 1):
            continue
        try:
            schedule = named_schedule(name, pp, micro_batches, virtual)
        except LayoutError:
            continue
        hits, total = 0, 0
        for rank, order in orders.items():
            mine = schedule.phase[schedule.rank == rank] != Phase.FORWARD
            total += max(len(order), len(mine))
            hits += sum(a == bool(b) for a, b in zip(order, mine, strict=False))
        share = hits / max(total, 1)
        best = max(best, (name, share), key=lambda b: b[1])
    return best


def tensor_numbers(talks: Talks, ranks: Sequence[int]) -> dict[int, int]:
    """Number of each rank within its tensor-parallel group, 0 for those of none."""
    result = dict.fromkeys(ranks, 0)
    for members, kind in talks.kind.items():
        if kind == "tp":
            result.update({rank: place for place, rank in enumerate(members)})
    return result
