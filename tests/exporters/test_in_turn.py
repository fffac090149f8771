"""Timelines that are written one at a time against the same ones written as one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.exporters.pftrace_reader import read_pftrace

from foretrace.traces.exporters import perfetto, pftrace
from foretrace.traces.exporters.rows import Flows, Slices, Timeline, Tracks

BASE = 1_700_000_000_123_456_789
NAMES = (["gemm", "wait"], ["copy", "gemm"], ["wait"])
"""Of each part; what two parts share has another number in each."""


def part(number: int) -> Timeline:
    """Two rows, bars that overlap on one of them, an argument and an arrow."""
    track = np.array([0, 1, 1, 1], np.int32)
    slices = Slices(
        names=NAMES[number],
        categories=["kernel"],
        track=track,
        name=(np.arange(4) % len(NAMES[number])).astype(np.int32),
        category=np.zeros(4, np.int32),
        start_ns=np.array([0, 5, 9, 30]) + BASE - 3 * number,
        dur_ns=np.array([4, 10, 20, 1]),
        args={"bytes": np.array([7, -1, number, 9])},
    )
    tracks = Tracks([f"rank {number}"], np.zeros(2, np.int32), ["thread 1", "stream 7"])
    return Timeline(tracks, slices, [Flows(np.array([0, 0]), np.array([1, 3]), "launch")])


def merged(parts: list[Timeline]) -> Timeline:
    """One timeline of them all."""
    words = ["gemm", "wait", "copy"]
    names = [np.array([words.index(n) for n in p.slices.names])[p.slices.name] for p in parts]
    bars = [p.slices for p in parts]
    slices = Slices(
        names=words,
        categories=["kernel"],
        track=np.concatenate([b.track + 2 * i for i, b in enumerate(bars)]).astype(np.int32),
        name=np.concatenate(names).astype(np.int32),
        category=np.concatenate([b.category for b in bars]),
        start_ns=np.concatenate([b.start_ns for b in bars]),
        dur_ns=np.concatenate([b.dur_ns for b in bars]),
        args={"bytes": np.concatenate([b.args["bytes"] for b in bars])},
    )
    arrows = [(p.flows[0].source + 4 * i, p.flows[0].target + 4 * i) for i, p in enumerate(parts)]
    source, target = (np.concatenate(ends) for ends in zip(*arrows, strict=True))
    tracks = Tracks(
        [name for p in parts for name in p.tracks.processes],
        np.repeat(np.arange(len(parts)), 2).astype(np.int32),
        [name for p in parts for name in p.tracks.name],
    )
    return Timeline(tracks, slices, [Flows(source, target, "launch")])


def test_json_is_the_same(tmp_path: Path) -> None:
    parts = [part(i) for i in range(3)]
    whole = merged(parts)
    perfetto.write_timelines(tmp_path / "a.json", parts, {"trace": "run"})
    perfetto.write_perfetto(
        tmp_path / "b.json", whole.tracks, whole.slices, whole.flows, {"trace": "run"}
    )
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_pftrace_tells_the_same(tmp_path: Path) -> None:
    """The packets of a part stand together; readers sort them by time."""
    parts = [part(i) for i in range(3)]
    whole = merged(parts)
    pftrace.write_timelines(tmp_path / "a", parts)
    pftrace.write_pftrace(tmp_path / "b", whole.tracks, whole.slices, whole.flows)
    one, other = (read_pftrace((tmp_path / name).read_bytes()) for name in "ab")
    assert (one.tracks, one.processes) == (other.tracks, other.processes)
    assert sorted(one.bars, key=lambda b: (b.track, b.start)) == sorted(
        other.bars, key=lambda b: (b.track, b.start)
    )


class Watched:
    """Makes timelines anew and sees to it that earlier ones are gone but for the last."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Timeline]] = []
        self.most = 0

    def __iter__(self) -> Iterator[Timeline]:
        for i in (0, 1, 2, 0, 1, 2):
            gc.collect()
            self.most = max(self.most, sum(ref() is not None for ref in self.made))
            made = _Weak(part(i).tracks, part(i).slices, part(i).flows)
            self.made.append(weakref.ref(made))
            yield made
            del made


class _Weak(Timeline):
    """A timeline that can be watched: it has no slots."""


@pytest.mark.parametrize("write", [perfetto.write_timelines, pftrace.write_timelines])
def test_one_at_a_time(tmp_path: Path, write: Callable[[Path, Watched], None]) -> None:
    watched = Watched()
    write(tmp_path / "out", watched)
    assert len(watched.made) == 12
    assert watched.most <= 1
