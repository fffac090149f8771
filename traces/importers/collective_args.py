"""Metadata that PyTorch attaches to collectives: the ``args`` of their events."""

from __future__ import annotations

import re

import msgspec

from foretrace.traces.collectives.model import Metadata
from foretrace.traces.groups import ranks_from, ranks_of
from foretrace.traces.salvage import Losses, repair

Number = int | float | str | None
Text = str | int | float | bool | None
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_BITS = 64


class Args(msgspec.Struct, gc=False):
    """``args`` of record_param_comms and of the kernels that its metadata was copied to."""

    collective: Text = msgspec.field(default="", name="Collective name")
    in_elements: Number = msgspec.field(default=-1, name="In msg nelems")
    out_elements: Number = msgspec.field(default=-1, name="Out msg nelems")
    group_size: Number = msgspec.field(default=-1, name="Group size")
    dtype: Text = ""
    in_splits: str | list[int] | None = msgspec.field(default="", name="In split size")
    out_splits: str | list[int] | None = msgspec.field(default="", name="Out split size")
    group_name: Number = msgspec.field(default="", name="Process Group Name")
    group_id: Number = msgspec.field(default="", name="Process Group ID")
    group_description: Text = msgspec.field(default="", name="Process Group Description")
    group_ranks: str | list[int] | None = msgspec.field(default="", name="Process Group Ranks")
    seq: Number = msgspec.field(default=-1, name="Seq")
    comm_id: Number = msgspec.field(default=0, name="Comms Id")
    src_rank: Number = msgspec.field(default=-1, name="Src Rank")
    dst_rank: Number = msgspec.field(default=-1, name="Dst Rank")
    rank: Number = msgspec.field(default=-1, name="Rank")
    rank_start: Number = msgspec.field(default=-1, name="Global rank start")
    rank_stride: Number = msgspec.field(default=-1, name="Global rank stride")
    is_async: bool | Number = msgspec.field(default=-1, name="Is asynchronized op")


class _Event(msgspec.Struct, gc=False):
    args: Args


_DECODER = msgspec.json.Decoder(_Event)


def read_collective(text: bytes, losses: Losses) -> Metadata | None:
    """Metadata out of the JSON text of an event; None if it cannot be read."""
    for candidate in (text, repair(text)):
        try:
            return _metadata(_DECODER.decode(candidate).args)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error)
    losses.add(f"metadata of a collective ({reason})", 1, text)
    return None


def _metadata(args: Args) -> Metadata:
    name = args.group_name if args.group_name not in ("", None) else args.group_id
    collective = _text(args.collective)
    kind = collective.lower()
    source, target = _int(args.src_rank), _int(args.dst_rank)
    return Metadata(
        collective=collective,
        in_elements=_int(args.in_elements),
        out_elements=_int(args.out_elements),
        group_size=_int(args.group_size),
        dtype=_text(args.dtype),
        in_splits=ranks_of(args.in_splits),
        out_splits=ranks_of(args.out_splits),
        group_name=_text(name),
        group_description=_text(args.group_description),
        group_ranks=_group_ranks(args),
        seq=_int(args.seq),
        comm_id=_int(args.comm_id, 0),
        peer=target if "send" in kind else source if "recv" in kind else -1,
        is_async=_int(args.is_async),
        group_rank=_int(args.rank),
    )


def _text(value: Text) -> str:
    return "" if value is None else str(value)


def _int(value: bool | Number, absent: int = -1) -> int:
    """A whole number of 64 bits, signed or not; else ``absent``."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    if value is None or value != value // 1 or abs(value) >= 1 << _BITS:
        return absent
    return int(value)


def _group_ranks(args: Args) -> list[int]:
    """Members, from the list or, where that was cut off, from first rank and stride."""
    ranks = ranks_of(args.group_ranks)
    size = _int(args.group_size)
    if ranks and len(ranks) == size:
        return ranks
    first, stride = _int(args.rank_start), _int(args.rank_stride)
    return ranks_from(first, size, stride)
