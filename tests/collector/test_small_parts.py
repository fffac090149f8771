"""Environment, layout, overhead, triggers, device timer, raw files: one small question each."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.collector.stores import MemoryStore
from tests.collector.tables import call, recording

from foretrace.collector.channel import Channel
from foretrace.collector.cudatimer import CudaTimer
from foretrace.collector.environment import own_rank, settings, topology
from foretrace.collector.layout import layout_of
from foretrace.collector.overhead import HookCosts, StepTimes, in_words, summary, typical
from foretrace.collector.place import Place, make_room
from foretrace.collector.spool import Group, read_recording, write_recording
from foretrace.collector.trigger import FileTrigger, SignalTrigger, Watcher
from foretrace.collector.window import Phase
from foretrace.traces.errors import ForetraceError, TraceFormatError


def test_settings_hold_no_secrets_and_no_paths() -> None:
    environ = {
        "NCCL_ALGO": "Ring",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "x" * 1000,
        "NCCL_API_KEY": "hunter2",
        "CUDA_HOME": "somewhere",
        "NCCL_TOPO_FILE": "somewhere",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "MY_NCCL_ALGO": "Tree",
    }
    found = settings(environ)
    assert set(found) == {
        "NCCL_ALGO",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
    }
    assert len(found["OMP_NUM_THREADS"]) == 200


def test_rank_without_a_process_group_comes_from_the_launcher() -> None:
    assert own_rank({}) == (0, 1, "")
    assert own_rank({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8, "")
    assert own_rank({"RANK": "three"}) == (0, 1, "")


class FakeNvml(ModuleType):
    """Two GPUs, the second of which answers little."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1
    NVML_NVLINK_MAX_LINKS = 4
    held = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.held += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.held -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return b"H200" if handle == 0 else "H200"

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        if handle:
            raise self.NVMLError
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if handle:
            raise self.NVMLError
        return int(link != 1)

    def nvmlDeviceGetNvLinkVersion(self, _handle: int, _link: int) -> int:  # noqa: N802
        return 4

    def nvmlDeviceGetNvLinkRemotePciInfo(self, _handle: int, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=b"00:05" if link else b"00:04")


def test_topology_holds_what_each_gpu_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert topology() == {
        "gpu.0.name": "H200",
        "gpu.0.pcie_width": "16",
        "gpu.0.nvlink": "version 4: 1 to 00:04, 2 to 00:05",
        "gpu.1.name": "H200",
    }
    assert nvml.held == 0


def test_no_binding_no_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert topology() == {}


def test_layout_from_mesh_and_from_megatron_names() -> None:
    mesh = [
        Group("0", "default_pg", [0, 1, 2, 3]),
        Group("1", "mesh_dp", [0, 2]),
        Group("2", "mesh_tp", [0, 1]),
        Group("3", "mesh_default", [0, 1]),
        Group("4", "mesh_unknown", []),
    ]
    assert layout_of(mesh) == {"dp": 2, "tp": 2}
    megatron = [
        Group("1", "TENSOR_MODEL_PARALLEL_GROUP", [0, 1]),
        Group("2", "PIPELINE_MODEL_PARALLEL_GROUP", [0, 2, 4, 6]),
        Group("3", "MODEL_PARALLEL_GROUP", [0, 1, 2, 3]),
    ]
    assert layout_of(megatron) == {"tp": 2, "pp": 4}
    assert layout_of([]) == {}


def test_costs_per_step() -> None:
    assert HookCosts(calls=20, inside_ns=6_000, entry_ns=4_000, steps=4).step_ms == 0.05
    assert HookCosts(calls=0, inside_ns=0, entry_ns=4_000, steps=0).step_ms == 0
    assert typical([1, 100, 3]) == 3
    assert typical([]) == 0


def test_overhead_compares_recorded_steps_with_bare_ones() -> None:
    times = StepTimes()
    phases = [Phase.IDLE, Phase.IDLE, Phase.WARMUP, *[Phase.RECORD] * 3, *[Phase.OVER] * 3]
    for phase, ms in zip(phases, (90, 10, 50, 12, 13, 14, 10, 11, 10), strict=True):
        times.add(phase, ms * 10**6)
    figures = summary(times, HookCosts(30, 6_000, 4_000, 3))
    assert figures["recorded_step_ms"] == 13
    assert figures["bare_step_ms"] == 10  # the very first step does not count
    assert in_words(figures) == (
        "step 13.0 ms recorded, 10.0 ms not: +3.0 ms (+30.0%), of it "
        "hooks 0.10 ms (0.8%) for 10 calls a step"
    )


def test_overhead_without_anything_to_compare_says_so() -> None:
    times = StepTimes()
    times.add(Phase.RECORD, 10**7)
    words = in_words(summary(times, HookCosts(0, 0, 0, 1)))
    assert "no unrecorded steps to compare with" in words


def test_a_file_triggers_when_it_appears_or_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "go"
    fresh = FileTrigger(str(path))
    assert not fresh()
    path.touch()
    assert fresh()
    stale = FileTrigger(str(path))
    assert not stale()
    os.utime(path, ns=(1, 1))
    assert stale()


def test_a_signal_triggers_and_the_former_handler_still_runs() -> None:
    heard: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    try:
        trigger = SignalTrigger(signal.SIGUSR1)
        trigger.install()
        assert not trigger()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert trigger()
        assert heard == [signal.SIGUSR1]
        trigger.remove()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_signal_cannot_trigger_from_another_thread() -> None:
    caught: list[BaseException] = []

    def install() -> None:
        try:
            SignalTrigger(signal.SIGUSR1).install()
        except ForetraceError as error:
            caught.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_ranks_agree_on_a_step_that_none_has_passed() -> None:
    store, begun = MemoryStore(), {}
    steps = {0: 100, 1: 103, 2: 98}

    def watcher(rank: int) -> Watcher:
        return Watcher(
            lambda: rank == 2,  # rank 2 alone sees the trigger, rank 0 leads
            Channel(store),
            rank == 0,
            lambda: (steps[rank], 0.1),
            lambda step: begun.__setitem__(rank, step),
        )

    stop = threading.Event()
    threads = [threading.Thread(target=watcher(r).run, args=(stop,)) for r in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert set(begun) == {0, 1, 2}
    assert len(set(begun.values())) == 1
    assert begun[0] > max(steps.values())


def test_a_process_on_its_own_begins_with_the_next_step() -> None:
    begun: list[int] = []
    Watcher(lambda: True, None, True, lambda: (5, 0.0), begun.append).run(threading.Event())
    assert begun == [6]


@dataclass
class FakeEvent:
    clock: FakeCuda
    at_ms: float = -1

    def record(self) -> None:
        self.clock.now_ms += 1
        self.at_ms = self.clock.now_ms

    def synchronize(self) -> None:
        assert self.at_ms >= 0

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


@dataclass
class FakeStream:
    cuda_stream: int = 31


@dataclass
class FakeDevice:
    index: int


@dataclass
class FakeTensor:
    device: FakeDevice
    is_cuda: bool = True


@dataclass
class FakeCuda:
    """As much of ``torch.cuda`` as the timer uses; each event takes a millisecond."""

    now_ms: float = 0
    capturing: bool = False
    made: list[FakeEvent] = field(default_factory=list)

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        return FakeEvent(self)

    def current_device(self) -> int:
        return 2

    def current_stream(self, _device: Any) -> FakeStream:
        return FakeStream()

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def test_device_times_are_on_the_hosts_clock() -> None:
    cuda = FakeCuda()
    timer = CudaTimer(cuda)
    before = time.time_ns()
    timer.open()
    after = time.time_ns()
    here, elsewhere = FakeTensor(FakeDevice(2)), FakeTensor(FakeDevice(3))
    timer.reached(0, here)
    timer.reached(1, elsewhere)  # events of another device have another clock
    timer.reached(2, FakeTensor(FakeDevice(-1), is_cuda=False))
    timer.reached(3, here)
    for act in (timer.waiting, timer.waited):
        act(0)
        act(1)
    cuda.capturing = True
    timer.reached(4, here)
    first, second = timer.spans()
    assert (first.ident, first.device, first.stream) == (0, 2, 31)
    assert before + 10**6 <= first.start_ns <= after + 10**6
    assert first.wait_ns - first.start_ns == 2 * 10**6
    assert first.end_ns - first.wait_ns == 10**6
    assert (second.ident, second.wait_ns, second.end_ns) == (3, -1, -1)


def test_raw_files_come_back_as_they_were(tmp_path: Path) -> None:
    given = recording(call(0, "send", 1, 2, in_splits=[1, 2]), labels={"a": "b"})
    write_recording(tmp_path, given)
    assert read_recording(tmp_path) == given


@pytest.mark.parametrize("damage", [None, b"", b"\xc1not msgpack"])
def test_damaged_raw_files_are_named(tmp_path: Path, damage: bytes | None) -> None:
    if damage is not None:
        (tmp_path / "recording.msgpack").write_bytes(damage)
    with pytest.raises(TraceFormatError, match=r"recording\.msgpack: no whole recording"):
        read_recording(tmp_path)


def place_at(target: Path, rank: int = 0) -> Place:
    return Place(rank, 2, "", 0, str(target), None)


def test_an_older_recording_makes_room_on_the_reference_rank_only(tmp_path: Path) -> None:
    target = tmp_path / "run.trace"
    for name in ("rank=00000", "rank=00007"):
        (target / name).mkdir(parents=True)
    (target / "manifest.json").write_text("{}")
    make_room(place_at(target, rank=1))
    assert (target / "manifest.json").exists()
    make_room(place_at(target))
    assert list(target.iterdir()) == []


def test_a_folder_that_is_no_trace_set_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ForetraceError, match="no trace set"):
        make_room(place_at(tmp_path))
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(ForetraceError, match="no trace set"):
        make_room(place_at(tmp_path / "thesis.tex"))
