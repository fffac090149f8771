"""What is decoded of a Kineto event: typed structs, only the fields that are kept."""

from __future__ import annotations

import msgspec

Number = int | float | str | None
"""Ids and counts: a number, or text such as ``"stream 7"`` or ``"0x0"`` in some writers."""


NO_STREAM = -2
"""Stands for an absent ``stream``; -1 is what a synchronisation of all streams writes."""

EMPTY = msgspec.Raw(b"")
"""Stands for absent JSON text, compared by identity."""


class Args(msgspec.Struct, gc=False):
    """``args`` of an event that lasts (ph X)."""

    external_id: Number = msgspec.field(default=-1, name="External id")
    old_external_id: Number = msgspec.field(default=-1, name="external id")
    correlation: Number = -1
    device: Number = -1
    stream: Number = NO_STREAM
    sequence: Number = msgspec.field(default=-1, name="Sequence number")
    fwd_thread: Number = msgspec.field(default=-1, name="Fwd thread id")
    bytes: Number = -1
    shapes: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Dims")
    dtypes: msgspec.Raw = msgspec.field(default=EMPTY, name="Input type")
    inputs: msgspec.Raw = msgspec.field(default=EMPTY, name="Concrete Inputs")
    grid: msgspec.Raw = EMPTY
    block: msgspec.Raw = EMPTY
    graph_node: Number = msgspec.field(default=-1, name="graph node id")
    wait_stream: Number = msgspec.field(default=-1, name="wait_on_stream")
    wait_correlation: Number = msgspec.field(default=-1, name="wait_on_cuda_event_record_corr_id")
    rf_id: Number = msgspec.field(default=-1, name="Record function id")
    collective: str | None = msgspec.field(default="", name="Collective name")


NO_ARGS = Args()
"""Shared by all events without ``args``."""


class Event(msgspec.Struct, gc=False):
    """An event that lasts; its times come from the scanner."""

    name: str | int | float | None = ""
    cat: str | None = ""
    pid: Number = -1
    tid: Number = -1
    args: Args | None = None


class MemoryArgs(msgspec.Struct, gc=False):
    """``args`` of an allocation instant."""

    address: Number = msgspec.field(default=0, name="Addr")
    bytes: Number = msgspec.field(default=0, name="Bytes")
    allocated: Number = msgspec.field(default=-1, name="Total Allocated")
    reserved: Number = msgspec.field(default=-1, name="Total Reserved")
    device_type: Number = msgspec.field(default=-1, name="Device Type")
    device: Number = msgspec.field(default=-1, name="Device Id")


class MemoryEvent(msgspec.Struct, gc=False):
    """An instant; only those named ``[memory]`` are kept."""

    name: str | int | float | None = ""
    tid: Number = -1
    args: MemoryArgs | None = None


class CommArgs(msgspec.Struct, gc=False):
    """Metadata of a collective, on record_param_comms and on its kernels."""

    collective: str = msgspec.field(default="", name="Collective name")
    in_elements: Number = msgspec.field(default=-1, name="In msg nelems")
    out_elements: Number = msgspec.field(default=-1, name="Out msg nelems")
    group_size: Number = msgspec.field(default=-1, name="Group size")
    dtype: str = msgspec.field(default="", name="dtype")
    in_splits: str | list[int] = msgspec.field(default="", name="In split size")
    out_splits: str | list[int] = msgspec.field(default="", name="Out split size")
    group_name: Number = msgspec.field(default="", name="Process Group Name")
    group_id: Number = msgspec.field(default="", name="Process Group ID")
    group_description: str = msgspec.field(default="", name="Process Group Description")
    group_ranks: str | list[int] = msgspec.field(default="", name="Process Group Ranks")
    seq: Number = msgspec.field(default=-1, name="Seq")
    comm_id: Number = msgspec.field(default=0, name="Comms Id")
    src_rank: Number = msgspec.field(default=-1, name="Src Rank")
    dst_rank: Number = msgspec.field(default=-1, name="Dst Rank")
    rank: Number = msgspec.field(default=-1, name="Rank")
    rank_start: Number = msgspec.field(default=-1, name="Global rank start")
    rank_stride: Number = msgspec.field(default=-1, name="Global rank stride")
    is_async: bool | Number = msgspec.field(default=-1, name="Is asynchronized op")


class CommEvent(msgspec.Struct, gc=False):
    """A row that carries collective metadata, decoded a second time."""

    args: CommArgs | None = None
