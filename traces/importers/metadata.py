"""What stands around the events of a Kineto file: the job, the rank, devices and versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foretrace.traces.groups import MOST_RANKS
from foretrace.traces.importers import json_text
from foretrace.traces.salvage import Losses, repair

_MAX_TIME_NS = 1 << 61
_KEPT = ("distributedInfo", "baseTimeNanoseconds", "deviceProperties", "host_name", "schemaVersion")
_NO_LABELS = {*_KEPT, "traceEvents", "displayTimeUnit", "INFO", "WARN", "ERROR", "STAGE"}
_DIGITS = re.compile("[0-9]{1,19}")
_VERSION = re.compile(r"(?:^|_)version$")
_LABEL_CHARACTERS = 500


@dataclass(slots=True)
class FileMetadata:
    """Top-level members of a trace file.

    Attributes:
        base_ns: to be added to all times, ns.
        base_lost: the file was cut off before the base could be read.
        distributed: ``distributedInfo``.
        devices: names of the devices by index.
        host: host name.
        versions: versions of libraries.
        labels: everything else that is a word or a number.
    """

    base_ns: int = 0
    base_lost: bool = False
    distributed: dict[str, Any] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    host: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def integer(self, key: str, absent: int) -> int:
        """A number out of ``distributed``; ``absent`` if it has none."""
        value = self.distributed.get(key)
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            return int(value)
        return value if isinstance(value, int) else absent


def read_metadata(head: bytes, tail: bytes, closed: bool, losses: Losses) -> FileMetadata:
    """Read what stands before and after the events.

    Args:
        head: text before the array of events.
        tail: text after it.
        closed: whether the file went on to its end.
        losses: takes note of damage.
    """
    if not head:  # a bare array
        return FileMetadata()
    members = _decode(head, tail, closed, losses)
    base = members.get("baseTimeNanoseconds")
    result = FileMetadata(
        base_ns=_base_time(base, losses),
        base_lost=not closed and base is None,
        host=str(members.get("host_name") or ""),
    )
    if isinstance(members.get("distributedInfo"), dict):
        result.distributed = members["distributedInfo"]
        _check_rank(result, losses)
    devices = members.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        result.devices.append(str(device.get("name", "")) if isinstance(device, dict) else "")
    for key, value in members.items():
        if key in _NO_LABELS or not isinstance(value, str | int | float):
            continue
        target = result.versions if _VERSION.search(key) else result.labels
        target[key] = str(value)[:_LABEL_CHARACTERS]
    if "nccl_version" in result.distributed:
        result.versions["nccl_version"] = str(result.distributed["nccl_version"])
    return result


def _base_time(base: Any, losses: Losses) -> int:
    """The base that all times are relative to; 0 without one or where it cannot be one."""
    if isinstance(base, str) and _DIGITS.fullmatch(base):
        base = int(base)
    if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < _MAX_TIME_NS:
        return base
    if base is not None:
        losses.add("baseTimeNanoseconds is no time: times are as written", 1, str(base))
    return 0


def _check_rank(meta: FileMetadata, losses: Losses) -> None:
    """Forget a rank or a number of ranks that cannot be one, so that it is found otherwise."""
    size = meta.integer("world_size", 0)
    if not 0 <= size < MOST_RANKS:
        losses.add("world_size cannot be one", 1, str(size))
        size = 0
        meta.distributed.pop("world_size")
    rank = meta.integer("rank", -1)
    if rank >= (size or MOST_RANKS):
        losses.add("rank beyond the number of ranks", 1, f"rank {rank} of {size}")
        meta.distributed.pop("rank")


def _decode(head: bytes, tail: bytes, closed: bool, losses: Losses) -> dict[str, Any]:
    text = head.removeprefix(b"\xef\xbb\xbf") + b"null" + (tail if closed else b"}")
    for candidate in (text, repair(text)):
        try:
            members = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(members, dict):
            return members
    if closed:
        losses.add("damaged metadata", 1, text)
    return _one_by_one(text)


def _one_by_one(text: bytes) -> dict[str, Any]:
    """The members that matter, each read by itself out of damaged text."""
    members: dict[str, Any] = {}
    for key in _KEPT:
        match = re.search(rb'"%s"\s*:\s*' % key.encode(), text)
        if not match:
            continue
        stop = json_text.skip_value(json_text.as_array(text), match.end(), len(text))
        try:
            members[key] = msgspec.json.decode(repair(text[match.end() : stop]))
        except (msgspec.DecodeError, RecursionError):
            continue
    return members
