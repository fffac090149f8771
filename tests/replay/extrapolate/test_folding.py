"""Roles: one rank of each gives every rank's times, to the nanosecond."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replay.extrapolate.jobs import DENSE, H100, MIXTURE, job

from foretrace.replay.cluster import Tier
from foretrace.replay.engine import replay
from foretrace.replay.extrapolate.job import Extrapolated
from foretrace.replay.extrapolate.roles import fold
from foretrace.replay.layout import group_of
from foretrace.replay.model import Model

TAPERED = msgspec.structs.replace(
    H100,
    gpus_per_node=4,
    nics_per_node=2,
    tiers=(Tier(name="leaf", nodes=3, oversubscription=3.0),),
)


def end_of_ranks(job: Extrapolated) -> np.ndarray:
    """When each rank's step ends, and the sum of its tasks' starts, by role."""
    timeline = replay(job.graph)
    marks = job.graph.steps
    end = np.zeros(int(marks.rank.max()) + 1, np.int64)
    end[marks.rank] = timeline.end_ns[marks.end]
    starts = np.zeros_like(end)
    mine = np.isin(job.graph.rank, marks.rank) & (job.graph.rank >= 0)
    np.add.at(starts, job.graph.rank[mine], timeline.start_ns[mine])
    return np.stack([end, starts])


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_folded_and_whole_jobs_agree(data: st.DataObject) -> None:
    draw = data.draw
    model: Model = draw(st.sampled_from([DENSE, MIXTURE]))
    layout: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 2, 4])),
        "cp": draw(st.sampled_from([1, 2])),
        "dp": draw(st.sampled_from([1, 2, 4])),
        "pp": draw(st.sampled_from([1, 2, 4])),
        "zero": draw(st.sampled_from([0, 1, 3])),
        "overlap_pipeline": draw(st.booleans()),
        "overlap_parameters": draw(st.booleans()),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
    }
    stage = layout["tp"] * layout["cp"] * layout["dp"]
    if model is MIXTURE:
        layout["ep"] = draw(st.sampled_from([n for n in (1, 2, 4, 8) if stage % n == 0]))
    cluster = draw(st.sampled_from([H100, TAPERED]))
    slow = np.ones(stage * layout["pp"])
    for rank in draw(st.lists(st.integers(0, len(slow) - 1), max_size=3)):
        slow[rank] = draw(st.sampled_from([1.25, 1.5]))
    folded = job(model, cluster=cluster, slow=slow, **layout)
    whole = job(model, cluster=cluster, slow=slow, whole=True, **layout)
    by_role, by_rank = end_of_ranks(folded), end_of_ranks(whole)
    first = folded.roles.rank[folded.roles.of_rank]
    assert np.array_equal(by_role[0][first], by_rank[0])
    assert np.array_equal(by_role[1][first][slow > 0] > 0, by_rank[1] > 0)


def test_stragglers_split_only_what_they_touch() -> None:
    slow = np.ones(64)
    assert len(job(DENSE, tp=2, dp=16, pp=2).roles) == 2
    slow[5] = 1.3
    roles = job(DENSE, tp=2, dp=16, pp=2, slow=slow).roles
    # Rank 5, its tensor-parallel neighbour, the rest of both data-parallel groups of its stage;
    # and the same four in the stage behind, which hear of it through the pipeline.
    assert len(roles) == 8
    assert sorted(roles.count.tolist()) == [1, 1, 1, 1, 15, 15, 15, 15]


def test_groups_that_cross_a_switch_are_roles_of_their_own() -> None:
    """Three tensor-parallel groups on two nodes each; only the middle one leaves its switch."""
    found = job(DENSE, tp=8, dp=3, global_batch=24, cluster=TAPERED)
    assert found.roles.of_rank.tolist() == [0] * 8 + [1] * 8 + [0] * 8


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_the_partition_is_equitable_and_coarsest(traits: list[int]) -> None:
    """Every two ranks of a role see the same roles in their groups; merging any two breaks it."""
    groups = {"row": np.arange(12) // 4, "column": np.arange(12) % 4}
    roles = fold([np.array(traits)], groups)

    def equitable(colour: np.ndarray) -> bool:
        seen: dict[int, tuple[Any, ...]] = {}
        for rank in range(12):
            own = [traits[rank]] + [
                tuple(sorted(colour[group == group[rank]].tolist())) for group in groups.values()
            ]
            if seen.setdefault(int(colour[rank]), tuple(own)) != tuple(own):
                return False
        return True

    assert equitable(roles.of_rank)
    finest = roles.of_rank
    # Refine naively from the traits alone: the coarsest partition is unique.
    colour = np.unique(np.array(traits), return_inverse=True)[1]
    while not equitable(colour):
        keys = [
            (int(colour[r]), *(tuple(sorted(colour[g == g[r]].tolist())) for g in groups.values()))
            for r in range(12)
        ]
        order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        colour = np.array([order[key] for key in keys])
    pairs = {(int(a), int(b)) for a, b in zip(finest, colour, strict=True)}
    assert len(pairs) == len(set(finest.tolist())) == len(set(colour.tolist()))


@pytest.mark.parametrize("kind", ["tp", "dp"])
def test_roles_that_meet_share_a_groups_number(kind: str) -> None:
    slow = np.ones(16)
    slow[3] = 2.0
    found = job(DENSE, tp=4, dp=4, slow=slow)
    group = group_of(found.layout, kind)
    for a, first in enumerate(found.roles.rank):
        for b in range(len(found.roles)):
            together = np.isin(
                np.flatnonzero(group == group[first]), np.flatnonzero(found.roles.of_rank == b)
            ).any()
            same = found.roles.group[kind][a] == found.roles.group[kind][b]
            assert together == same
