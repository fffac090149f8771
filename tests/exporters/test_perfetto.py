"""The written file is read back the way a trace viewer reads it, with the json module."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.traces.exporters.perfetto import write_perfetto
from foretrace.traces.exporters.rows import Flows, Slices, Tracks

BASE = 1_700_000_000_123_456_789


def make_slices(rows: list[tuple[int, int, int]], **args: Any) -> Slices:
    """Slices from (track, start, duration)."""
    track, start, dur = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return Slices(
        names=['gemm<4, "x">', "wait"],
        categories=["kernel"],
        track=track.astype(np.int32),
        name=(np.arange(len(rows)) % 2).astype(np.int32),
        category=np.zeros(len(rows), np.int32),
        start_ns=start + BASE,
        dur_ns=dur,
        args=args,
    )


TRACKS = Tracks(["rank 0", "rank 1"], np.array([0, 0, 1], np.int32), ["main", "stream 7", "s 7"])


def cut(us: float) -> int:
    """Microseconds to whole nanoseconds as some viewers do it."""
    return int(us * 1000.0)


def rounded(us: float) -> int:
    return round(us * 1000.0)


def import_slices(
    events: list[dict[str, Any]], to_ns: Callable[[float], int]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(pid, tid) -> (start, duration); fails where a bar overlaps another without nesting."""
    bars = [e for e in events if e["ph"] == "X"]
    bars.sort(key=lambda e: to_ns(e["ts"]))  # stable, as viewers do
    rows = defaultdict(list)
    stacks = defaultdict(list)
    for bar in bars:
        key = bar["pid"], bar["tid"]
        start, dur = to_ns(bar["ts"]), to_ns(bar["dur"])
        stack = stacks[key]
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or start + dur <= stack[-1], f"{bar} would be dropped"
        stack.append(start + dur)
        rows[key].append((start, dur))
    return rows


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    loaded: dict[str, Any] = json.loads(data)
    return loaded


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(0, 1500)), max_size=40
    )
)
@pytest.mark.parametrize("to_ns", [cut, rounded])
def test_nothing_is_dropped_or_changed(
    tmp_path: Path, rows: list[tuple[int, int, int]], to_ns: Callable[[float], int]
) -> None:
    path = tmp_path / "out.json"
    write_perfetto(path, TRACKS, make_slices(rows))
    got = read(path)
    imported = import_slices(got["traceEvents"], to_ns)
    base = int(got["otherData"]["base_time_ns"])
    expected = sorted((start + BASE - base, dur) for _, start, dur in rows)
    assert sorted(bar for bars in imported.values() for bar in bars) == expected


def test_bars_back_to_back_stay_on_one_track(tmp_path: Path) -> None:
    edges = np.cumsum(np.r_[0, np.random.default_rng(1).integers(1, 5000, 3000)]).tolist()
    rows = [(1, a, b - a) for a, b in pairwise(edges)]
    write_perfetto(tmp_path / "out.json", TRACKS, make_slices(rows))
    imported = import_slices(read(tmp_path / "out.json")["traceEvents"], cut)
    assert [len(bars) for bars in imported.values()] == [3000]


def test_children_stay_with_their_parent_and_overlaps_move(tmp_path: Path) -> None:
    rows = [(1, 0, 100), (1, 0, 40), (1, 50, 50), (1, 90, 30), (1, 120, 5)]
    path = tmp_path / "out.json.gz"
    write_perfetto(path, TRACKS, make_slices(rows))
    got = read(path)["traceEvents"]
    imported = import_slices(got, rounded)
    assert list(imported.values()) == [[(0, 100), (0, 40), (50, 50), (120, 5)], [(90, 30)]]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in got if e["name"] == "thread_name"}
    assert [names[key] for key in imported] == ["stream 7", "stream 7 (overlap 1)"]


def test_names_processes_and_args(tmp_path: Path) -> None:
    rows = [(2, 0, 10), (0, 5, 10)]
    slices = make_slices(rows, step=[3, -1], group=["", "0-3"], bytes=np.array([1 << 40, 7]))
    write_perfetto(tmp_path / "out.json", TRACKS, slices, metadata={"trace": "run"})
    got = read(tmp_path / "out.json")
    second, first = (e for e in got["traceEvents"] if e["ph"] == "X")
    assert first["name"] == 'gemm<4, "x">'
    assert first["args"] == {"step": 3, "bytes": 1 << 40}
    assert second["args"] == {"group": "0-3", "bytes": 7}
    processes = {
        e["pid"]: e["args"]["name"] for e in got["traceEvents"] if e["name"] == "process_name"
    }
    assert (processes[first["pid"]], processes[second["pid"]]) == ("rank 1", "rank 0")
    assert got["otherData"] == {"base_time_ns": str(BASE), "trace": "run"}


def test_flows_bind_inside_their_bars(tmp_path: Path) -> None:
    slices = make_slices([(0, 0, 10), (1, 20, 10), (2, 30, 10)])
    flows = [
        Flows(np.array([0, 0]), np.array([1, 2]), "launch"),
        Flows(np.array([0]), np.array([2]), "release", np.array([BASE + 39])),
    ]
    write_perfetto(tmp_path / "out.json", TRACKS, slices, flows)
    events = read(tmp_path / "out.json")["traceEvents"]
    bars = {(e["pid"], e["tid"]): e for e in events if e["ph"] == "X"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert [a["ph"] for a in arrows] == ["s", "f"] * 3
    assert [a["id"] for a in arrows] == [1, 1, 2, 2, 3, 3]
    for arrow in arrows:
        bar = bars[arrow["pid"], arrow["tid"]]
        assert bar["ts"] <= arrow["ts"] < bar["ts"] + bar["dur"]
    assert rounded(arrows[-1]["ts"]) == 39
    assert all(a["bp"] == "e" for a in arrows if a["ph"] == "f")


def test_an_empty_timeline_is_a_valid_file(tmp_path: Path) -> None:
    write_perfetto(tmp_path / "out.json", TRACKS, make_slices([]))
    assert import_slices(read(tmp_path / "out.json")["traceEvents"], cut) == {}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    bad = make_slices([(0, 0, 1)], broken=[1, 2, 3][:0])
    with pytest.raises(IndexError):
        write_perfetto(path, TRACKS, bad)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_perfetto(tmp_path / name, TRACKS, make_slices([(0, 0, 10), (1, 3, 4)]))
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
