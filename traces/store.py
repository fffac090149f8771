"""A trace set: Parquet files of every rank of a job, read and written one rank at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec
import pyarrow as pa

from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.manifest import Index, RankInfo, pack, unpack
from foretrace.traces.parquet import read_table, write_table
from foretrace.traces.schema import FORMAT_VERSION, TABLES
from foretrace.traces.storage import Folder

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "manifest.json"
_PREFIX = "rank="


@dataclass(frozen=True, slots=True)
class RankTables:
    """Everything a trace set keeps of one rank.

    Attributes:
        info: manifest.
        events: see ``schema.EVENTS``; sorted by ``start_ns``.
        collectives: see ``schema.COLLECTIVES``; in issue order.
        memory: see ``schema.MEMORY``; None where not recorded.
        dependencies: see ``schema.DEPENDENCIES``; None where not recorded.
    """

    info: RankInfo
    events: pa.Table
    collectives: pa.Table
    memory: pa.Table | None = None
    dependencies: pa.Table | None = None


class TraceSetWriter:
    """Writes a trace set; several processes may write different ranks of one set.

    Args:
        path: folder or fsspec URL of the set, by custom named ``NAME.trace``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Folder.at(path)

    def write_rank(self, tables: RankTables) -> None:
        """Write one rank; it appears whole or not at all and replaces an older one."""
        info = msgspec.structs.replace(tables.info, format_version=FORMAT_VERSION)
        with self.folder.replacing(rank_folder(info.rank)) as part:
            part.fs.makedirs(part.root, exist_ok=True)
            write_table(part, "events", tables.events)
            write_table(part, "collectives", tables.collectives)
            if tables.memory is not None:
                write_table(part, "memory", tables.memory)
            if tables.dependencies is not None:
                write_table(part, "dependencies", tables.dependencies)
            part.write(msgspec.json.encode(info), _MANIFEST)

    def finish(self, **job: Any) -> None:
        """Write the index over all ranks that are whole; call it once, at the end.

        Args:
            **job: what is known about the job as a whole; kept in ``Index.job``.

        Raises:
            IncompleteTraceError: no rank was written.
        """
        infos, _ = _read_rank_manifests(self.folder, self.folder.names())
        if not infos:
            raise IncompleteTraceError(f"{self.folder.root}: no whole rank to make an index of")
        index = pack(list(infos.values()), job, f"foretrace {_version()}")
        self.folder.write(msgspec.json.encode(index), _MANIFEST)


class TraceSet:
    """A recorded or imported job, read from Parquet as far as asked for.

    Attributes:
        path: where it lies.
        manifest: the index.
        problems: one line for everything that is missing or half written.
    """

    def __init__(self, folder: Folder, manifest: Index, problems: list[str]) -> None:
        self.path = folder.root
        self.manifest = manifest
        self.problems = problems
        self._folder = folder
        self._infos = {info.rank: info for info in manifest.ranks}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TraceSet:
        """Open a trace set; reads the index and no events.

        A set whose writing was cut off opens with the ranks that are whole; what is
        missing stands in ``problems``.

        Args:
            path: folder or fsspec URL.

        Raises:
            TraceFormatError: it is no trace set, or a newer version wrote it.
            IncompleteTraceError: no rank of it is whole.
        """
        folder = Folder.at(path)
        names = folder.names()
        index, problems = _read_index(folder, names)
        if not index.ranks:
            raise IncompleteTraceError(
                f"{path}: no rank of this trace set is whole; import or record it again"
            )
        return cls(folder, index, problems)

    @property
    def ranks(self) -> list[int]:
        """Ranks that can be read, ascending."""
        return sorted(self._infos)

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job, by its world size, that are not here."""
        world = max((info.world_size for info in self._infos.values()), default=0)
        return sorted(set(range(world)) - set(self._infos))

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """Distinct process groups whose members are known: global ranks in group order."""
        return [tuple(m) for m in self.manifest.members]

    @cached_property
    def steps(self) -> list[int]:
        """Step numbers that any rank has, ascending."""
        return sorted({s.step for info in self._infos.values() for s in info.steps})

    def info(self, rank: int) -> RankInfo:
        """Manifest of ``rank``.

        Raises:
            IncompleteTraceError: the set has no such rank.
        """
        if rank not in self._infos:
            raise IncompleteTraceError(
                f"{self.path}: no rank {rank}; it holds {describe_ranks(self.ranks)}"
            )
        return unpack(self._infos[rank], self.manifest.members)

    @overload
    def events(
        self, rank: int, columns: Sequence[str] | None = None, pandas: Literal[False] = False
    ) -> pa.Table: ...

    @overload
    def events(
        self, rank: int, columns: Sequence[str] | None = None, *, pandas: Literal[True]
    ) -> pd.DataFrame: ...

    def events(
        self, rank: int, columns: Sequence[str] | None = None, pandas: bool = False
    ) -> pa.Table | pd.DataFrame:
        """Events of ``rank``, sorted by start; a row's number is the event's id.

        Args:
            rank: global rank.
            columns: names out of ``schema.EVENTS`` in the wanted order; None for all.
            pandas: give a DataFrame instead of an Arrow table.

        Raises:
            IncompleteTraceError: the rank, its file or a column is missing.
        """
        return self._table("events", rank, columns, pandas)

    def collectives(
        self, rank: int, columns: Sequence[str] | None = None, pandas: bool = False
    ) -> pa.Table | pd.DataFrame:
        """Communication operations of ``rank`` in issue order; see :meth:`events`."""
        return self._table("collectives", rank, columns, pandas)

    def memory(
        self, rank: int, columns: Sequence[str] | None = None, pandas: bool = False
    ) -> pa.Table | pd.DataFrame:
        """Allocation events of ``rank`` by time, no rows if not recorded; see :meth:`events`."""
        return self._table("memory", rank, columns, pandas)

    def dependencies(
        self, rank: int, columns: Sequence[str] | None = None, pandas: bool = False
    ) -> pa.Table | pd.DataFrame:
        """Recorded dependencies between events of ``rank``, no rows if none; see :meth:`events`."""
        return self._table("dependencies", rank, columns, pandas)

    def tables(self, rank: int) -> RankTables:
        """Everything about ``rank`` at once."""
        memory, dependencies = self.memory(rank), self.dependencies(rank)
        return RankTables(
            self.info(rank),
            self.events(rank),
            self.collectives(rank),
            memory if len(memory) else None,
            dependencies if len(dependencies) else None,
        )

    def _table(self, name: str, rank: int, columns: Sequence[str] | None, pandas: bool) -> Any:
        self.info(rank)
        wanted = [c.name for c in TABLES[name]] if columns is None else list(columns)
        unknown = set(wanted) - {c.name for c in TABLES[name]}
        if unknown:
            raise IncompleteTraceError(f"table {name} has no column {', '.join(sorted(unknown))}")
        table = read_table(self._folder, rank_folder(rank), name, wanted)
        return table.to_pandas() if pandas else table


def rank_folder(rank: int) -> str:
    """Name of a rank's folder inside a trace set."""
    return f"{_PREFIX}{rank:05d}"


def describe_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, runs joined: ``ranks 0-6, 8``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)
    return f"rank{'s' if len(ranks) != 1 else ''} {text}" if ranks else "no ranks"


def _version() -> str:
    from foretrace import __version__

    return __version__


def _read_rank_manifests(
    folder: Folder, names: Sequence[str]
) -> tuple[dict[int, RankInfo], list[str]]:
    infos: dict[int, RankInfo] = {}
    problems = []
    for name in names:
        if not name.startswith(_PREFIX):
            continue
        try:
            info = _decode(folder.read(name, _MANIFEST), RankInfo, folder.path(name, _MANIFEST))
        except FileNotFoundError:
            problems.append(f"{name} has no manifest: its writing was cut off")
        except TraceFormatError as error:
            problems.append(str(error))
        else:
            infos[info.rank] = info
    return infos, problems


def _read_index(folder: Folder, names: list[str]) -> tuple[Index, list[str]]:
    """The index brought in line with the rank folders that are really there."""
    folders = [n for n in names if n.startswith(_PREFIX)]
    if _MANIFEST not in names and not folders:
        what = "an empty folder" if folder.exists() and not names else "no trace set"
        what = what if folder.exists() else "there is nothing"
        raise TraceFormatError(
            f"{folder.root}: expected a trace set (NAME.trace), found {what}; "
            "make one with foretrace import or with the collector"
        )
    problems = []
    index = Index(format_version=FORMAT_VERSION)
    if _MANIFEST in names:
        index = _decode(folder.read(_MANIFEST), Index, folder.path(_MANIFEST))
    else:
        problems.append("no index: the set was not finished")
    here = {int(n[len(_PREFIX) :]) for n in folders if n[len(_PREFIX) :].isdigit()}
    known = {info.rank for info in index.ranks}
    gone = sorted(known - here)
    if gone:
        problems.append(f"{describe_ranks(gone)}: in the index, but the folder is gone")
    late, more = _read_rank_manifests(folder, [rank_folder(r) for r in sorted(here - known)])
    if late and known:
        problems.append(f"{describe_ranks(sorted(late))}: not in the index, written after it")
    if gone or late:
        kept = [unpack(i, index.members) for i in index.ranks if i.rank in here]
        index = pack([*kept, *late.values()], index.job, index.created_by)
    return index, problems + more


def _decode(data: bytes, kind: type[Any], path: str) -> Any:
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise TraceFormatError(
                f"{path}: format version {version}, this foretrace reads up to {FORMAT_VERSION}; "
                "use a newer foretrace"
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise TraceFormatError(f"{path}: damaged manifest ({error})") from None


class _Version(msgspec.Struct):
    format_version: int = FORMAT_VERSION
