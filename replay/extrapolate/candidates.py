"""Which layouts there are for a model on so many GPUs, and which of them fit the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec

from foretrace.replay.cluster import Cluster
from foretrace.replay.extrapolate.job import schedule_of_layout
from foretrace.replay.extrapolate.predict import layout_memory, memory_verdict
from foretrace.replay.layout import Layout, check_layout, stage_layers
from foretrace.replay.model import Model
from foretrace.traces.errors import LayoutError

SEARCHED = ("tp", "cp", "pp", "virtual", "ep", "etp", "micro_batch", "zero", "recompute")
"""What a sweep varies, in the order in which it is shown."""
_MICRO_BATCHES = (1, 2, 4, 8)
_LONG = 8192  # tokens of a context-parallel rank that are worth splitting


@dataclass(frozen=True, slots=True)
class Candidates:
    """Layouts to predict.

    Attributes:
        layouts: those that can be and fit, in the order of the search.
        invalid: combinations that cannot be: numbers that do not divide each other or do not
            fit the schedule.
        pruned: layouts that do not fit the memory, by the largest part of what they hold.
    """

    layouts: tuple[Layout, ...]
    invalid: int
    pruned: Mapping[str, int]


def choices(model: Model, cluster: Cluster, gpus: int, base: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a sweep tries where nothing else is asked for.

    Tensor-parallel groups stay on a node. A sequence is split no finer than 8,192 tokens. Both
    ZeRO 1 and 3 are tried (0 and 2 send as much and hold more), and recomputing nothing, all, and
    attention alone where it writes its scores. Experts are whole or split as attention is.

    Args:
        model: the model.
        cluster: the machine.
        gpus: ranks.
        base: values of the layout that are given.
    """
    seq = int(base.get("seq", model.seq))
    sizes = _divisors(gpus)
    tp = [n for n in sizes if n <= cluster.gpus_per_node and model.heads % n == 0]
    experts = [n for n in sizes if model.experts and model.experts % n == 0]
    selective = () if base.get("flash", True) else ("selective",)
    return {
        "tp": tp,
        "cp": [n for n in sizes if n == 1 or (seq % n == 0 and seq // n >= _LONG)],
        "pp": [n for n in sizes if n <= model.layers],
        "virtual": [n for n in _divisors(model.layers) if n <= 8],
        "ep": experts or [1],
        "etp": sorted({1, *tp}) if model.experts else [1],
        "micro_batch": _MICRO_BATCHES,
        "zero": (1, 3),
        "recompute": ("none", *selective, "full"),
    }


def candidates(
    model: Model, cluster: Cluster, gpus: int, base: Mapping[str, Any],
    tried: Mapping[str, Any],
) -> Candidates:  # fmt: skip
    """All valid layouts of some values, without those that do not fit the memory.

    Args:
        model: the model.
        cluster: the machine.
        gpus: ranks of the job.
        base: values of the layout that do not change.
        tried: for each name of ``SEARCHED`` the values that are tried.

    Raises:
        LayoutError: a value of the base that no layout has.
    """
    found, invalid = [], 0
    pruned: Counter[str] = Counter()
    schedules: dict[tuple[object, ...], bool] = {}
    for values in _combinations(tried, gpus):
        try:
            layout = msgspec.convert({**base, **values}, Layout)
        except msgspec.ValidationError as error:
            raise LayoutError(f"layout: {error}") from error
        if not _valid(model, layout, schedules):
            invalid += 1
            continue
        layers = stage_layers(model, layout)
        verdict = memory_verdict(model, layout, layers, cluster)
        if verdict is not None and not verdict.fits:
            memory = layout_memory(model, layout, layers)
            terms = {name: getattr(memory, name)[verdict.stage] for name in memory.__slots__}
            pruned[max(terms, key=lambda name: float(terms[name]))] += 1
            continue
        found.append(layout)
    return Candidates(tuple(found), invalid, dict(pruned.most_common()))


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]


def _combinations(tried: Mapping[str, Any], gpus: int) -> Iterator[dict[str, Any]]:
    """Combinations that use all GPUs and differ in what they do."""
    for values in product(*(tried[name] for name in SEARCHED)):
        split = dict(zip(SEARCHED, values, strict=True))
        dp, rest = divmod(gpus, split["tp"] * split["cp"] * split["pp"])
        if rest or not dp or (split["pp"] == 1 and split["virtual"] > 1):
            continue
        if split["etp"] not in (1, split["tp"]):
            continue
        yield {**split, "dp": dp}


def _valid(model: Model, layout: Layout, schedules: dict[tuple[object, ...], bool]) -> bool:
    try:
        check_layout(model, layout)
    except LayoutError:
        return False
    if layout.virtual > 1 and model.layers % layout.stages:
        return False
    key = (layout.pp, layout.micro_batches, layout.virtual)
    if key not in schedules:
        try:
            schedule_of_layout(layout)
            schedules[key] = True
        except LayoutError:
            schedules[key] = False
    return schedules[key]
