"""What a rank hands to the process that converts its recording: plain records, no torch.

The training process writes one ``recording.msgpack`` beside the profiler's JSON; the converter
reads it back. Both sides share these structs, so that neither guesses at the other's keys.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from foretrace.traces.errors import TraceFormatError

RECORDING_NAME = "recording.msgpack"
KINETO_NAME = "kineto.json"


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One ``c10d::`` call as the hook saw it; times in ns since the epoch, -1 for absent.

    Attributes:
        ident: number of the call on its rank.
        operator: name without the library's prefix, such as ``allreduce_``.
        thread: system id of the calling thread.
        start_ns: the hook was entered.
        end_ns: the operator had returned.
        group: index into ``Recording.groups``.
        seq: sequence number within the group, or between the two peers for p2p.
        peer: global rank of the p2p peer or of the root.
        bytes_in: bytes put in.
        bytes_out: bytes got out.
        dtype: c10 ScalarType name.
        is_async: 1 asynchronous, 0 blocking, -1 unknown.
        in_splits: elements sent to each member; None for equal parts.
        out_splits: elements received from each member; None for equal parts.
        backward: number of the backward pass that issued it, -1 outside of any.
        from_python: Python code holds its Work; else C++ does (DDP's reducer).
    """

    ident: int
    operator: str
    thread: int
    start_ns: int
    end_ns: int
    group: int
    seq: int
    peer: int
    bytes_in: int
    bytes_out: int
    dtype: str
    is_async: int
    in_splits: list[int] | None
    out_splits: list[int] | None
    backward: int = -1
    from_python: bool = True


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """A host thread waited for a call's work.

    Attributes:
        ident: the call's ``ident``, -1 for a call made before the recording.
        thread: system id of the waiting thread.
        start_ns: wait began.
        end_ns: wait returned.
        annotated: the profiler holds an annotation row of this wait.
    """

    ident: int
    thread: int
    start_ns: int
    end_ns: int
    annotated: bool


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The work of a call completed, seen by the communication library's own thread.

    Attributes:
        ident: the call's ``ident``.
        thread: system id of the thread that completed it.
        time_ns: when.
    """

    ident: int
    thread: int
    time_ns: int


class DeviceSpan(msgspec.Struct, frozen=True, array_like=True):
    """When a device stream reached a call and when it went on after it.

    Attributes:
        ident: the call's ``ident``.
        device: device index.
        stream: the caller's stream.
        start_ns: the stream reached the call.
        wait_ns: the stream reached the wait for it; -1 when nobody waited.
        end_ns: the stream went on after the wait; -1 when nobody waited.
    """

    ident: int
    device: int
    stream: int
    start_ns: int
    wait_ns: int
    end_ns: int


class Group(msgspec.Struct, frozen=True):
    """A process group.

    Attributes:
        name: the rank's own name of the group.
        description: what its maker called it.
        ranks: global ranks in group order.
    """

    name: str
    description: str
    ranks: list[int]


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One recorded step on the host.

    Attributes:
        step: step number.
        start_ns: begin, ns since the epoch.
        end_ns: end.
        thread: system id of the thread that runs the loop.
    """

    step: int
    start_ns: int
    end_ns: int
    thread: int


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One measurement of this rank's clock against the reference rank's.

    Attributes:
        local_ns: this rank's clock at the middle of the exchange.
        offset_ns: what to add to this rank's clock to get the reference's.
        rtt_ns: round trip of the exchange; the error is at most half of it.
    """

    local_ns: int
    offset_ns: int
    rtt_ns: int


class Recording(msgspec.Struct):
    """All that one rank knows besides the profiler's JSON.

    Attributes:
        rank: global rank.
        world_size: ranks in the job.
        detail: "full" or "light".
        backend: the default group's backend, "" without one.
        start_ns: the recording began.
        end_ns: the recording ended.
        hook: "" where the hook saw all calls, else why it could not.
        host: host name.
        device_name: accelerator model, "" without one.
        device_count: accelerators that the process sees.
        groups: process groups.
        steps: recorded steps.
        calls: communication calls.
        waits: host waits.
        done: completions.
        spans: device times of calls (light detail on a GPU).
        clock_offset_ns: constant added to every time.
        clock_samples: what the offset was taken from.
        versions: software versions.
        environment: settings and topology.
        layout: parallel layout, axis -> size.
        labels: the user's labels.
        overhead: what the recording cost, see ``overhead.Costs``.
    """

    rank: int
    world_size: int
    detail: str
    backend: str
    start_ns: int
    end_ns: int
    hook: str = ""
    host: str = ""
    device_name: str = ""
    device_count: int = 0
    groups: list[Group] = []
    steps: list[Step] = []
    calls: list[Call] = []
    waits: list[Wait] = []
    done: list[Done] = []
    spans: list[DeviceSpan] = []
    clock_offset_ns: int = 0
    clock_samples: list[Sample] = []
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    layout: dict[str, int] = {}
    labels: dict[str, str] = {}
    overhead: dict[str, float] = {}


class Outcome(msgspec.Struct):
    """What the converting process tells the training process on its standard output.

    Attributes:
        error: "" if all went well.
        seconds: time taken.
        events: rows of events.
        collectives: rows of collectives.
        matched: collectives whose call was found among the events.
        executed: collectives whose execution was found.
        bytes: size of the rank's Parquet files where they are local, else -1.
    """

    error: str = ""
    seconds: float = 0.0
    events: int = 0
    collectives: int = 0
    matched: int = 0
    executed: int = 0
    bytes: int = -1


def write_recording(folder: Path, recording: Recording) -> None:
    """Write ``recording`` into ``folder``."""
    partial = folder / f".{RECORDING_NAME}"
    partial.write_bytes(msgspec.msgpack.encode(recording))
    partial.replace(folder / RECORDING_NAME)


def read_recording(folder: Path) -> Recording:
    """Read what :func:`write_recording` wrote.

    Raises:
        TraceFormatError: the file is missing or damaged.
    """
    path = folder / RECORDING_NAME
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{path}: no whole recording here ({error}); record the rank again"
        raise TraceFormatError(message) from error
