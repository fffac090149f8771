"""Processes of several exports that know their place in their own export only: numbered on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from foretrace.traces.importers.report import FileReport
from foretrace.traces.storage import Folder
from foretrace.traces.store import TraceSet, TraceSetWriter, rank_folder

BY_PROCESS = "order of processes"
"""What ``rank_from`` says of ranks that were counted within one export."""


def number_on(url: str, files: Sequence[FileReport], notes: list[str]) -> list[FileReport]:
    """Give the processes of the second and later exports of a format the numbers that follow.

    As launchers number them: all of the first node, then all of the second, the nodes in the
    order of their files' names. An export of one process that tells no rank counts like others.

    Args:
        url: the trace set, with one folder for each export.
        files: one report per rank; of an export its ranks stand together, ascending.
        notes: told what was numbered.

    Returns:
        The reports with their new ranks, in the same order.
    """
    found = list(files)
    for kind in sorted({f.format for f in files if f.rank_from == BY_PROCESS}):
        exports: dict[str, list[int]] = {}
        for i, file in enumerate(files):
            if file.format == kind and file.rank_from in (BY_PROCESS, "order"):
                exports.setdefault(file.folder, []).append(i)
        if len(exports) > 1:
            _number(url, found, [exports[name] for name in sorted(exports)])
            notes.append(
                f"{kind}: the processes of {len(exports)} exports are numbered in the order of "
                "the exports' names; rename them if their nodes come in another order"
            )
    return found


def _number(url: str, files: list[FileReport], exports: list[list[int]]) -> None:
    """Number the ranks of exports, each a list of places in ``files``; copies alike."""
    following = 0
    first_of: dict[tuple[int, int], int] = {}
    for places in exports:
        content = (files[places[0]].checksum, files[places[0]].bytes)
        first = first_of.setdefault(content, following)
        following = max(following, first + len(places))
        for i, place in reversed(list(enumerate(places))):  # none is written over before it is read
            old = files[place]
            _rename(f"{url}/{old.folder}", old.rank, first + i)
            files[place] = replace(old, rank=first + i)


def _rename(url: str, old: int, new: int) -> None:
    if old == new:
        return
    tables = TraceSet.open(url).tables(old)
    info = msgspec.structs.replace(tables.info, rank=new)
    TraceSetWriter(url).write_rank(replace(tables, info=info))
    folder = Folder.at(url)
    folder.fs.rm(folder.path(rank_folder(old)), recursive=True)
