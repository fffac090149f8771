"""The small JSON files of a trace set: one manifest per rank, one index per set."""

from __future__ import annotations

from typing import Any

import msgspec

from foretrace.traces.schema import FORMAT_VERSION


class GroupInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process group as one rank knows it."""

    name: str
    """The rank's own name of the group; the same name may mean another group elsewhere."""
    description: str = ""
    """What the framework calls it, e.g. ``default_pg`` or a mesh dimension."""
    ranks: list[int] = msgspec.field(default_factory=list)
    """Global ranks in group order; empty where nobody recorded them."""
    size: int = 0
    """Number of members; known even where ``ranks`` is not."""
    members: int = -1
    """In the index only: row of ``Index.members`` that stands for ``ranks``."""


class StepInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One profiler step of one rank, as marked on the host."""

    step: int
    """Step number."""
    start_ns: int
    """Start of the mark, ns on the trace set's clock."""
    end_ns: int
    """End of the mark, ns."""
    thread: int = -1
    """Host thread that carries the mark."""


class Dropped(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something of the source that is not in the tables, or was changed to fit."""

    reason: str
    """What happened, in words."""
    count: int
    """How often."""
    example: str = ""
    """One of them, shortened."""


class RankInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known about one rank besides its tables."""

    rank: int
    """Global rank."""
    world_size: int = 0
    """Ranks of the job; 0 unknown."""
    host: str = ""
    """Host name."""
    device_name: str = ""
    """Model of the device that the rank works on."""
    device_count: int = 0
    """Devices on the host; 0 unknown."""
    backend: str = ""
    """Communication backend: nccl, gloo, ..."""
    source: str = ""
    """File it came from."""
    rank_from: str = ""
    """Where ``rank`` was found: "distributedInfo", "collectives", "file name", "order" or
    "collector"."""
    clock_offset_ns: int = 0
    """Clock correction already added to all times, ns; 0 where unknown."""
    clock_samples: list[Any] = msgspec.field(default_factory=list)
    """Clock-offset measurements between ranks, as the collector took them."""
    groups: list[GroupInfo] = msgspec.field(default_factory=list)
    """Process groups; ``collectives.group`` is an index into it."""
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    """Profiler steps in order."""
    span_ns: tuple[int, int] = (0, 0)
    """Start of the first and end of the last event, ns."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """Rows of ``events`` per kind."""
    dropped: list[Dropped] = msgspec.field(default_factory=list)
    """What the tables do not hold."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions of torch, CUDA, NCCL, the driver ..."""
    detail: str = "full"
    """"full", or "light": steps and collectives only."""
    layout: dict[str, int] = msgspec.field(default_factory=dict)
    """Sizes of the parallel layout's dimensions, e.g. ``{"dp": 2, "tp": 4}``."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Free words of the user and of the source."""
    format_version: int = 0
    """Version of the Parquet layout; the writer fills it in."""


class Index(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The index of a trace set: all ranks, with group memberships held once."""

    format_version: int = 0
    """Version of the Parquet layout; a reader refuses a higher one."""
    created_by: str = ""
    """Program and version that wrote the set."""
    job: dict[str, Any] = msgspec.field(default_factory=dict)
    """What is known about the job as a whole."""
    members: list[list[int]] = msgspec.field(default_factory=list)
    """Distinct groups: their global ranks in group order."""
    ranks: list[RankInfo] = msgspec.field(default_factory=list)
    """All ranks in order, with ``groups`` that point into ``members``."""


def pack(ranks: list[RankInfo], job: dict[str, Any], created_by: str) -> Index:
    """Join rank manifests to an index that holds each distinct group once."""
    rows: dict[tuple[int, ...], int] = {}
    packed = []
    for info in sorted(ranks, key=lambda r: r.rank):
        groups = [
            msgspec.structs.replace(g, ranks=[], members=rows.setdefault(tuple(g.ranks), len(rows)))
            if g.ranks
            else g
            for g in info.groups
        ]
        packed.append(msgspec.structs.replace(info, groups=groups))
    return Index(
        format_version=FORMAT_VERSION,
        created_by=created_by,
        job=job,
        members=[list(m) for m in rows],
        ranks=packed,
    )


def unpack(info: RankInfo, members: list[list[int]]) -> RankInfo:
    """The rank as its own manifest has it, group members filled in from the index."""
    groups = [
        msgspec.structs.replace(g, ranks=members[g.members], members=-1) if g.members >= 0 else g
        for g in info.groups
    ]
    return msgspec.structs.replace(info, groups=groups)
