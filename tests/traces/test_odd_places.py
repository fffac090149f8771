"""Inputs and targets that are not what an import expects: pipes, doubles, its own output."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.traces.kineto import document, kernel, lasting, write

from foretrace.cli.app import main
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import import_paths
from foretrace.traces.importers.et_nodes import read_calls
from foretrace.traces.salvage import Losses
from foretrace.traces.storage import Folder
from foretrace.traces.store import TraceSet


def one_rank(mark: float = 1.0) -> dict[str, object]:
    return document([lasting("cpu_op", "op", mark, 1), kernel("k", mark + 2, 1, 1)], rank=0)


def test_a_pipe_is_one_clear_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # nobody writes: opening it would wait for ever
    with pytest.raises(TraceFormatError, match=r"pipe\.json: is a pipe or a device"):
        import_paths([tmp_path / "pipe.json"], tmp_path / "o.trace", jobs=1)


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    import_paths([write(tmp_path / "first.json", one_rank())], out, jobs=1)
    raw = write(out / "rank=00000/raw/rank0.json", one_rank(7))
    for path in (raw, raw.parent):
        with pytest.raises(TraceFormatError, match="which would be replaced"):
            import_paths([path], out, jobs=1)
    assert raw.exists()
    assert import_paths([raw], tmp_path / "other.trace", jobs=1).ranks == [0]


def test_what_is_no_part_of_a_set_is_not_deleted(tmp_path: Path) -> None:
    path, out = write(tmp_path / "first.json", one_rank()), tmp_path / "run.trace"
    import_paths([path], out, jobs=1)
    notes = write(out / "notes.txt", b"mine")
    with pytest.raises(TraceFormatError, match=r"holds notes\.txt, which is no part"):
        import_paths([path], out, jobs=1)
    assert notes.read_bytes() == b"mine"


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for mark in (1.0, 7.0):
            content = json.dumps(one_rank(mark)).encode()
            member = tarfile.TarInfo("rank0.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(TraceFormatError, match=r"two members are called rank0\.json"):
        import_paths([tmp_path / "x.tar"], tmp_path / "o.trace", jobs=1)


def test_names_that_are_no_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"rank1\xff.json.gz")
    path.write_bytes(
        gzip.compress(json.dumps(document([kernel("k", 1, 1, 1)], rank=None)).encode())
    )
    out = tmp_path / os.fsdecode(b"o\xfe.trace")
    with pytest.raises(SystemExit) as ended:
        main(["import", str(path), "-o", str(out), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [1]
    assert TraceSet.open(out).info(1).source.endswith("rank1\ufffd.json.gz")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_a_name_that_the_terminal_cannot_show(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "rank0.json", one_rank())
    out = tmp_path / os.fsdecode(b"o\xfe\xc2\xb5.trace")
    ended = subprocess.run(
        [sys.executable, "-m", "foretrace", "import", str(path), "-o", str(out)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=120,
        check=False,
    )
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)
    assert b"1 ranks, 2 events" in ended.stdout


def test_imports_that_end_together(tmp_path: Path) -> None:
    def put(number: int) -> None:
        with Folder.at(str(tmp_path)).replacing("run.trace") as part:
            part.write(str(number).encode(), "manifest.json")
            part.write(str(number).encode(), "rank=00000")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(200)))
    assert [p.name for p in tmp_path.iterdir()] == ["run.trace"]
    whole = [(tmp_path / "run.trace" / n).read_text() for n in ("manifest.json", "rank=00000")]
    assert whole[0] == whole[1]


def test_bytes_of_a_file_with_several_ranks_count_once(tmp_path: Path) -> None:
    rows = ["step,optype,start_ts,duration,dp_rank,stage"]
    rows += [f"0,forward-compute,{rank},0.5,{rank},0" for rank in range(4)]
    table = write(tmp_path / "table.csv", "\n".join(rows).encode())
    report = import_paths([table], tmp_path / "o.trace", jobs=1)
    assert (len(report.ranks), report.bytes) == (4, table.stat().st_size)


def test_ranks_of_two_sources_take_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        write(tmp_path / f"a/rank{rank}.json", document([lasting("cpu_op", "op", 1, 1)], rank))
        nodes = [{"id": i, "name": "else", "ctrl_deps": 1, "inputs": {}} for i in (1, 2)]
        trace = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "", "nodes": nodes}
        write(tmp_path / f"b/rank{rank}.json", trace)
    with pytest.raises(SystemExit):
        main(["import", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "o.trace")])
    shown = capsys.readouterr()
    assert "a/rank2.json + " in shown.out
    assert "b/rank2.json" in shown.out
    assert shown.err.count("without a counterpart") == 1
    assert "events of rank*.json without a counterpart (left out) (3 ranks)" in shown.err


def test_blanks_between_the_nodes_of_an_execution_trace() -> None:
    node = b'{"id":2,"name":"a","ctrl_deps":1,"inputs":{"values":[]},"outputs":{"values":[]}}'
    text = b'{"schema":"1.0.1","nodes":[' + node + b" \t\r\n," * 3 + node + b" ]}"
    losses = Losses()
    assert [c.name for c in read_calls(text, losses)] == ["a", "a"]
    assert not losses.as_list()
