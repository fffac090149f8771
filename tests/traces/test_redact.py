"""A redacted copy names nobody, and everything else is as it was."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.traces.kineto import document, kernel, lasting, write

from foretrace.traces.errors import TraceFormatError
from foretrace.traces.importers import import_paths
from foretrace.traces.redact import redact
from foretrace.traces.store import TraceSet

SECRETS = (
    "alice",
    "gpu-node-17",
    "bob@example.org",
    "/home/alice",
    "10.1.2.3",
    "s3://private-bucket",
    "train_secret_model",
    "C:\\secret",
    "Project X",
)
KEPT = ("aten::mm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "void gemm<float, 4>(float*/*x*/)")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    for rank in (0, 1):
        events = [
            lasting("python_function", "/home/alice/train_secret_model.py(12): step", 0, 9),
            lasting("python_function", "torch/nn/modules/module.py(1): forward", 1, 2),
            lasting("user_annotation", "load s3://private-bucket/data on gpu-node-17", 1, 1),
            lasting("user_annotation", "ProfilerStep#3", 0, 50),
            lasting("cpu_op", "run by alice", 1, 1),
            lasting("cpu_op", "mail bob@example.org from 10.1.2.3", 2, 1),
            lasting(
                "cpu_op", "aten::mm", 3, 1, args={"Concrete Inputs": ["/home/alice/w.pt", "3"]}
            ),
            lasting("cpu_op", "read C:\\secret\\w.bin", 4, 1),
            kernel("void gemm<float, 4>(float*/*x*/)", 5, 1, 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, 1, 2, stream=20),
            lasting("cpu_op", "malice in division a/b", 9, 1),
        ]
        content = document(
            events,
            rank=rank,
            host_name=f"gpu-node-17{rank}" if rank else "gpu-node-17",
            username="alice",
            job_title="Project X",
            record_shapes=1,
            torch_version="2.5+/home/alice/build",
        )
        write(tmp_path / f"alice/rank{rank}.json", content)
    import_paths([tmp_path / "alice"], tmp_path / "alice/o.trace", jobs=1, python=True)
    return tmp_path / "alice/o.trace"


def all_bytes(path: Path) -> bytes:
    """Everything that is in a trace set, Parquet unpacked."""
    parts = [f.read_bytes() for f in path.rglob("*.json")]
    for file in path.rglob("*.parquet"):
        table = pq.read_table(file)
        parts += [str(v).encode() for column in table.columns for v in column.to_pylist()]
    return b"\n".join(parts)


def test_nothing_secret_is_left(original: Path, tmp_path: Path) -> None:
    before = all_bytes(original)
    report = redact(original, tmp_path / "r.trace")
    after = all_bytes(tmp_path / "r.trace").replace(b"malice", b"")  # a word of its own
    for secret in SECRETS:
        assert secret.encode() in before.replace(b"\\\\", b"\\"), secret
        assert secret.encode() not in after, secret
    for name in KEPT:
        assert name.encode() in after, name
    assert report.ranks == [0, 1]
    assert report.replaced["host"] == 2
    assert report.replaced["user"] == 1
    assert report.replaced["frame"] == 2


def test_the_rest_is_as_it_was(original: Path, tmp_path: Path) -> None:
    redact(original, tmp_path / "r.trace")
    old, new = TraceSet.open(original), TraceSet.open(tmp_path / "r.trace")
    assert new.ranks == old.ranks
    for rank in old.ranks:
        kept = [c for c in old.events(rank).column_names if c not in ("name", "inputs")]
        assert new.events(rank, kept).equals(old.events(rank, kept))
        assert new.collectives(rank).equals(old.collectives(rank))
        assert new.info(rank).steps == old.info(rank).steps
        assert new.info(rank).groups == old.info(rank).groups
        assert new.info(rank).labels == {"record_shapes": "1"}
        assert new.info(rank).host == f"host-{rank}"
    names = new.events(0)["name"].to_pylist()
    assert "load path-4 on host-0" in names or any(n.startswith("load path-") for n in names)
    assert "malice in division a/b" in names
    assert names[:1] == ["ProfilerStep#3"]


def test_it_is_the_same_every_time(original: Path, tmp_path: Path) -> None:
    redact(original, tmp_path / "a.trace")
    redact(original, tmp_path / "b.trace")
    assert all_bytes(tmp_path / "a.trace") == all_bytes(tmp_path / "b.trace")
    redact(tmp_path / "a.trace", tmp_path / "c.trace")
    assert (
        TraceSet.open(tmp_path / "c.trace")
        .events(0)
        .equals(TraceSet.open(tmp_path / "a.trace").events(0))
    )


def test_a_copy_that_fails_leaves_nothing(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("foretrace.traces.redact.TraceSetWriter.finish", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="No space"):
        redact(original, tmp_path / "copy.trace")
    assert sorted(tmp_path.iterdir()) == before


def test_it_overwrites_nothing(original: Path) -> None:
    with pytest.raises(TraceFormatError, match="exists"):
        redact(original, original)
