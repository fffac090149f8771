"""A copy of a trace set that names no people, hosts and files, and replays like the original.

Removed: host names (numbered), sources, labels and job notes (but for the profiler's own
switches), Python frames (numbered), examples of what was dropped. Replaced inside operator,
kernel and annotation names, concrete inputs, group descriptions and versions: paths, URLs,
e-mail and IP addresses, and every host and user name that the trace set mentions anywhere.

Kept: times, names of operators and kernels, shapes, types, groups, ranks, device models,
versions, process and thread ids, memory addresses. The same trace set gives the same copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from foretrace.traces import arrow
from foretrace.traces.errors import TraceFormatError
from foretrace.traces.manifest import GroupInfo, RankInfo
from foretrace.traces.storage import Folder
from foretrace.traces.store import RankTables, TraceSet, TraceSetWriter

_KEPT_LABELS = (
    "record_shapes",
    "with_stack",
    "with_flops",
    "with_modules",
    "profile_memory",
    "schemaVersion",
)
_SCRUBBED_COLUMNS = ("name", "inputs")
_SHORTEST_NAME = 3  # a shorter host or user name would be found inside everything

_URL = r"\b[a-z][a-z0-9+.\-]+://[^\s\"',;)\]]+"
_MAIL = r"\b[\w.+\-]+@[\w\-]+(?:\.[\w\-]+)+"
_UNIX_PATH = r"(?<![\w:<.\-])~?(?:/[\w.@+%\-]+){2,}/?"
_WINDOWS_PATH = r"\b[A-Za-z]:\\[^\s\"',;]+"
_IP = r"\b(?:\d{1,3}\.){3}\d{1,3}\b"
_SECRET = re.compile("|".join((_URL, _MAIL, _WINDOWS_PATH, _UNIX_PATH, _IP)))
_HOME = re.compile(r"/(?:home|Users|data/home|mnt/home)/([\w.\-]+)")
_USER_LABEL = re.compile(r"(?:^|_)(?:user|username|owner|login)$", re.IGNORECASE)
_HOST_LABEL = re.compile(r"(?:^|_)(?:host|hostname|host_name|node|nodename)$", re.IGNORECASE)


class Redactor:
    """Replaces what must not be told; the same text always by the same word.

    Attributes:
        words: by kind, the replacement of each text that was found.
    """

    def __init__(self) -> None:
        self.words: dict[str, dict[str, str]] = {}
        self._names: list[tuple[str, re.Pattern[str], str]] = []

    def learn(self, kind: str, texts: Iterable[str]) -> None:
        """Give each of ``texts`` a word of its own, numbered in sorted order."""
        words = {text: f"{kind}-{i}" for i, text in enumerate(sorted(texts))}
        self.words[kind] = words
        if kind in ("host", "user"):
            self._names += [
                (t, re.compile(rf"(?<![A-Za-z0-9]){re.escape(t)}(?![A-Za-z0-9])"), word)
                for t, word in words.items()
            ]
            self._names.sort(key=lambda item: -len(item[0]))

    def scrub(self, text: str) -> str:
        """``text`` without anything that must not be told."""
        paths = self.words.get("path", {})
        text = _SECRET.sub(lambda m: paths.get(m.group(), "path"), text)
        for name, pattern, word in self._names:
            if name in text:
                text = pattern.sub(word, text)
        return text


@dataclass(frozen=True, slots=True)
class RedactReport:
    """What a redaction did.

    Attributes:
        ranks: ranks copied.
        replaced: number of distinct texts replaced, by kind: host, user, path, frame.
        removed_labels: labels left out.
    """

    ranks: list[int]
    replaced: dict[str, int]
    removed_labels: int


def redact(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> RedactReport:
    """Copy a trace set without names of hosts, users and files.

    Args:
        source: the trace set.
        out: the copy; must not exist.

    Raises:
        TraceFormatError: ``out`` exists, or ``source`` is no trace set.
        IncompleteTraceError: no rank of ``source`` is whole.
    """
    traces = TraceSet.open(source)
    if Folder.at(out).exists():
        raise TraceFormatError(f"{out}: exists; choose another name for the redacted copy")
    redactor = _learn(traces)
    target = Folder.at(out)
    parent, _, name = target.root.rpartition("/")
    with Folder(target.fs, parent or ".").replacing(name) as part:
        writer = TraceSetWriter(part.fs.unstrip_protocol(part.root))
        for rank in traces.ranks:
            writer.write_rank(_redact_rank(traces, rank, redactor))
        writer.finish(redacted=True)
    return RedactReport(
        ranks=traces.ranks,
        replaced={kind: len(words) for kind, words in redactor.words.items()},
        removed_labels=len(
            {k for r in traces.ranks for k in traces.info(r).labels} - set(_KEPT_LABELS)
        ),
    )


def _learn(traces: TraceSet) -> Redactor:
    """Find what there is to replace in all ranks, so that numbers agree between them."""
    hosts: set[str] = set()
    users: set[str] = set()
    secrets: set[str] = set()
    frames: set[str] = set()
    for rank in traces.ranks:
        info = traces.info(rank)
        hosts |= {info.host} | _labelled(info, _HOST_LABEL)
        users |= _labelled(info, _USER_LABEL)
        mine = _frames(traces.events(rank, ["kind", "name"]))
        frames |= mine
        for text in (*_all_texts(info), *_texts(traces, rank)):
            users |= set(_HOME.findall(text))
            if text not in mine:
                secrets |= set(_SECRET.findall(text))
    redactor = Redactor()
    redactor.learn("host", {h for h in hosts if len(h) >= _SHORTEST_NAME})
    redactor.learn("user", {u for u in users - hosts if len(u) >= _SHORTEST_NAME})
    redactor.learn("path", secrets)
    redactor.learn("frame", frames)
    return redactor


def _labelled(info: RankInfo, pattern: re.Pattern[str]) -> set[str]:
    return {value for key, value in info.labels.items() if pattern.search(key)}


def _all_texts(info: RankInfo) -> list[str]:
    groups = [t for g in info.groups for t in (g.name, g.description)]
    return [*groups, *info.versions.values(), *info.labels.values(), info.source]


def _texts(traces: TraceSet, rank: int) -> set[str]:
    table = traces.events(rank, list(_SCRUBBED_COLUMNS))
    return {t for c in _SCRUBBED_COLUMNS for t in pc.unique(table[c]).to_pylist() if t}


def _frames(events: pa.Table) -> set[str]:
    """Names of Python frames."""
    is_frame = pc.equal(events["kind"].cast(pa.string()), "python")
    return {n for n in pc.unique(events.filter(is_frame)["name"]).to_pylist() if n}


def _redact_rank(traces: TraceSet, rank: int, redactor: Redactor) -> RankTables:
    events = traces.events(rank)
    for name in _SCRUBBED_COLUMNS:
        column = events[name].combine_chunks()
        words = [
            redactor.words["frame"].get(t) or redactor.scrub(t)
            for t in column.dictionary.to_pylist()
        ]
        redone = pa.DictionaryArray.from_arrays(column.indices, arrow.strings(words))
        events = events.set_column(events.schema.get_field_index(name), name, redone)
    memory, dependencies = traces.memory(rank), traces.dependencies(rank)
    return RankTables(
        _redact_info(traces.info(rank), redactor),
        events,
        traces.collectives(rank),
        memory if len(memory) else None,
        dependencies if len(dependencies) else None,
    )


def _redact_info(info: RankInfo, redactor: Redactor) -> RankInfo:
    return msgspec.structs.replace(
        info,
        host=redactor.words["host"].get(info.host, ""),
        source=f"rank {info.rank}",
        groups=[_redact_group(g, redactor) for g in info.groups],
        dropped=[msgspec.structs.replace(d, example="") for d in info.dropped],
        versions={k: redactor.scrub(v) for k, v in info.versions.items()},
        labels={k: v for k, v in info.labels.items() if k in _KEPT_LABELS},
        clock_samples=_scrub_all(info.clock_samples, redactor),
    )


def _redact_group(group: GroupInfo, redactor: Redactor) -> GroupInfo:
    return msgspec.structs.replace(
        group, name=redactor.scrub(group.name), description=redactor.scrub(group.description)
    )


def _scrub_all(value: Any, redactor: Redactor) -> Any:
    """``value`` with every text in it scrubbed."""
    if isinstance(value, str):
        return redactor.scrub(value)
    if isinstance(value, list):
        return [_scrub_all(v, redactor) for v in value]
    if isinstance(value, dict):
        return {k: _scrub_all(v, redactor) for k, v in value.items()}
    return value
