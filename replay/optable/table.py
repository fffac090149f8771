"""Reading operation tables from Parquet or CSV into sorted arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrace.replay.graph import I32, I64
from foretrace.replay.optable.layout import TableLayout, layout_beside, read_layout
from foretrace.replay.optable.operations import Operation, operation
from foretrace.traces.errors import IncompleteTraceError, LayoutError, TraceFormatError

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES = ("start_ts", "duration")
_PLACE = ("dp_rank", "stage")
_NEEDED = ("step", "optype", *_TIMES)
_OPTIONAL = ("rank", "mc")


@dataclass(frozen=True, slots=True)
class OpTable:
    """Operations of all workers, sorted by step, worker and start; arrays of shape ``(n,)``.

    A worker is one (dp rank, stage); its tensor-parallel ranks are not told apart.

    Attributes:
        source: file the table came from.
        step: step number.
        dp: data-parallel rank.
        stage: pipeline stage.
        rank: global rank, -1 unknown.
        op: index into ``operations``.
        chunk: model chunk of the stage, -1 unknown.
        start_ns: start within the step's clock.
        end_ns: end.
        slot: (step, worker) of each row, numbered in sorted order.
        operations: the operation types.
        layout: sizes of the job; those that nobody stated are taken from the columns.
        problems: what is odd about the table, one line each.
    """

    source: str
    step: I64
    dp: I32
    stage: I32
    rank: I32
    op: I32
    chunk: I32
    start_ns: I64
    end_ns: I64
    slot: I64
    operations: tuple[Operation, ...]
    layout: TableLayout
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def role(self) -> I32:
        """Role of each row, shape ``(n,)``."""
        roles = np.array([o.role for o in self.operations], np.int32)
        return roles[self.op]


def read_table(path: str | Path, meta: str | Path | None = None) -> OpTable:
    """Read an operation table.

    Args:
        path: Parquet or CSV; columns ``step, optype, start_ts, duration`` (seconds),
            ``dp_rank`` and ``stage`` (or ``rank`` and a layout), optionally ``mc``.
        meta: file that states the layout; by default the ``meta-*.yaml`` beside the table.

    Raises:
        TraceFormatError: the file is no table, or a column holds what it must not.
        IncompleteTraceError: columns or rows are missing.
        LayoutError: the layout contradicts the table.
    """
    path = Path(path)
    beside = Path(meta) if meta is not None else layout_beside(path)
    layout = read_layout(beside) if beside is not None else TableLayout()
    table = _load(path)
    _check_columns(path, table, layout)
    columns = {name: _numbers(path, table, name) for name in ("step", *_TIMES)}
    columns |= {n: _numbers(path, table, n) for n in (*_PLACE, *_OPTIONAL) if n in table.schema.names}
    op, names = _operation_codes(path, table)
    if not set(_PLACE) <= set(columns):
        columns |= _places(path, columns["rank"], layout)
    return _sorted_table(path, columns, op, names, layout)


def _load(path: Path) -> pa.Table:
    """The file's columns of interest as an Arrow table."""
    import pyarrow as pa

    if not path.is_file():
        raise IncompleteTraceError(f"{path}: no such file; give an operation table")
    try:
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            from pyarrow import csv

            tab = csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            return csv.read_csv(path, parse_options=tab)
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        wanted = [n for n in (*_NEEDED, *_PLACE, *_OPTIONAL) if n in file.schema_arrow.names]
        return file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise TraceFormatError(
            f"{path}: cannot be read as an operation table (Parquet or CSV): {reason}"
        ) from error


def _check_columns(path: Path, table: pa.Table, layout: TableLayout) -> None:
    present = set(table.schema.names)
    missing = [name for name in _NEEDED if name not in present]
    places = [name for name in _PLACE if name not in present]
    if places and not ("rank" in present and layout.dp and layout.pp):
        missing += places
    if missing:
        hint = (
            "; dp_rank and stage may be left out where there is a rank column and a layout "
            "with dp_size and pp_size (--meta)"
            if set(missing) & set(_PLACE)
            else ""
        )
        raise IncompleteTraceError(
            f"{path}: column {', '.join(missing)} missing; found {', '.join(sorted(present))}{hint}"
        )
    if table.num_rows == 0:
        raise IncompleteTraceError(f"{path}: holds no rows; record at least one step")


def _numbers(path: Path, table: pa.Table, name: str) -> np.ndarray:
    """A numeric column without holes; times as float64, all else as int64."""
    import pyarrow as pa

    column = table.column(name)
    if column.null_count:
        raise TraceFormatError(
            f"{path}: column {name} has {column.null_count} empty rows; drop or fill them"
        )
    kind = pa.float64() if name in _TIMES else pa.int64()
    try:
        values: np.ndarray = column.cast(kind).to_numpy()
    except pa.ArrowInvalid as error:
        raise TraceFormatError(
            f"{path}: column {name} must hold {'seconds' if name in _TIMES else 'whole numbers'}, "
            f"found {column.type} ({str(error).partition(chr(10))[0]})"
        ) from error
    if name in _TIMES and not np.isfinite(values).all():
        raise TraceFormatError(f"{path}: column {name} holds values that are not finite")
    if name == "duration" and (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0])
        raise TraceFormatError(f"{path}: duration of row {row} is negative ({values[row]} s)")
    if name in _PLACE and (values < 0).any():
        raise TraceFormatError(f"{path}: column {name} holds negative numbers")
    return values


def _operation_codes(path: Path, table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Code of each row's operation type, and the types that occur."""
    import pyarrow as pa

    column = table.column("optype").combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # older pyarrow: an empty or many-chunk column
        column = pa.concat_arrays(column.chunks)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if column.null_count:
        raise TraceFormatError(f"{path}: column optype has {column.null_count} empty rows")
    used, code = np.unique(column.indices.to_numpy(), return_inverse=True)
    names = column.dictionary.to_pylist()
    return code.astype(np.int32), [str(names[i]) for i in used]


def _places(path: Path, rank: np.ndarray, layout: TableLayout) -> dict[str, np.ndarray]:
    """dp rank and stage from the global rank: tensor ranks first, then data, then stages."""
    inner = max(layout.tp, 1) * max(layout.sp, 1)
    stage = rank // (inner * layout.dp)
    if (rank < 0).any() or (stage >= layout.pp).any():
        raise LayoutError(
            f"{path}: rank {int(rank.max())} lies outside of dp {layout.dp} x pp {layout.pp} x "
            f"tp {max(layout.tp, 1)}; correct the layout or add columns dp_rank and stage"
        )
    return {"dp_rank": rank // inner % layout.dp, "stage": stage}


def _sorted_table(
    path: Path, columns: dict[str, np.ndarray], op: np.ndarray, names: list[str], layout: TableLayout
) -> OpTable:
    start = np.rint(columns["start_ts"] * 1e9).astype(np.int64)
    end = start + np.rint(columns["duration"] * 1e9).astype(np.int64)
    dp, stage = columns["dp_rank"], columns["stage"]
    steps, step = np.unique(columns["step"], return_inverse=True)
    workers = int(stage.max()) + 1
    place = (step * (int(dp.max()) + 1) + dp) * workers + stage
    order = np.lexsort((end, start, place))
    place = place[order]
    slot = np.cumsum(np.diff(place, prepend=place[:1]) != 0)
    unknown = np.full(len(op), -1)
    operations = tuple(operation(name) for name in names)
    layout, problems = _completed(path, layout, dp, stage, columns.get("mc"))
    problems += [f"operation {o.name!r} is unknown; taken for work of its worker alone"
                 for o in operations if not o.known]
    return OpTable(
        source=str(path),
        step=steps[step[order]],
        dp=dp[order].astype(np.int32),
        stage=stage[order].astype(np.int32),
        rank=columns.get("rank", unknown)[order].astype(np.int32),
        op=op[order],
        chunk=columns.get("mc", unknown)[order].astype(np.int32),
        start_ns=start[order],
        end_ns=end[order],
        slot=slot,
        operations=operations,
        layout=layout,
        problems=tuple(problems),
    )


def _completed(
    path: Path, layout: TableLayout, dp: np.ndarray, stage: np.ndarray, chunk: np.ndarray | None
) -> tuple[TableLayout, list[str]]:
    """The layout with its gaps filled from the columns, and where the two differ."""
    from dataclasses import replace

    seen = {"dp": int(dp.max()) + 1, "pp": int(stage.max()) + 1}
    seen["vpp"] = max(int(chunk.max()) + 1, 1) if chunk is not None else max(layout.vpp, 1)
    for name, size in seen.items():
        stated = getattr(layout, name)
        if stated and size > stated:
            raise LayoutError(
                f"{path}: holds {name} {size}, the layout states {stated}; correct the layout"
            )
    problems = []
    for what, values in (("dp", dp), ("pp", stage)):
        size, found = getattr(layout, what) or seen[what], len(np.unique(values))
        if found < size:
            problems.append(f"{found} of {what} {size} recorded; the others are left out")
    missing = {name: size for name, size in seen.items() if not getattr(layout, name)}
    return replace(layout, **missing), problems
