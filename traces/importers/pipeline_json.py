"""Pipeline recordings as JSON: per step the starts and ends of forward and backward passes.

One file per rank (``pp_rank_3.json``), all beside each other, with times in milliseconds from
the start of the step; ``config.json`` beside them states the layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from foretrace.traces.errors import IncompleteTraceError, TraceFormatError
from foretrace.traces.groups import MOST_RANKS
from foretrace.traces.importers.operation_ranks import WORK_THREAD, Operations, rank_tables
from foretrace.traces.importers.ranks import rank_of_name
from foretrace.traces.manifest import RankInfo
from foretrace.traces.salvage import Losses
from foretrace.traces.store import RankTables

NAME = "pipeline recording (JSON)"

_STEP = re.compile(rb'^\s*\{\s*"\d+"\s*:\s*\{')
_SERIES = re.compile(rb'"(?:fwd|bwd|wgrad)_start"\s*:\s*\[')
_CONFIG = re.compile(r"(?:^|[/\\:])config\.json$")
_PASSES = {"fwd": "forward", "bwd": "backward", "wgrad": "backward-weight"}
_SIZES = {"dp_size": "dp", "tp_size": "tp", "pp_size": "pp", "ep_size": "ep", "cp_size": "cp"}


def sniff(head: bytes, name: str) -> bool:
    """Whether a file is one rank's recording, or the layout beside such files."""
    if _CONFIG.search(name):
        return b'"pp_size"' in head and b'"num_mbs"' in head
    return bool(_STEP.match(head)) and bool(_SERIES.search(head))


def read_bundle(files: Mapping[str, bytes]) -> list[RankTables]:
    """Read all ranks of one folder.

    Args:
        files: content by name.

    Raises:
        TraceFormatError: no file holds whole passes.
        IncompleteTraceError: two files are of one rank.
    """
    losses = Losses()
    layout: dict[str, int] = {}
    world = 0
    sources: dict[int, str] = {}
    rows: list[tuple[int, int, int, int, float, float]] = []
    for position, (name, data) in enumerate(sorted(files.items())):
        content = _decoded(name, data, losses)
        if _CONFIG.search(name):
            layout, world = _layout(content)
            continue
        rank = rank_of_name(name)
        rank = rank if rank >= 0 else position
        if rank in sources:
            raise IncompleteTraceError(
                f"two files of rank {rank}: {sources[rank]} and {name}; give only one of them"
            )
        sources[rank] = name
        rows += _rows(rank, content, name, losses)
    if not rows:
        raise TraceFormatError("it holds no passes that begin and end")
    columns = np.array(rows, np.float64).T
    rank, step, name_code, micro_batch = columns[:4].astype(np.int64)
    times = np.rint(columns[4:] * 1e6).astype(np.int64)
    used, detail = np.unique(micro_batch, return_inverse=True)
    ops = Operations(
        rank=rank,
        step=step,
        name=name_code,
        names=tuple(_PASSES.values()),
        thread=np.full(len(rows), WORK_THREAD, np.int64),
        start_ns=times[0],
        dur_ns=times[1] - times[0],
        detail=detail,
        details=tuple(f'{{"micro_batch":{m}}}' for m in used.tolist()),
    )
    info = RankInfo(
        rank=0,
        world_size=world,
        rank_from="file name",
        layout=layout,
        dropped=losses.as_list(),
    )
    return rank_tables(ops, None, info)


def _decoded(name: str, data: bytes, losses: Losses) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        losses.add("file is damaged JSON (left out)", 1, f"{name}: {error}")
        return {}
    return content if isinstance(content, dict) else {}


def _layout(content: dict[str, Any]) -> tuple[dict[str, int], int]:
    sizes = {
        short: value
        for key, short in _SIZES.items()
        if isinstance(value := content.get(key), int) and 1 < value <= MOST_RANKS
    }
    world = content.get("world_size")
    return sizes, world if isinstance(world, int) and 0 < world <= MOST_RANKS else 0


def _rows(
    rank: int, content: dict[str, Any], name: str, losses: Losses
) -> list[tuple[int, int, int, int, float, float]]:
    """(rank, step, pass, micro-batch, start ms, end ms) of each pass."""
    rows = []
    for key, step in content.items():
        if not key.isdecimal() or len(key) > 9 or not isinstance(step, dict):
            losses.add("entry that is no step (left out)", 1, f"{name}: {key}")
            continue
        for code, word in enumerate(_PASSES):
            starts, ends = _times(step.get(f"{word}_start")), _times(step.get(f"{word}_end"))
            if len(starts) != len(ends):
                what = f"{name}: step {key} {word}"
                losses.add("pass without its end (left out)", abs(len(starts) - len(ends)), what)
            for number, (a, b) in enumerate(zip(starts, ends, strict=False)):
                if not 0 <= a <= b < 1e11:
                    losses.add("pass that ends before it begins (left out)", 1, f"{name}: {a}")
                    continue
                rows.append((rank, int(key), code, number, a, b))
    return rows


def _times(values: Any) -> list[float]:
    if not isinstance(values, list):
        return []
    known = (isinstance(v, int | float) and abs(v) < 1e18 for v in values)
    return [float(v) if ok else -1.0 for v, ok in zip(values, known, strict=True)]
