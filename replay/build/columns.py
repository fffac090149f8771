"""One rank's events as plain arrays with names numbered across the whole job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foretrace.replay.graph import I8, I32, I64
from foretrace.traces.classify import kernel_class
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.schema import COLLECTIVE_KINDS, EVENT_KINDS
from foretrace.traces.store import TraceSet

RECORDED_LIBRARIES = ("", "nccl", "rccl")
"""Libraries whose kernels stand behind a collective call, recorded or not."""

NETWORK = -2
"""Device number of host threads that carry out communication."""

SEND = COLLECTIVE_KINDS.index("send")

KIND = {name: code for code, name in enumerate(EVENT_KINDS)}

_IS_HOST = np.isin(np.array(EVENT_KINDS), ("host_op", "runtime", "annotation"))

EVENT_COLUMNS = (
    "kind", "name", "start_ns", "dur_ns", "thread", "device", "stream", "correlation",
    "step", "wait_stream", "wait_correlation", "fwd_thread", "shapes",
)  # fmt: skip

COLLECTIVE_COLUMNS = (
    "kind", "call_event", "work_event", "wait_event", "group", "group_key", "group_size",
    "group_rank", "seq", "comm_id", "p2p", "peer", "bytes_in", "bytes_out",
)  # fmt: skip


@dataclass(slots=True)
class NameTable:
    """Names numbered in order of first use, shared by all ranks of a job."""

    ids: dict[str, int] = field(default_factory=dict)
    shape_ids: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """The number of ``name``."""
        return self.ids.setdefault(name, len(self.ids))

    def numbers(self, column: pa.ChunkedArray) -> I32:
        """The numbers of a text column, shape ``(rows,)``."""
        codes, words = dictionary(column)
        return _numbered(self.ids, words)[codes]

    def shapes(self, column: pa.ChunkedArray) -> I32:
        """Numbers of the texts of a column of shapes, in a table of their own."""
        codes, words = dictionary(column)
        return _numbered(self.shape_ids, words)[codes]

    def names(self) -> tuple[str, ...]:
        """All names in order of their numbers."""
        return tuple(self.ids)


def _numbered(ids: dict[str, int], words: list[str]) -> I32:
    """The numbers of texts, new ones added; [0] where there is none."""
    return np.array([ids.setdefault(w, len(ids)) for w in words] or [0], np.int32)


def dictionary(column: pa.ChunkedArray) -> tuple[I32, list[str]]:
    """A text column as codes, shape ``(rows,)``, and the words they stand for."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else whole
    if len(whole) == 0:
        return np.zeros(0, np.int32), []
    codes = pc.fill_null(whole.indices, 0).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32), [w or "" for w in whole.dictionary.to_pylist()]


@dataclass(frozen=True, slots=True)
class RankEvents:
    """Arrays of one rank's events, shape ``(rows,)``, sorted by start; row number = event id.

    Attributes:
        rank: global rank.
        kind: index into ``EVENT_KINDS``.
        name: number in the job's name table.
        start: start, ns on the job's aligned clock.
        end: end, ns on the job's aligned clock.
        thread: host thread, -1 on device rows.
        device: device index, -1 on host rows.
        stream: device stream.
        correlation: joins calls and device rows.
        step: step number, -1 outside of any.
        wait_stream: on sync rows.
        wait_correlation: on sync rows.
        backward: whether the row is a backward operator.
        shape: number of its input shapes in the job's table of shapes.
        clock: host whose clock the rank's host rows are known to be on, "" unknown.
    """

    rank: int
    kind: I8
    name: I32
    start: I64
    end: I64
    thread: I64
    device: I32
    stream: I64
    correlation: I64
    step: I32
    wait_stream: I64
    wait_correlation: I64
    backward: np.ndarray
    shape: I32
    clock: str = ""

    @property
    def is_device_work(self) -> np.ndarray:
        """Kernels, copies and fills, shape ``(rows,)``."""
        return (self.kind >= KIND["kernel"]) & (self.kind <= KIND["memset"])

    @property
    def is_host(self) -> np.ndarray:
        """Rows of host threads that the graph uses (operators, calls, annotations)."""
        result: np.ndarray = _IS_HOST[self.kind] & (self.thread != -1)
        return result


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """Arrays of one rank's communication operations, shape ``(operations,)``, in issue order.

    Attributes:
        kind: index into ``COLLECTIVE_KINDS``.
        call: event row that issued it, -1 unknown.
        work: event row that executes it, -1 unknown.
        wait: event row that waits for it, -1 unknown.
        group: index into the rank's recorded groups, -1 unknown.
        key: the rank's own handle of the group.
        group_size: members, -1 unknown.
        group_rank: own number within the group, -1 unknown.
        seq: sequence number within the group, -1 unknown.
        comm_id: communicator id, 0 unknown.
        p2p: point-to-point.
        peer: global rank of the peer, -1 unknown.
        bytes: larger of bytes in and out, -1 unknown.
        weak: a kernel that communicates on its own (symmetric memory, DeepEP, NVSHMEM ...): only
            its name says so, nothing says with whom.
    """

    kind: I8
    call: I64
    work: I64
    wait: I64
    group: I32
    key: tuple[str, ...]
    group_size: I32
    group_rank: I32
    seq: I64
    comm_id: np.ndarray
    p2p: np.ndarray
    peer: I32
    bytes: I64
    weak: np.ndarray


def read_rank(trace: TraceSet, rank: int, names: NameTable) -> tuple[RankEvents, RankCollectives]:
    """Load one rank.

    Args:
        trace: an open trace set.
        rank: which rank.
        names: the job's name table; new names are added.
    """
    events = events_from_table(rank, trace.events(rank, columns=list(EVENT_COLUMNS)), names)
    table: pa.Table = trace.collectives(rank, columns=list(COLLECTIVE_COLUMNS))
    if not len(events.kind):  # operations that nobody saw running are nothing to replay
        table = table.slice(0, 0)
    collectives = collectives_from_table(table)
    _check(trace, rank, events, collectives)
    collectives = with_weak(events, collectives, names.names())
    events = replace(events, clock=_known_clock(trace, rank))
    return with_network_lanes(events, collectives), collectives


def _known_clock(trace: TraceSet, rank: int) -> str:
    """The host whose clock a rank was found to share with the recording's reference, else ""."""
    info = trace.info(rank)
    measured = [tuple(sample) for sample in info.clock_samples]
    shared = bool(measured) and all(sample[1:] == (0, 0) for sample in measured)
    return info.host if shared else ""


def with_weak(
    events: RankEvents, collectives: RankCollectives, names: tuple[str, ...]
) -> RankCollectives:
    """Mark kernels that communicate without any record of a collective."""
    work = collectives.work
    bare = (work >= 0) & (collectives.call < 0) & (collectives.group < 0)
    bare &= (collectives.comm_id == 0) & (collectives.seq < 0) & (collectives.peer < 0)
    used = np.unique(events.name[work[bare]])
    own = [n for n in used if kernel_class(names[n])[0] not in RECORDED_LIBRARIES]
    return replace(collectives, weak=bare & np.isin(events.name[work], own))


def _check(trace: TraceSet, rank: int, events: RankEvents, collectives: RankCollectives) -> None:
    """Refuse tables that do not belong together, before their row numbers mislead anyone."""
    where = f"{trace.path}: rank {rank}"
    again = "; import or record it again"
    if len(events.start) and (np.diff(events.start) < 0).any():
        raise TraceFormatError(f"{where}: expected events sorted by start_ns, found others{again}")
    if (events.end < events.start).any():
        raise TraceFormatError(f"{where}: found events with a negative duration{again}")
    rows = np.concatenate([collectives.work, collectives.call, collectives.wait])
    if len(rows) and rows.max() >= len(events.start):
        raise TraceFormatError(
            f"{where}: collectives name event {rows.max()}, but there are {len(events.start)} "
            f"events; the two files are not of one recording{again}"
        )


def with_network_lanes(events: RankEvents, collectives: RankCollectives) -> RankEvents:
    """Communication that host threads carry out (gloo), as work of a device of its own.

    A gloo worker thread is to a rank what a communication stream is to a GPU: calls enqueue
    operations, the thread runs them in order, hosts wait for their ends. So its rows become
    rows of the pseudo device ``NETWORK``, caused by the calls that issued them, and every rule
    for streams applies. Messages run beside each other and in order per peer and direction: each
    such pair is a stream of its own, with a number below -1.
    """
    work = collectives.work
    mine = (work >= 0) & (events.thread[work] >= 0)
    if not mine.any():
        return events
    work, call = work[mine], collectives.call[mine]
    kind, thread = events.kind.copy(), events.thread.copy()
    device, stream = events.device.copy(), events.stream.copy()
    correlation, step = events.correlation.copy(), events.step.copy()
    kind[work], device[work], stream[work] = KIND["kernel"], NETWORK, events.thread[work]
    message = collectives.p2p[mine]
    lane = -2 - 2 * collectives.peer[mine] - (collectives.kind[mine] == SEND)
    stream[work[message]] = lane[message]
    thread[work] = -1
    issued = call >= 0
    first = int(correlation.max(initial=0)) + 1
    correlation[work] = first + np.arange(len(work))
    correlation[call[issued]] = correlation[work[issued]]
    kind[call[issued]] = KIND["runtime"]
    step[work[issued]] = events.step[call[issued]]
    return replace(
        events, kind=kind, thread=thread, device=device, stream=stream, correlation=correlation,
        step=step,
    )  # fmt: skip


def events_from_table(rank: int, table: pa.Table, names: NameTable) -> RankEvents:
    """Arrays from an events table."""
    codes, words = dictionary(table["kind"])
    kind = np.array([KIND.get(w, KIND["other"]) for w in words] or [0], np.int8)[codes]
    start = _ints(table, "start_ns")
    return RankEvents(
        rank=rank,
        kind=kind,
        name=names.numbers(table["name"]),
        start=start,
        end=start + _ints(table, "dur_ns"),
        thread=_ints(table, "thread"),
        device=_ints(table, "device").astype(np.int32),
        stream=_ints(table, "stream"),
        correlation=_ints(table, "correlation"),
        step=_ints(table, "step").astype(np.int32),
        wait_stream=_ints(table, "wait_stream"),
        wait_correlation=_ints(table, "wait_correlation"),
        backward=_ints(table, "fwd_thread") > 0,
        shape=names.shapes(table["shapes"]),
    )


def collectives_from_table(table: pa.Table) -> RankCollectives:
    """Arrays from a collectives table."""
    codes, words = dictionary(table["kind"])
    unknown = COLLECTIVE_KINDS.index("unknown")
    numbers = {w: i for i, w in enumerate(COLLECTIVE_KINDS)}
    kinds = np.array([numbers.get(w, unknown) for w in words] or [unknown], np.int8)
    keys, key_words = dictionary(table["group_key"])
    return RankCollectives(
        kind=kinds[codes],
        call=_ints(table, "call_event"),
        work=_ints(table, "work_event"),
        wait=_ints(table, "wait_event"),
        group=_ints(table, "group").astype(np.int32),
        key=tuple(key_words[c] for c in keys),
        group_size=_ints(table, "group_size").astype(np.int32),
        group_rank=_ints(table, "group_rank").astype(np.int32),
        seq=_ints(table, "seq"),
        comm_id=table["comm_id"].to_numpy().astype(np.uint64),
        p2p=table["p2p"].to_numpy().astype(bool),
        peer=_ints(table, "peer").astype(np.int32),
        bytes=np.maximum(_ints(table, "bytes_in"), _ints(table, "bytes_out")),
        weak=np.zeros(len(table), bool),
    )


def _ints(table: pa.Table, name: str) -> I64:
    """An integer column as int64, absent values -1."""
    column = table[name]
    if column.null_count:
        column = pc.fill_null(column, -1)
    values: I64 = column.to_numpy().astype(np.int64)
    return values
