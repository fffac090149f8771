"""Imports on a dask cluster of two workers, one of which may be killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.importers.job import import_paths
from foretrace.traces.store import TraceSet

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of dask's own modules

RANKS = 12
EVENTS = 4000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for rank in range(RANKS):
        events = [lasting("cpu_op", f"op{rank}", i * 10, 5) for i in range(EVENTS)]
        events += [launch(5, 1), kernel("gemm", 20, 7, 1)]
        top = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS}}
        write(folder / f"{rank}.json", document(events, rank=None, **top))
    return folder


def address(cluster: Any) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


def check(path: Path) -> None:
    traces = TraceSet.open(path)
    assert traces.ranks == list(range(RANKS))
    assert not traces.problems
    for rank in traces.ranks:
        names = traces.events(rank, ["name"])["name"].to_pylist()
        assert names.count(f"op{rank}") == EVENTS
        assert len(names) == EVENTS + 2
    assert not [p for p in path.iterdir() if p.name.startswith(".")]


def test_a_cluster_gives_the_same(tmp_path: Path, cluster: Any, files: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    report = import_paths(
        [files],
        tmp_path / "c.trace",
        executor=address(cluster),
        watch=lambda *now: seen.append(now),
    )
    import_paths([files], tmp_path / "here.trace", jobs=1)
    check(tmp_path / "c.trace")
    here, there = TraceSet.open(tmp_path / "here.trace"), TraceSet.open(tmp_path / "c.trace")
    for rank in here.ranks:
        assert here.events(rank).equals(there.events(rank))
        assert here.info(rank) == there.info(rank)
    assert report.ranks == list(range(RANKS))
    assert seen[-1][0] == seen[-1][1] == sum(p.stat().st_size for p in files.iterdir())


def test_a_killed_worker_costs_nothing(tmp_path: Path, cluster: Any, files: Path) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        pids = client.run(os.getpid)
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if list(tmp_path.rglob("rank=*/manifest.json")):
                victim = min(pids.values())
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=kill)
    thread.start()
    import_paths([files], tmp_path / "c.trace", executor=address(cluster))
    thread.join()
    assert killed
    check(tmp_path / "c.trace")


@pytest.mark.parametrize("wrong", ["dask://", "dask://host", "tcp://127.0.0.1:1", "spark://h:1"])
def test_a_wrong_address_is_one_clear_error(tmp_path: Path, files: Path, wrong: str) -> None:
    with pytest.raises(TraceFormatError, match="dask://HOST:PORT"):
        import_paths([files], tmp_path / "o.trace", executor=wrong)
    assert not (tmp_path / "o.trace").exists()


def test_nobody_there(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.traces.importers.cluster.CONNECT_SECONDS", 1)
    with pytest.raises(IncompleteTraceError, match="no dask scheduler answers"):
        import_paths([files], tmp_path / "o.trace", executor="dask://127.0.0.1:9")
