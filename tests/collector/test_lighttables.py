"""Light recordings: what the rows are when only the hooks have seen anything."""

from __future__ import annotations

from tests.collector.tables import MAIN, OTHER, WORKER, call, column, names_at, recording, starts_at

from foretrace.collector.lighttables import light_tables
from foretrace.collector.spool import DeviceSpan, Done, Step, Wait


def test_a_step_with_a_collective_and_a_receive() -> None:
    hooks = recording(
        call(0, "allreduce_", 100, 110),
        call(1, "recv_", 120, 130, peer=3),
        detail="light",
        steps=[Step(4, 50, 500, MAIN)],
        waits=[Wait(1, MAIN, 140, 300, False), Wait(0, MAIN, 310, 320, False)],
        done=[Done(0, WORKER, 200)],
    )
    events, found = light_tables(hooks)
    assert column(events, "start_ns") == sorted(column(events, "start_ns"))
    assert set(column(events, "step")) == {4}
    assert column(events, "kind").count("annotation") == 5
    assert names_at(events, column(found, "call_event")) == ["c10d::allreduce_", "c10d::recv_"]
    assert names_at(events, column(found, "work_event")) == ["gloo:all_reduce", "gloo:recv"]
    assert names_at(events, column(found, "wait_event")) == ["foretrace::wait"] * 2
    assert starts_at(events, column(found, "wait_event")) == [310, 140]
    work = [events.slice(row, 1).to_pylist()[0] for row in column(found, "work_event")]
    assert [(w["start_ns"], w["dur_ns"], w["thread"]) for w in work] == [
        (100, 100, WORKER),
        (120, 180, MAIN),
    ]


def test_a_library_thread_runs_one_collective_after_the_other() -> None:
    hooks = recording(
        *(call(i, "allreduce_", 100 + i, 105 + i) for i in range(3)),
        detail="light",
        done=[Done(0, WORKER, 300), Done(1, OTHER, 250), Done(2, WORKER, 400)],
    )
    events, found = light_tables(hooks)
    assert starts_at(events, column(found, "work_event")) == [100, 101, 300]


def test_a_work_that_was_over_at_once_names_no_thread() -> None:
    hooks = recording(call(0, "barrier", 100, 110), detail="light", done=[Done(0, MAIN, 108)])
    events, found = light_tables(hooks)
    assert column(events, "thread")[column(found, "work_event")[0]] == -1


def test_device_times_become_rows_of_a_stream() -> None:
    hooks = recording(
        call(0, "allreduce_", 100, 110),
        call(1, "send", 120, 130, peer=3),
        detail="light",
        spans=[DeviceSpan(0, 2, 31, 400, 600, 700), DeviceSpan(1, 2, 31, 450, -1, -1)],
        waits=[Wait(1, MAIN, 140, 141, False)],
    )
    events, found = light_tables(hooks)
    (row,) = [r for r in column(found, "work_event") if r >= 0]
    work = events.slice(row, 1).to_pylist()[0]
    assert (work["kind"], work["device"], work["stream"], work["thread"]) == ("kernel", 2, 31, -1)
    assert (work["start_ns"], work["dur_ns"]) == (400, 300)
    assert column(found, "work_event")[1] == -1  # nobody saw the send's end on the device


def test_buckets_of_a_backward_pass_are_waited_for_in_order() -> None:
    silent = {"backward": 9, "from_python": False}
    hooks = recording(
        *(call(i, "allreduce_", 100 + 10 * i, 105 + 10 * i, **silent) for i in range(3)),
        detail="light",
        done=[Done(0, WORKER, 110), Done(1, OTHER, 200), Done(2, WORKER, 190)],
    )
    events, found = light_tables(hooks)
    rows = [events.slice(row, 1).to_pylist()[0] for row in column(found, "wait_event")]
    assert [(r["start_ns"], r["dur_ns"]) for r in rows] == [(125, 0), (125, 75), (200, 0)]


def test_nothing_happened() -> None:
    events, found = light_tables(recording(detail="light", steps=[Step(1, 0, 9, MAIN)]))
    assert (len(events), len(found)) == (1, 0)
