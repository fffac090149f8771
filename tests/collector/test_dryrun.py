"""Dry runs against real jobs: the same communication, call for call, in both modes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretrace import TraceSet
from foretrace.cli import app
from foretrace.collector.dryrun import dry_run
from foretrace.collector.dryrun.roles import MOST_ROLES
from foretrace.traces.errors import ForetraceError

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

WORLD = 4
JOBS = ("ddp", "fsdp2", "tp_dp", "pipeline", "moe")
SCRIPTS = Path(__file__).parent / "jobs"
TRAIN = SCRIPTS / "train.py"
COUNTS = [5, 1, 0, 2, 3, 3, 9, 1]  # as in the script
REPLAYED = ("kind", "bytes_in", "bytes_out", "dtype", "peer", "seq", "in_splits", "out_splits")

Calls = list[dict[str, Any]]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Calls]:
    """What each of four real processes that talk over gloo communicates."""
    out = tmp_path_factory.mktemp("real")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    record = str(SCRIPTS / "record_script.py")
    command = [sys.executable, record, "OUT", str(TRAIN), ",".join(JOBS)]
    ranks = []
    for rank in range(WORLD):
        command[2] = str(out / f"{rank}.json")
        env = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    try:
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, said
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.fixture(scope="module", params=["real tensors", "fake tensors"])
def dry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TraceSet:
    """A dry run of each of the four ranks."""
    out = tmp_path_factory.mktemp("dry")
    counts = out / "counts.json"
    counts.write_text(json.dumps(COUNTS))
    result = dry_run(
        TRAIN,
        [",".join(JOBS)],
        world_size=WORLD,
        ranks=range(WORLD),
        out=out / "run.trace",
        fake=request.param == "fake tensors",
        routing=str(counts),
    )
    assert result.ranks == list(range(WORLD))
    return TraceSet.open(result.path)


def calls_of(trace: TraceSet, rank: int) -> Calls:
    groups = trace.info(rank).groups
    rows = trace.collectives(rank).to_pylist()
    return [
        {"ranks": groups[row["group"]].ranks} | {name: row[name] for name in REPLAYED}
        for row in rows
    ]


def of_job(calls: Calls, job: str) -> Calls:
    """The part of one job: each begins with a barrier of all."""
    starts = [i for i, call in enumerate(calls) if call["kind"] == "barrier"]
    assert len(starts) == len(JOBS)
    at = JOBS.index(job)
    return calls[starts[at] : [*starts, len(calls)][at + 1]]


@pytest.mark.parametrize("job", JOBS)
def test_each_rank_communicates_as_in_the_real_run(
    real: list[Calls], dry: TraceSet, job: str
) -> None:
    """Kind, group, bytes, order; and types, peers, numbers and splits besides."""
    for rank in range(WORLD):
        expected, found = of_job(real[rank], job), of_job(calls_of(dry, rank), job)
        assert len(expected) > 4
        assert found == expected, f"rank {rank}"


def test_ddp_sends_what_its_parameters_weigh(dry: TraceSet) -> None:
    """By hand: three blocks of 2 x 32 + (32 x 128 + 128) + (128 x 32 + 32) floats, three steps."""
    floats = 3 * (2 * 32 + 32 * 128 + 128 + 128 * 32 + 32)
    reduced = [c for c in of_job(calls_of(dry, 2), "ddp") if c["kind"] == "all_reduce"]
    assert sum(c["bytes_in"] for c in reduced) == 3 * 4 * floats


def test_the_set_says_what_it_is(dry: TraceSet) -> None:
    info = dry.info(3)
    assert (info.world_size, info.backend, info.rank_from) == (WORLD, "fake", "collector")
    assert info.source == "foretrace.collector.dryrun"
    assert info.layout == {"dp": 2, "tp": 2}
    fake = info.labels["dry_run"] == "fake tensors"
    assert (info.labels.get("times") == "order") is fake
    assert any("communication took no time" in dropped.reason for dropped in info.dropped)
    events = dry.events(3).to_pylist()
    assert [e["start_ns"] for e in events] == sorted(e["start_ns"] for e in events)
    products = [e for e in events if e["name"] == "aten::addmm"]
    assert products
    assert all("[" in e["shapes"] and "float" in e["dtypes"].lower() for e in products)
    for row in dry.collectives(3).to_pylist():
        assert events[row["call_event"]]["name"].startswith("c10d::")


def test_steps_end_with_their_optimizer(dry: TraceSet) -> None:
    """Nine optimizers' steps: 3 of DDP, 2 each of FSDP2, tensor parallel and the pipeline."""
    steps = dry.info(1).steps
    assert len(steps) == 9
    names = dry.events(1, ["name", "start_ns", "step"]).to_pylist()
    marks = [e for e in names if e["name"].startswith("ProfilerStep#")]
    assert [e["start_ns"] for e in marks] == [s.start_ns for s in steps]
    assert [s.end_ns for s in steps[:-1]] == [s.start_ns for s in steps[1:]]
    assert {e["step"] for e in names} == {-1, *range(9)}


def test_stages_of_a_pipeline_are_roles_and_data_parallel_ranks_are_not(tmp_path: Path) -> None:
    found = dry_run(
        TRAIN, ["pipeline"], world_size=2, ranks="unique", out=tmp_path / "p.trace", fake=True
    )
    assert found.roles == {0: 1, 1: 1}
    assert found.notes == []
    found = dry_run(
        TRAIN, ["fsdp2"], world_size=8, ranks="unique", out=tmp_path / "f.trace", fake=True
    )
    assert (found.ranks, found.roles) == ([0], {0: 8})
    assert TraceSet.open(found.path).manifest.job["roles"] == {"0": 8}


def test_a_last_rank_that_is_different_is_kept_and_told_of(tmp_path: Path) -> None:
    found = dry_run(
        TRAIN, ["uneven"], world_size=6, ranks="unique", out=tmp_path / "u.trace", fake=True
    )
    assert found.ranks == [0, 5]
    (note,) = found.notes
    assert "rank 5" in note
    assert MOST_ROLES == 64  # the documentation says so


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        app.main(["dryrun", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_command_passes_on_how_the_script_ended(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--world-size", "2", "-o", str(tmp_path / "x.trace"), "--", str(TRAIN)]
    status, _, err = run(capsys, *out, "fails")
    assert status == 1
    assert "ValueError: this job is meant to fail" in err
    assert f'File "{TRAIN}"' in err
    assert "runpy" not in err
    assert err.splitlines()[-1].startswith("foretrace: error: ")
    status, _, err = run(capsys, *out, "leaves")
    assert status == 7
    assert "exit status 7" in err
    assert not (tmp_path / "x.trace").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--world-size", "4", "--", "nowhere.py"], "nowhere.py: no such script"),
        (["--world-size", "4", "--rank", "4", "--", str(TRAIN)], "has ranks 0 to 3"),
        (["--world-size", "4", "--rank", "1", "--ranks", "2", "--", str(TRAIN)], "not both"),
        (["--world-size", "4", "--routing", "none", "--", str(TRAIN)], "zipf:EXPONENT"),
    ],
)
def test_what_cannot_run_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert words in line


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ForetraceError, match="needs torch"):
        dry_run(TRAIN, world_size=2, out=tmp_path / "x.trace")
