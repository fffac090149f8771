"""The written file is read back by its wire format alone, and by Perfetto's own classes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.exporters.pftrace_reader import read_pftrace

from foretrace.traces.exporters.pftrace import write_pftrace
from foretrace.traces.exporters.rows import Flows, Slices, Tracks

BASE = 1_700_000_000_123_456_789
TRACKS = Tracks(["rank 0", "rank 1"], np.array([0, 0, 1], np.int32), ["main", "stream 7", "s 7"])


def make(rows: list[tuple[int, int, int]]) -> Slices:
    """Slices from (track, start, duration), each with its number as an argument."""
    track, start, dur = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return Slices(
        names=["gemm ü", "wait"],
        categories=["kernel", "host"],
        track=track.astype(np.int32),
        name=(np.arange(len(rows)) % 2).astype(np.int32),
        category=np.ones(len(rows), np.int32),
        start_ns=start + BASE,
        dur_ns=dur,
        args={"number": np.arange(1, len(rows) + 1), "text": ["x", *[""] * (len(rows) - 1)]},
    )


def test_names_times_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    write_pftrace(path, TRACKS, make([(0, 0, 10), (2, 5, 1)]), metadata={"trace": "run"})
    trace = read_pftrace(path.read_bytes())
    assert list(trace.processes.values()) == ["rank 0", "rank 1"]
    one, two = trace.bars
    assert trace.tracks[one.track][0] == "main"
    assert trace.processes[trace.tracks[two.track][1]] == "rank 1"
    assert (one.name, one.category, one.start - BASE, one.end - BASE) == ("gemm ü", "host", 0, 10)
    assert one.args == {"number": 1, "text": "x"}
    assert two.args == {"number": 2}


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=40
)


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_bar_comes_back_with_its_own_end(
    tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    """Beginnings and ends at equal times, empty bars and overlaps are where this goes wrong."""
    path = tmp_path / "x.pftrace"
    write_pftrace(path, TRACKS, make(rows))
    trace = read_pftrace(path.read_bytes())
    found = {b.args["number"]: (b.start - BASE, b.end - b.start) for b in trace.bars}
    assert found == {i: (start, dur) for i, (_, start, dur) in enumerate(rows, start=1)}
    for bar in trace.bars:
        name = trace.tracks[bar.track][0].split(" (overlap")[0]
        assert name == TRACKS.name[rows[bar.args["number"] - 1][0]]


def test_arrows_lead_from_bar_to_bar_and_not_back_in_time(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace.gz"
    slices = make([(0, 0, 5), (1, 3, 9), (2, 8, 1)])
    flows = [
        Flows(np.array([0, 2]), np.array([1, 1]), "launch"),
        Flows(np.array([0]), np.array([2]), "sync"),
    ]
    write_pftrace(path, TRACKS, slices, flows)
    one, two, three = read_pftrace(gzip.decompress(path.read_bytes())).bars
    assert (one.leaving, one.arriving) == ([1, 2], [])
    assert (two.leaving, two.arriving) == ([], [1])
    assert (three.leaving, three.arriving) == ([], [2])


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(b"old")
    broken = make([(0, 0, 1)])
    with pytest.raises(IndexError):
        write_pftrace(path, Tracks([], np.zeros(0, np.int32), []), broken)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.pftrace"]


def test_no_bars(tmp_path: Path) -> None:
    none = np.zeros(0, np.int64)
    short = none.astype(np.int32)
    write_pftrace(tmp_path / "x", TRACKS, Slices([], [], short, short, short, none, none))
    assert read_pftrace((tmp_path / "x").read_bytes()).bars == []


def test_perfettos_own_classes_read_it(tmp_path: Path) -> None:
    proto = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed"
    )
    path = tmp_path / "x.pftrace"
    write_pftrace(path, TRACKS, make([(0, 0, 10), (0, 2, 3)]))
    trace = proto.Trace.FromString(path.read_bytes())
    events = [p.track_event for p in trace.packet if p.HasField("track_event")]
    kinds = proto.TrackEvent.Type
    assert [e.type for e in events] == [
        *(kinds.TYPE_SLICE_BEGIN, kinds.TYPE_SLICE_BEGIN, kinds.TYPE_SLICE_END),
        kinds.TYPE_SLICE_END,
    ]
    assert [a.int_value for a in events[0].debug_annotations if a.name_iid == 1] == [1]
    described = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    assert [d.process.process_name or d.name for d in described] == ["rank 0", "rank 1", "main"]
    assert {p.trusted_packet_sequence_id for p in trace.packet} == {1}
