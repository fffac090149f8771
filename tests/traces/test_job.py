"""Importing the files of a job: where they come from, whose they are, and bad input."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.traces.kineto import document, kernel, lasting, write, write_tar

from foretrace.cli.app import main
from foretrace.cli.traces import _progress
from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.importers import import_paths
from foretrace.traces.importers.ranks import rank_of_name
from foretrace.traces.importers.run import _no_interrupts
from foretrace.traces.store import TraceSet


def trace(rank: int | None, mark: float = 1.0) -> dict[str, object]:
    """A file of one rank; ``mark`` makes it differ from others."""
    return document([lasting("cpu_op", "op", mark, 1), kernel("k", mark + 2, 1, 1)], rank=rank)


def data(rank: int | None, mark: float = 1.0) -> bytes:
    return json.dumps(trace(rank, mark)).encode()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with two ranks, one of them compressed, and files that are no traces."""
    folder = tmp_path / "job"
    write(folder / "a/host1_17.pt.trace.json", trace(1))
    write(folder / "b/host0_16.pt.trace.json.gz", trace(0, 5))
    write(folder / "notes.txt", b"nothing here")
    write(folder / ".hidden.json", b"[")
    return folder


def test_folder(job: Path, tmp_path: Path) -> None:
    report = import_paths([job], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0, 1]
    assert report.events == 4
    assert report.bytes == len(data(1)) + len(data(0, 5))
    assert report.notes == ["skipped 1 files that are no traces: notes.txt"]
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.events(0)["start_ns"].to_pylist() == [5000, 7000]
    assert traces.info(0).source.endswith("host0_16.pt.trace.json.gz")
    assert not list(tmp_path.glob(".*.part"))


def test_several_processes_give_the_same(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrace.traces.importers.run._WORTH_A_PROCESS_BYTES", 1)
    seen = []
    report = import_paths([job], tmp_path / "o.trace", jobs=2, watch=lambda *n: seen.append(n))
    assert report.ranks == [0, 1]
    alone = import_paths([job], tmp_path / "p.trace", jobs=1)
    for rank in (0, 1):
        several, one = (TraceSet.open(r.path) for r in (report, alone))
        assert several.events(rank).equals(one.events(rank))
        assert several.info(rank) == one.info(rank)
    stored, total, plain = seen[-1]
    assert stored == total
    assert plain == report.bytes


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_file_without_anything_leaves_the_others(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr("foretrace.traces.importers.run._WORTH_A_PROCESS_BYTES", 1)
    write(job / "c.json", b'{"traceEvents": [], "schemaVersion": 1}')
    report = import_paths([job], tmp_path / "o.trace", jobs=jobs)
    assert report.ranks == [0, 1]
    (note,) = [n for n in report.notes if "c.json" in n]
    assert note.startswith("left out: ")
    assert "holds no events" in note
    with pytest.raises(TraceFormatError, match=r"c\.json: .*holds no events"):
        import_paths([job / "c.json"], tmp_path / "p.trace", jobs=jobs)
    assert not (tmp_path / "p.trace").exists()


def die(*_: object) -> None:
    os._exit(9)


def test_a_killed_worker_is_one_clear_error(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrace.traces.importers.run._WORTH_A_PROCESS_BYTES", 1)
    monkeypatch.setattr("foretrace.traces.importers.run._import_in_worker", die)
    with pytest.raises(IncompleteTraceError, match="killed"):
        import_paths([job], tmp_path / "o.trace", jobs=2)


def test_glob_and_url(job: Path, tmp_path: Path) -> None:
    report = import_paths([f"{job}/*/*.json*"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0, 1]
    report = import_paths([f"file://{job}/a"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [1]


def test_memory_file_system(job: Path) -> None:
    report = import_paths([job], "memory://import/o.trace", jobs=2)
    assert report.ranks == [0, 1]
    assert len(TraceSet.open("memory://import/o.trace").events(1)) == 2
    import_paths([job / "a"], "memory://import/o.trace", jobs=2)
    assert TraceSet.open("memory://import/o.trace").ranks == [1]


def test_archive(tmp_path: Path) -> None:
    members = {f"t/worker{r}_step_12.169.pt.trace.json": data(None, r) for r in (1, 0, 2)}
    members |= {"t/._junk.json": b"x", "t/../../evil_rank9.json": data(None, 9)}
    path = write_tar(tmp_path / "job.tar.gz", members)
    report = import_paths([path], tmp_path / "o.trace", jobs=2)
    assert report.ranks == [0, 1, 2, 9]
    assert {f.rank_from for f in report.files} == {"file name"}
    assert not list(tmp_path.parent.glob("*rank9*"))


def test_archive_with_files_that_are_no_traces(tmp_path: Path) -> None:
    members = {"rank0.json": data(0), "README.md": b"hello", "picture.png": b"\x89PNG\r\n"}
    path = write_tar(tmp_path / "job.tar.gz", members)
    report = import_paths([path], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0]
    assert report.notes == [
        "skipped 2 files that are no traces: job.tar.gz:README.md, job.tar.gz:picture.png",
        "rank 1 of 2 missing: what happens between them and the others is not known",
    ]


def test_damaged_archive_gives_what_is_whole(tmp_path: Path) -> None:
    members = {
        f"rank{r}.json": json.dumps(
            document([kernel(f"{hash((r, i)) * 77777}", i, 1, i) for i in range(3000)], rank=r)
        ).encode()
        for r in range(4)
    }
    path = write_tar(tmp_path / "job.tar.gz", members)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 5 // 8])
    report = import_paths([path], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0, 1]
    assert [f.events for f in report.files] == [3000, 3000]
    assert any("rank2.json and what follows is left out" in note for note in report.notes)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TraceFormatError, match=r"job\.tar\.gz"):
        import_paths([path], tmp_path / "o.trace", jobs=1)


def test_a_trace_set_is_not_imported(job: Path, tmp_path: Path) -> None:
    import_paths([job], tmp_path / "o.trace", jobs=1)
    with pytest.raises(TraceFormatError, match="a trace set already"):
        import_paths([tmp_path / "o.trace"], tmp_path / "p.trace", jobs=1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank_3/n122-248-036_1140325.1706100861296513773.pt.trace.json.gz", 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("worker2_step_12.1694128201554.pt.trace.json", 2),
        ("megatron_kineto_5.json", 5),
        ("trace.7.json.gz", 7),
        ("12.pt.trace.json", 12),
        ("Rank12_of_64.json", 12),
        ("job.tar.gz:kineto/trace_3.json", 3),
        ("frank5.json", -1),
        ("n122-248-036_1140325.1706100861296513773.pt.trace.json.gz", -1),
        ("resnet50_17.profile", -1),
        ("trace.json", -1),
    ],
)
def test_rank_of_name(name: str, rank: int) -> None:
    assert rank_of_name(name) == rank


def test_rank_by_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.json", trace(None, i)) for i, n in enumerate("ab")]
    report = import_paths(paths, tmp_path / "o.trace", jobs=1)
    assert [(f.rank, f.rank_from, Path(f.source).name) for f in report.files] == [
        (0, "order", "a.json"),
        (1, "order", "b.json"),
    ]


def test_natural_order(tmp_path: Path) -> None:
    for n in (10, 9, 1):
        write(tmp_path / "in" / f"part{n}x.json", trace(None, n))
    report = import_paths([tmp_path / "in"], tmp_path / "o.trace", jobs=1)
    assert [Path(f.source).name for f in report.files] == [
        "part1x.json",
        "part9x.json",
        "part10x.json",
    ]


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    write(tmp_path / "in/x.json", trace(1, 1))
    write(tmp_path / "in/y.json", trace(1, 2))
    with pytest.raises(IncompleteTraceError, match=r"two files of rank 1: .*x\.json .*y\.json"):
        import_paths([tmp_path / "in"], tmp_path / "o.trace", jobs=1)
    assert not (tmp_path / "o.trace").exists()


def test_identical_copies_count_once(tmp_path: Path) -> None:
    write(tmp_path / "in/x.json", trace(1))
    write(tmp_path / "in/y.json.gz", trace(1))
    report = import_paths([tmp_path / "in"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [1]
    assert any("identical copy" in note for note in report.notes)


def test_missing_ranks_are_said_and_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", trace(1))
    report = import_paths([path], tmp_path / "o.trace", jobs=1)
    assert report.notes == [
        "rank 0 of 2 missing: what happens between them and the others is not known"
    ]
    traces = TraceSet.open(tmp_path / "o.trace")
    assert traces.missing_ranks == [0]
    assert traces.manifest.job["notes"] == report.notes


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"rank,time\n0,1\n", "text that begins with 'rank,time'"),
        (b'{"layers": 24, "heads": []}', "JSON without profiler events"),
        (b"\x80\x04\x95\x10\0\0\0", "a Python pickle"),
        (b"\0\1\2\3", "binary data"),
        (gzip.compress(gzip.compress(data(0))), "a gzip file within a gzip file"),
        (bz2.compress(data(0)), "a bzip2 file"),
        (gzip.compress(b"", mtime=0)[:-4], "compressed data that is cut off or damaged"),
    ],
)
def test_wrong_file(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=f"x.bin: expected .*found {found}"):
        import_paths([path], tmp_path / "o.trace")


def test_paths_that_stand_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceFormatError, match="empty folder"):
        import_paths([tmp_path / "empty"], tmp_path / "o.trace")
    with pytest.raises(TraceFormatError, match="no such file"):
        import_paths([tmp_path / "absent.json"], tmp_path / "o.trace")
    with pytest.raises(TraceFormatError, match="no glob that matches"):
        import_paths([tmp_path / "*.json"], tmp_path / "o.trace")
    write(tmp_path / "texts/a.txt", b"hello")
    with pytest.raises(TraceFormatError, match="found none among 1 files"):
        import_paths([tmp_path / "texts"], tmp_path / "o.trace")


def test_truncated_files_are_salvaged(tmp_path: Path) -> None:
    whole = data(0)
    write(tmp_path / "in/rank0.json", whole[: whole.rindex(b"{")])
    packed = gzip.compress(
        json.dumps(document([kernel("k", i, 1, i) for i in range(999)], rank=1)).encode()
    )
    (tmp_path / "in/rank1.json.gz").write_bytes(packed[: len(packed) // 2])
    report = import_paths([tmp_path / "in"], tmp_path / "o.trace", jobs=1)
    assert report.ranks == [0, 1]
    reasons = {f.rank: [d.reason for d in f.dropped] for f in report.files}
    assert any("end of the file is missing" in r for r in reasons[0])
    assert any("compressed file is cut off" in r for r in reasons[1])
    assert 100 < report.files[1].events < 999


def test_damaged_compression_is_salvaged(tmp_path: Path) -> None:
    rows = [kernel(f"k{i * i}", i, 1, i) for i in range(20_000)]
    packed = bytearray(gzip.compress(json.dumps(document(rows, rank=0)).encode()))
    packed[len(packed) * 3 // 4] ^= 255
    (tmp_path / "x.json.gz").write_bytes(packed)
    report = import_paths([tmp_path / "x.json.gz"], tmp_path / "o.trace", jobs=1)
    assert report.events > 1000
    assert any("damaged" in d.reason for d in report.files[0].dropped)


def test_joined_gzip_members(tmp_path: Path) -> None:
    whole = data(0)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(whole[:90]) + gzip.compress(whole[90:]))
    assert import_paths([tmp_path / "x.json.gz"], tmp_path / "o.trace", jobs=1).events == 2


def test_existing_output(job: Path, tmp_path: Path) -> None:
    import_paths([job / "a"], tmp_path / "o.trace", jobs=1)
    import_paths([job], tmp_path / "o.trace", jobs=1)
    assert TraceSet.open(tmp_path / "o.trace").ranks == [0, 1]
    write(tmp_path / "precious/thesis.txt", b"x")
    with pytest.raises(TraceFormatError, match="exists and is no trace set"):
        import_paths([job], tmp_path / "precious", jobs=1)
    assert (tmp_path / "precious/thesis.txt").exists()


def test_a_failed_import_leaves_the_old_set(job: Path, tmp_path: Path) -> None:
    import_paths([job], tmp_path / "o.trace", jobs=1)
    bad = write(tmp_path / "bad.json", b'{"traceEvents": [{"ph": "X"}]}')
    with pytest.raises(TraceFormatError, match=r"bad\.json"):
        import_paths([bad], tmp_path / "o.trace", jobs=1)
    assert TraceSet.open(tmp_path / "o.trace").ranks == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "job", "o.trace"]


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in args])
    return int(stopped.value.code or 0)


def test_command_json(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = data(1)
    (job / "a/host1_17.pt.trace.json").write_bytes(cut[:-2])
    assert run("import", job, "-o", tmp_path / "o.trace", "--json", "--jobs", 1) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert list(result) == ["ranks", "events", "bytes", "seconds", "peak_rss_bytes", "dropped"]
    assert result["ranks"] == [0, 1]
    assert result["events"] == 4
    assert result["dropped"][0]["rank"] == 1
    assert set(result["dropped"][0]) == {"rank", "reason", "count", "example"}
    assert result["peak_rss_bytes"] > 10_000_000
    assert err == ""


def test_command_text(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("import", job, "-o", tmp_path / "o.trace") == 0
    out, err = capsys.readouterr()
    assert "distributedInfo" in out
    assert "2 ranks, 4 events" in out
    assert "MB/s" in out
    assert "skipped 1 files" in err


def test_progress_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with _progress(show=True) as watch:
        assert watch is not None
        watch(50, 100, 400_000_000)
    assert "MB/s" in capsys.readouterr().err
    with _progress(show=False) as watch:
        assert watch is None


def test_command_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("import", tmp_path / "absent.json", "-o", tmp_path / "o.trace") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "absent.json" in err


def test_processes_that_start_hear_no_interrupts() -> None:
    """Ctrl-C goes to all processes; one that is only starting would end in a traceback."""
    ask = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

    def answer() -> str:
        command = [sys.executable, "-c", ask]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with _no_interrupts():
        assert answer() == "True\n"
    assert answer() == "False\n"
