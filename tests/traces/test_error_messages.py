"""What is wrong with a file is said in one line: which file, what was found, what to do.

And what is read of a file that is half wrong is never less than what is told.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.traces.kineto import document, kernel, lasting, launch, write

from foretrace.cli.app import main
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

HEADER = "step,optype,start_ts,duration,dp_rank,stage\n"


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


FAULTS = {  # name, content, and what must be said
    "empty.json": (b"", "found an empty file"),
    "cut.json.gz": (gzip.compress(b"{}", mtime=0)[:10], "compressed data that is cut off"),
    "zeros.json.gz": (b"\x1f\x8b" + bytes(40), "compressed data that is cut off or damaged"),
    "nothing.json": (b"{}", "found JSON without profiler events"),
    "none.json": (b'{"traceEvents": []}', "holds no events that last (ph X); was the profiler"),
    "notes.txt": (b"hello world\n", "text that begins with 'hello world'"),
    "picture.json": (b"\x89PNG\r\n\x1a\n", "found a PNG image"),
    "run.zip": (b"PK\x03\x04" + bytes(50), "found a zip archive"),
    "noise.et": (b"\x05\x0a\x03abc" + b"\xff" * 40, "found binary data"),
    "model.pkl": (pickle.dumps({"weights": [1.0]}, 2), "pickle that is no flight recorder dump"),
    "other.json": (text({"schema": "9.9", "nodes": []}), "trace of the unknown schema '9.9'"),
    "calls.json": (text({"schema": "1.1.1-chakra.0.0.4", "nodes": []}), "it holds no calls"),
    "graph.json": (text({"workload_graph": []}), "not readable as Chakra graph: it holds no nodes"),
    "wrong.json": (text({"workload_graph": [3]}), "not readable as Chakra graph: damaged JSON"),
    "dump.jsonl": (b'{"header":{"id":"0x1"},"coll_perf":{}}\n', "it holds no operations"),
    "pp_rank_0.json": (text({"1": {"fwd_start": [1], "fwd_end": []}}), "no passes that begin and"),
    "rows.csv": (HEADER.encode(), "holds no rows; record at least one step"),
    "columns.csv": (b"step,optype,start_ts,duration\n1,f,0,1\n", "column dp_rank, stage missing"),
    "words.csv": (HEADER.encode() + b"1,f,x,1,0,0\n", "column start_ts must hold seconds, found"),
    "back.csv": (HEADER.encode() + b"1,f,0,-1,0,0\n", "duration of row 0 is negative"),
}


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", FAULTS)
def test_one_line_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, words = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    assert run("import", tmp_path / name, "-o", tmp_path / "o.trace") == 2
    said = capsys.readouterr().err
    assert said.startswith("foretrace: error: ")
    assert said.count("\n") == 1
    assert name in said
    assert words in said
    assert not (tmp_path / "o.trace").exists()


def test_paths_and_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.json", document([kernel("gemm", 1, 2, 1)]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes").write_text("mine")
    (tmp_path / "own.toml").write_text("[[kernel]]\npattern = '('\n")
    good, out = tmp_path / "a.json", tmp_path / "o.trace"
    cases = [
        ((tmp_path / "nowhere.json", "-o", out), "no such file, and no glob that matches one"),
        ((tmp_path / "*.gz", "-o", out), "no such file, and no glob that matches one"),
        ((tmp_path / "empty", "-o", out), "expected traces, found an empty folder"),
        ((tmp_path / "own", "-o", out), "found none among 1 files"),
        ((good, "-o", tmp_path / "own"), "exists and is no trace set; choose another name"),
        ((good, "-o", good), "is a file; choose another name for -o"),
        ((good, "-o", out, "--classes", tmp_path / "own.toml"), "must have kind, library, pattern"),
        ((good, "-o", out, "--executor", "slurm://x"), "slurm://x"),
    ]
    for args, words in cases:
        assert run("import", *args) == 2
        said = capsys.readouterr().err
        assert words in " ".join(said.split()), said
    assert (tmp_path / "own" / "notes").read_text() == "mine"


def test_one_bad_file_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with it: content, columns or a layout that contradicts them."""
    write(tmp_path / "rank0.json", document([kernel("gemm", 1, 2, 1)]))
    (tmp_path / "jobs.csv").write_text(HEADER + "1,forward-compute,0,1,0,5\n")
    (tmp_path / "meta-jobs.yaml").write_text("pp_size: 2\n")
    assert run("import", tmp_path, "-o", tmp_path / "o.trace", "--jobs", "1") == 0
    said = capsys.readouterr()
    assert "left out:" in said.err
    assert "column stage goes up to 5, but the layout states pp_size 2" in said.err
    assert TraceSet.open(tmp_path / "o.trace").ranks == [0]


def dropped(tmp_path: Path, events: list[dict[str, Any]]) -> dict[str, tuple[int, str]]:
    write(tmp_path / "a.json", document(events))
    import_paths([tmp_path / "a.json"], tmp_path / "o.trace", jobs=1)
    info = TraceSet.open(tmp_path / "o.trace").info(0)
    return {d.reason: (d.count, d.example) for d in info.dropped}


SOUND = [lasting("cpu_op", "aten::mm", 100, 20), launch(110, 1), kernel("gemm", 115, 10, 1)]
UNREADABLE = "id, name or arguments that are none (taken for absent)"


def broken(**values: Any) -> dict[str, Any]:
    event = kernel("broken", 130, 10, 2)
    args = {k: v for k, v in values.items() if k in ("correlation", "stream", "device")}
    own = {k: v for k, v in values.items() if k not in args}
    return {**event, "args": {**event["args"], **args}, **own}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (broken(correlation="abc"), UNREADABLE),
        (broken(correlation={}), UNREADABLE),
        (broken(correlation=1.5), UNREADABLE),
        (broken(stream="default"), UNREADABLE),
        (broken(args="none"), UNREADABLE),
        (broken(name=5), UNREADABLE),
        (broken(ts="soon"), "event without a readable time"),
        (broken(ts=1e300), "event without a readable time"),
        (broken(ts=None), "event without a readable time"),
        (broken(dur=None), "unreadable duration (the event kept)"),
        (broken(dur=9e18), "duration beyond all bounds (set to 0)"),
        (broken(dur=-3), "negative duration set to 0 (kept)"),
    ],
)
def test_no_loss_is_silent(tmp_path: Path, event: dict[str, Any], reason: str) -> None:
    found = dropped(tmp_path, [*SOUND, event])
    count, example = found[reason]
    assert count == 1
    assert "broken" in example or "130" in example


def test_sound_events_lose_nothing(tmp_path: Path) -> None:
    """Null says that something is not known, and processes and threads may have names."""
    named = lasting("cpu_op", "aten::add", 140, 2, pid="Spans", tid="stream 7", args=None)
    nothing = kernel("gemm", 150, 2, 3)
    nothing["args"]["External id"] = None
    assert dropped(tmp_path, [*SOUND, named, nothing]) == {}


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(
        pickle.dumps({"entries": [os.system], "pg_config": {}, "version": "2.4"}, 2)
    )
    assert run("import", tmp_path / "nccl_trace_rank_0", "-o", tmp_path / "o.trace") == 2
