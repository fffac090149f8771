"""What was recognised in a trace, and how much of the device's time that explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrace.replay.workload.recognise.layers import Job, Layer
from foretrace.replay.workload.recognise.split import Split


@dataclass(frozen=True, slots=True)
class Report:
    """Counts and shares.

    Attributes:
        ranks: ranks that were recorded.
        steps: steps of a rank.
        passes: (forward, backward) passes found on all ranks.
        layers: layers of each pipeline rank.
        occurrences: occurrences of a layer, (forward, backward).
        operations: computations and communication operations of a layer, by phase.
        schedule_fits: share of the passes that stand where the named schedule has them.
        groups: kind of group -> number of such groups.
        explained: part of the step, in names of what stands there -> share of the device's
            time without waiting.
        residual: mean layer over the sum of its medians, less one, (forward, backward); of the
            pipeline rank where it is largest.
    """

    ranks: int
    steps: int
    passes: tuple[int, int]
    layers: tuple[int, ...]
    occurrences: tuple[int, int]
    operations: tuple[int, int]
    schedule_fits: float
    groups: dict[str, int]
    explained: dict[str, float]
    residual: tuple[float, float]

    @property
    def share(self) -> float:
        """Share of the device's time that blocks, transfers, gradients and optimizer explain."""
        return sum(v for name, v in self.explained.items() if name not in _UNEXPLAINED)


_UNEXPLAINED = ("other streams", "between stages", "other groups")


def make_report(job: Job, split: Split, layers: Sequence[tuple[Layer, Layer]]) -> Report:
    """Add up what belongs to what.

    Args:
        job: the job.
        split: stages and micro-batches.
        layers: forward and backward phase of a layer of each pipeline rank.
    """
    backs = [p.backward for p in job.passes.passes]
    return Report(
        ranks=len(split.stage),
        steps=len({c.step for c in job.chains}),
        passes=(backs.count(False), backs.count(True)),
        layers=split.layers,
        occurrences=_both(layers, lambda layer: layer.occurrences, sum),
        operations=_both(layers, lambda layer: len(layer.rows) - 1, max),
        schedule_fits=split.fits,
        groups=dict(sorted(Counter(job.talks.kind.values()).items())),
        explained=_explained(job, split),
        residual=_both(layers, _residual, lambda values: max(values, key=abs)),
    )


def _both(
    layers: Sequence[tuple[Layer, Layer]], value: Callable[[Layer], Any],
    joined: Callable[[list[Any]], Any],
) -> tuple[Any, Any]:  # fmt: skip
    """A value of forward and of backward layers, of all pipeline ranks as one."""
    ahead, back = zip(*layers, strict=True)
    return joined([value(layer) for layer in ahead]), joined([value(layer) for layer in back])


def _residual(layer: Layer) -> float:
    middle = sum(row.measured_ns for row in layer.rows if row.talk is None)
    return float(layer.total_ns.mean() / max(middle, 1.0) - 1.0)


def _explained(job: Job, split: Split) -> dict[str, float]:
    last_stage = max(split.stage.values(), default=0)
    number = range(len(job.graph.collectives.kind))
    kind = np.array([job.talks.of(job.graph, c) for c in number] + [""], object)
    state = np.array([job.talks.is_state(job.graph, c) for c in number] + [False], np.bool_)
    total: Counter[str] = Counter()
    for n, chain in enumerate(job.chains):
        label = np.full(len(chain), "between stages", object)
        for p in job.passes.passes:
            if p.chain != n:
                continue
            if split.stage[chain.rank] in (0, last_stage):
                label[p.begin : p.end] = "embedding and head"
            label[slice(*p.layers_at)] = "layers"
        label[job.passes.tail[n] :] = "end of the step"
        talks, inside = chain.collective >= 0, label != "end of the step"
        label[~talks & ~chain.main] = "other streams"
        group = kind[chain.collective]
        label[talks & inside & (group == "world")] = "other groups"
        label[talks & inside & (group == "pp")] = "transfers"
        label[talks & state[chain.collective]] = "gradients and parameters"
        for name in dict.fromkeys(label.tolist()):
            total[name] += int(chain.dur_ns[label == name].sum())
    whole = max(sum(total.values()), 1)
    return {name: ns / whole for name, ns in total.most_common()}
