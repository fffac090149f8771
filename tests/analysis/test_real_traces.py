"""Real 8-GPU recordings: everything adds up, and what is known about them is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from foretrace.analysis.breakdown import COLUMNS, breakdown, waits
from foretrace.analysis.communication import communication
from foretrace.analysis.criticalpath import critical_path_table
from foretrace.analysis.findings import find
from foretrace.analysis.report import render_report
from foretrace.analysis.run import Run, load_run
from foretrace.replay.timeline import step_windows
from foretrace.traces.importers.job import import_paths

SETS = {
    "dlrm": "traces/dlrm-8xv100/dlrm_kineto.tar.gz",
    "tp8": "traces/megatron-tp8-a100/kineto",
    "a800": "traces/megatron-tp2pp2dp2-a800/kineto",
}
CAUSES = [name for name in COLUMNS.values() if name.startswith("idle_")]


@pytest.fixture(scope="module", params=SETS)
def run(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Run]:
    out = tmp_path_factory.mktemp("real") / f"{request.param}.trace"
    import_paths([shared_data / SETS[request.param]], out, jobs=1)
    return request.param, load_run(out)


def test_conservation(run: tuple[str, Run]) -> None:
    _, job = run
    for timeline in (job.measured, job.replayed):
        table = breakdown(timeline)
        length = dict(
            zip(*(getattr(step_windows(timeline), c) for c in ("step", "dur_ns")), strict=True)
        )
        parts = ["compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns"]
        assert (table[parts].sum(axis=1) == table["total_ns"]).all()
        assert (table["total_ns"] == table["step"].map(length)).all()
        assert (table[CAUSES].sum(axis=1) == table["idle_ns"]).all()
        assert (table[CAUSES] >= 0).all(axis=None)
        path = critical_path_table(timeline)
        assert path.groupby("step")["total_ns"].sum().to_dict() == length


def test_communication_adds_up_to_its_kernels(run: tuple[str, Run]) -> None:
    _, job = run
    recorded = 0
    for rank in job.trace.ranks:
        dur = job.trace.events(rank, ["dur_ns"])["dur_ns"]
        work = job.trace.collectives(rank, ["work_event"])["work_event"].to_numpy()
        recorded += pc.sum(dur.take(np.unique(work[work >= 0]))).as_py()
    table = communication(job.measured)
    assert table["wait_ns"].sum() + table["exec_ns"].sum() == recorded


def test_known_answers(run: tuple[str, Run]) -> None:
    name, job = run
    found = find(job.graph, job.measured).found
    kinds = [f.kind for f in found]
    table = breakdown(job.measured).set_index("rank")
    if name == "tp8":  # a host that stands still: rank 0 most, as the gaps of its trace show
        assert kinds[0] == "host_stall"
        assert found[0].share > 0.5
        assert table["idle_stall_ns"].idxmax() == 0
    elif name == "a800":  # two pipeline stages: rank r and r + 4 wait for each other
        assert kinds[0] == "pipeline_bubble"
        late = waits(job.measured)
        late = late[late["kind"] == "send_recv"]
        assert (late["waits_for"] - late["rank"]).abs().unique().tolist() == [4]
        first, last = table.loc[:3, "idle_rank_ns"].mean(), table.loc[4:, "idle_rank_ns"].mean()
        assert first > last
        assert "exposed_communication" in kinds
    else:  # small kernels: the host decides
        assert "host_bound" in kinds
        assert (table["compute_ns"] < 0.1 * table["total_ns"]).all()


def test_report_is_small_and_whole(run: tuple[str, Run]) -> None:
    _, job = run
    text = render_report(job)
    assert 50_000 < len(text) < 600_000
    assert text.rstrip().endswith("</html>")
