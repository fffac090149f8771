"""The columns of a trace set: Arrow type, unit, meaning and when a value is absent.

All times are int64 nanoseconds on one clock. ``-1`` (or ``""`` for text) means *absent*
unless a column says otherwise, so that every column is a plain array without a null mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

FORMAT_VERSION = 1
"""Version of the Parquet layout; a reader refuses a higher one."""

TEXT = pa.dictionary(pa.int32(), pa.string())

EVENT_KINDS = (
    "host_op",  # an operator or other work of a host thread (cpu_op)
    "runtime",  # a device API call of a host thread (cuda_runtime, cuda_driver, hip ...)
    "kernel",  # device: a kernel, communication kernels included
    "memcpy",  # device: a copy
    "memset",  # device: a fill
    "sync",  # device: a synchronisation row (cuda_sync), never work
    "annotation",  # host: a user annotation, step marks and gloo collectives included
    "gpu_annotation",  # device: a copy of a host annotation, never work
    "python",  # host: a Python frame
    "overhead",  # the profiler's own
    "other",
)
"""Values of ``events.kind`` in the order of their codes (see :func:`kind_codes`)."""

DEVICE_WORK_KINDS = ("kernel", "memcpy", "memset")

COLLECTIVE_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "send_recv",  # one fused kernel that sends and receives (batched p2p, or all-to-all)
    "barrier",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: column name, with its unit.
        type: Arrow type.
        doc: meaning, and when the value is absent.
        absent: the value that stands for "not recorded".
        optional: may be left out when a table is written; readers then supply ``absent``.
    """

    name: str
    type: pa.DataType
    doc: str
    absent: int | float | str | None = -1
    optional: bool = False


EVENTS = (
    Column("kind", TEXT, "What the row is; one of EVENT_KINDS.", ""),
    Column("name", TEXT, "Operator, API call, kernel or annotation name.", ""),
    Column("start_ns", pa.int64(), "Start, ns on the trace set's clock.", None),
    Column("dur_ns", pa.int64(), "Duration, ns; never negative.", None),
    Column("thread", pa.int64(), "Host thread id; -1 for device rows."),
    Column("device", pa.int32(), "Device index; -1 for host rows."),
    Column("stream", pa.int64(), "Device stream; -1 for host rows."),
    Column("correlation", pa.int64(), "Joins a runtime call to the device rows it caused."),
    Column("external_id", pa.int64(), "Joins an operator to its calls and device rows."),
    Column("sequence", pa.int64(), "Autograd sequence number: joins forward and backward."),
    Column("fwd_thread", pa.int64(), "On a backward operator: its forward thread number."),
    Column("step", pa.int32(), "Profiler step the row belongs to; -1 outside of any."),
    Column("bytes", pa.int64(), "Bytes of a copy or fill."),
    Column("shapes", TEXT, "Input shapes, JSON text as recorded.", ""),
    Column("dtypes", TEXT, "Input types, JSON text as recorded.", ""),
    Column("inputs", TEXT, "Concrete (scalar) inputs, JSON text as recorded.", ""),
    Column("grid", TEXT, "Kernel grid, JSON text as recorded.", ""),
    Column("block", TEXT, "Kernel block, JSON text as recorded.", ""),
    Column("graph_node", pa.int64(), "Node id inside a CUDA or HIP graph launch."),
    Column("wait_stream", pa.int64(), "On a sync row: the stream whose event is waited for."),
    Column(
        "wait_correlation", pa.int64(), "On a sync row: correlation of the event's record call."
    ),
    Column("rf_id", pa.int64(), "Record function id: joins rows of an execution trace."),
)
"""``rank=NNNNN/events.parquet``: one row per event by start_ns; a row's number is its id."""

COLLECTIVES = (
    Column("kind", TEXT, "One of COLLECTIVE_KINDS.", ""),
    Column("call_event", pa.int64(), "Row of events that issued it (record_param_comms, c10d op)."),
    Column("work_event", pa.int64(), "Row of events that executes it (kernel, gloo annotation)."),
    Column("wait_event", pa.int64(), "Row of events that waits for it (the later, short call)."),
    Column("group", pa.int32(), "Index into the rank manifest's groups; -1 unknown."),
    Column("group_key", TEXT, "The rank's own handle of the group (name or pointer).", ""),
    Column("group_size", pa.int32(), "Members of the group."),
    Column("group_rank", pa.int32(), "This rank's number within the group."),
    Column("seq", pa.int64(), "Sequence number within the group."),
    Column("comm_id", pa.uint64(), "Communicator id shared by all members; 0 unknown.", 0),
    Column("p2p", pa.bool_(), "Point-to-point (send, recv, fused send_recv).", None),
    Column("peer", pa.int32(), "Global rank of the p2p peer, or of the root."),
    Column("bytes_in", pa.int64(), "Bytes this rank puts in."),
    Column("bytes_out", pa.int64(), "Bytes this rank gets out."),
    Column("dtype", TEXT, "Element type, c10 ScalarType name.", ""),
    Column("in_splits", pa.list_(pa.int64()), "Elements sent to each member (all-to-all-v).", None),
    Column("out_splits", pa.list_(pa.int64()), "Elements received from each member.", None),
    Column("is_async", pa.int8(), "1 asynchronous call, 0 blocking, -1 unknown."),
    Column(
        "source",
        TEXT,
        "Who saw it: 'kernel', 'record_param_comms', 'hook', 'gloo', 'nccl', 'inspector', "
        "'chakra', 'flight_recorder', 'table'.",
        "",
    ),
    Column("algorithm", TEXT, "Algorithm the library chose, e.g. RING, TREE.", "", optional=True),
    Column("protocol", TEXT, "Protocol the library chose: LL, LL128, SIMPLE.", "", optional=True),
    Column("channels", pa.int16(), "Channels the library used.", optional=True),
    Column("exec_ns", pa.int64(), "Execution time as the library measured it, ns.", optional=True),
)
"""``rank=NNNNN/collectives.parquet``: one row per communication operation, in issue order."""

MEMORY = (
    Column("time_ns", pa.int64(), "When, ns.", None),
    Column("thread", pa.int64(), "Host thread."),
    Column("device_type", pa.int8(), "0 CPU, 1 GPU."),
    Column("device", pa.int32(), "Device index."),
    Column("address", pa.uint64(), "Address of the block.", 0),
    Column("bytes", pa.int64(), "Bytes, negative when freed.", None),
    Column("allocated_bytes", pa.int64(), "Allocated after this event."),
    Column("reserved_bytes", pa.int64(), "Reserved from the device after this event."),
)
"""``rank=NNNNN/memory.parquet``: one row per allocation event; only where recorded."""

DEPENDENCIES = (
    Column("source", pa.int64(), "Row of events that comes first.", None),
    Column("target", pa.int64(), "Row of events that cannot begin before it has ended.", None),
    Column("kind", TEXT, "'data' or 'ctrl', as recorded.", ""),
)
"""``rank=NNNNN/dependencies.parquet``: one row per recorded dependency; only where recorded."""

TABLES = {
    "events": EVENTS,
    "collectives": COLLECTIVES,
    "memory": MEMORY,
    "dependencies": DEPENDENCIES,
}

OPTIONAL_TABLES = ("memory", "dependencies")
"""Tables that a rank may lack."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of ``table``, each field carrying its documentation."""
    return pa.schema([pa.field(c.name, c.type, metadata={"doc": c.doc}) for c in TABLES[table]])
