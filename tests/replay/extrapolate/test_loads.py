"""Uneven experts: roles split where loads differ, times agree, the busiest rank sets the pace."""

from __future__ import annotations

import numpy as np
import pytest
from tests.replay.extrapolate.jobs import H100, MIXTURE, job
from tests.replay.extrapolate.test_folding import TAPERED, end_of_ranks

from foretrace.replay.engine import replay
from foretrace.replay.workload.loads import rank_loads, zipf_counts
from foretrace.traces.errors import LayoutError


@pytest.mark.parametrize("cluster", [H100, TAPERED])
@pytest.mark.parametrize("stragglers", [(), (3, 40, 77)])
def test_folded_and_whole_jobs_agree(cluster: object, stragglers: tuple[int, ...]) -> None:
    slow = np.ones(128)
    slow[list(stragglers)] = 1.3
    loads = rank_loads(zipf_counts(8, 1.0), 4)
    layout = {"tp": 2, "dp": 32, "pp": 2, "ep": 4, "global_batch": 64}
    made = [
        job(MIXTURE, cluster=cluster, slow=slow, loads=loads, whole=whole, **layout)  # type: ignore[arg-type]
        for whole in (False, True)
    ]
    by_role, by_rank = (end_of_ranks(one) for one in made)
    first = made[0].roles.rank[made[0].roles.of_rank]
    assert np.array_equal(by_role[0][first], by_rank[0])
    assert len(made[0].roles) < 128


def test_loads_of_one_change_nothing() -> None:
    layout = {"tp": 2, "dp": 8, "pp": 2, "ep": 4}
    plain = replay(job(MIXTURE, **layout).graph).end_ns.max()
    for brief in (False, True):
        even = job(MIXTURE, loads=np.ones(4), brief=brief, **layout)
        assert replay(even.graph).end_ns.max() == plain


def test_only_experts_computations_follow_the_load() -> None:
    """A rank with twice the tokens computes as long again in its experts, and nowhere else."""
    layout = {"dp": 4, "ep": 4, "global_batch": 4}
    even, uneven = (
        job(MIXTURE, **layout),
        job(MIXTURE, loads=np.array([2.0, 1, 0.5, 0.5]), **layout),
    )
    graph = even.graph
    work = graph.dur_ns[graph.kind == 4].sum()
    ranks = [uneven.graph.dur_ns[(uneven.graph.kind == 4) & (uneven.graph.rank == r)].sum()
             for r in uneven.roles.rank]  # fmt: skip
    assert ranks[1] == pytest.approx(work, rel=1e-9)
    experts = ranks[0] - work
    assert ranks[2] == pytest.approx(work - experts / 2, rel=1e-6)
    assert 0 < experts < work


def test_counts_become_loads() -> None:
    assert rank_loads([1, 3, 2, 2], 2).tolist() == [1.0, 1.0]
    assert rank_loads([4, 0, 2, 2], 4).tolist() == [2.0, 0.0, 1.0, 1.0]
    counts = zipf_counts(64, 1.2)
    assert sorted(counts, reverse=True)[1] == pytest.approx(0.5**1.2)
    with pytest.raises(LayoutError, match="ep=3"):
        rank_loads([1, 2, 3, 4], 3)
