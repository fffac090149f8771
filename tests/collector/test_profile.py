"""The context manager in one process: what it records, and that it never harms the loop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from foretrace import ForetraceError, TraceSet
from foretrace.collector import profile
from foretrace.collector.hook import CollectiveHook
from foretrace.collector.session import Session

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def work() -> None:
    x = torch.ones(16, 16, requires_grad=True)
    (x @ x).sum().backward()


def said(captured: Any) -> list[str]:
    return [line for line in captured.err.splitlines() if line.startswith("foretrace: ")]


def test_a_loop_without_distributed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with profile(tmp_path / "run.trace", wait=1, warmup=1, active=2, layout={"dp": 1}) as prof:
        for _ in range(8):
            work()
            prof.step()
    trace = TraceSet.open(tmp_path / "run.trace")
    assert (trace.ranks, trace.steps, trace.problems) == ([0], [2, 3], [])
    info = trace.info(0)
    assert (info.world_size, info.backend, info.groups, info.layout) == (1, "", [], {"dp": 1})
    names = trace.events(0, ["name"])["name"].to_pylist()
    assert names.count("aten::mm") == 3 * 2  # one forward and two backward in each step
    assert len(trace.collectives(0)) == 0
    assert trace.manifest.job["active"] == 2
    (line,) = said(capfd.readouterr())
    assert "rank 0, steps 2-3" in line
    assert " not: " in line  # there were steps to compare with


def test_an_error_of_the_loop_passes_through_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    class LossIsNanError(Exception):
        pass

    error = LossIsNanError()

    def loop() -> None:
        with profile(tmp_path / "run.trace", wait=0, warmup=1, active=5) as prof:
            for step in range(8):
                work()
                if step == 3:
                    raise error
                prof.step()

    with pytest.raises(LossIsNanError) as caught:
        loop()
    assert caught.value is error
    trace = TraceSet.open(tmp_path / "run.trace")
    assert trace.steps == [1, 2, 3]
    assert trace.problems == []


def test_a_loop_that_ends_too_soon_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with profile(tmp_path / "run.trace", wait=0, warmup=3, active=2) as prof:
        for _ in range(2):
            work()
            prof.step()
    assert said(capfd.readouterr()) == [
        "foretrace: rank 0: nothing recorded: the loop ended after 2 steps, before steps 3-4"
    ]
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_second_profiler_is_refused_before_the_loop(tmp_path: Path) -> None:
    with (
        torch.profiler.profile(),
        pytest.raises(ForetraceError, match=r"already running.*detail='light'"),
        profile(tmp_path / "run.trace"),
    ):
        pass
    assert not (tmp_path / "run.trace").exists()


def test_light_detail_goes_with_a_profiler_of_the_scripts_own(tmp_path: Path) -> None:
    with (
        torch.profiler.profile(),
        profile(tmp_path / "run.trace", wait=0, warmup=0, active=2, detail="light") as prof,
    ):
        for _ in range(3):
            work()
            prof.step()
    trace = TraceSet.open(tmp_path / "run.trace")
    assert trace.info(0).detail == "light"
    assert trace.events(0, ["name"])["name"].to_pylist() == ["ProfilerStep#0", "ProfilerStep#1"]


def test_a_profiler_started_inside_the_loop_costs_the_recording_not_the_loop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = 0
    ours = profile(tmp_path / "run.trace", wait=1, warmup=1, active=2)
    with ours as prof, torch.profiler.profile():
        for _ in range(3):
            work()
            steps += 1
            prof.step()
    assert steps == 3
    assert said(capfd.readouterr()) == [
        "foretrace: rank 0: recording given up: another torch profiler was started inside the loop"
    ]


def test_nothing_of_ours_raises_into_the_loop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_session: Session) -> None:
        raise OSError("disk\non fire")

    monkeypatch.setattr(Session, "_close", fail)
    with profile(tmp_path / "run.trace", wait=0, warmup=0, active=1) as prof:
        for _ in range(3):
            work()
            prof.step()
    (line,) = said(capfd.readouterr())
    assert line == "foretrace: rank 0: recording given up: OSError: disk"
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_version_that_refuses_the_hook_falls_back_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_hook: CollectiveHook) -> None:
        raise RuntimeError("kernel registration refused (no such key)")

    monkeypatch.setattr(CollectiveHook, "install", refuse)
    with profile(tmp_path / "run.trace", wait=0, warmup=0, active=1) as prof:
        for _ in range(2):
            work()
            prof.step()
    (line,) = said(capfd.readouterr())
    assert "no collective hook (kernel registration refused (no such key))" in line
    (dropped,) = TraceSet.open(tmp_path / "run.trace").info(0).dropped
    assert "kernel registration refused" in dropped.reason
    with profile(tmp_path / "light.trace", wait=0, warmup=0, active=1, detail="light") as prof:
        prof.step()
    (line,) = said(capfd.readouterr())
    assert "light detail needs the collective hook" in line


def test_a_signal_starts_the_recording(tmp_path: Path) -> None:
    former = signal.getsignal(signal.SIGUSR1)
    with profile(
        tmp_path / "run.trace",
        wait=0,
        warmup=0,
        active=2,
        detail="light",
        trigger="SIGUSR1",
    ) as prof:
        steps = 0
        deadline = time.monotonic() + 20
        while not prof._finisher.handed_over and time.monotonic() < deadline:
            if steps == 5:
                os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.02)
            steps += 1
            prof.step()
    assert signal.getsignal(signal.SIGUSR1) is former
    numbers = TraceSet.open(tmp_path / "run.trace").steps
    assert len(numbers) == 2
    assert numbers[0] > 5


def test_no_thread_of_ours_outlives_the_context(tmp_path: Path) -> None:
    with profile(tmp_path / "run.trace", wait=5, trigger=tmp_path / "never") as prof:
        prof.step()
        assert any(t.name.startswith("foretrace") for t in threading.enumerate())
    assert not [t.name for t in threading.enumerate() if t.name.startswith("foretrace")]


def test_a_rank_that_does_not_record_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with profile(tmp_path / "run.trace", ranks=[0, 1]) as prof:
        prof.step()
    assert not (tmp_path / "run.trace").exists()


def test_a_failed_conversion_keeps_the_raw_files_and_names_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with profile(tmp_path / "run.trace", wait=0, warmup=0, active=1) as prof:
        work()
        prof.step()
    lines = said(capfd.readouterr())
    assert "conversion failed: exit status 1; raw files are kept in" in lines[0]
    raw = tmp_path / "run.trace" / ".raw-00000"
    assert {path.name for path in raw.iterdir()} == {"kineto.json", "recording.msgpack"}
    assert str(raw) in lines[0]


def test_an_older_set_is_replaced(tmp_path: Path) -> None:
    for active in (2, 1):
        with profile(
            tmp_path / "run.trace", wait=0, warmup=0, active=active, detail="light"
        ) as prof:
            for _ in range(3):
                prof.step()
    assert TraceSet.open(tmp_path / "run.trace").steps == [0]
