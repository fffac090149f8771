"""Reading operation tables from Parquet or CSV into sorted arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrace.traces.errors import IncompleteTraceError, LayoutError, TraceFormatError
from foretrace.traces.optable.layout import TableLayout, layout_beside, read_layout
from foretrace.traces.optable.operations import Operation, operation

if TYPE_CHECKING:
    import pyarrow as pa

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_TIMES = ("start_ts", "duration")
_PLACE = ("dp_rank", "stage")
_NEEDED = ("step", "optype", *_TIMES)
_OPTIONAL = ("rank", "mc", "gmc", "mb_id")
_MOST_SECONDS = float(1 << 32)  # two of them in nanoseconds fit 63 bits
_MOST_RANKS, _MOST_NUMBER = 1 << 20, 1 << 31


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
        role: role of the operation (``operations.Role``).
        chunk: model chunk of the stage, -1 unknown.
        micro_batch: micro-batch, -1 unknown.
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
    role: I32
    chunk: I32
    micro_batch: I32
    start_ns: I64
    end_ns: I64
    slot: I64
    operations: tuple[Operation, ...]
    layout: TableLayout
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.step)


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
    if not path.is_file():
        raise IncompleteTraceError(f"{path}: no such file; give an operation table")
    return _parsed(path, _load(path, path), layout)


def read_content(content: bytes, name: str, layout: TableLayout | None = None) -> OpTable:
    """Read an operation table that is in memory already.

    Args:
        content: the file's bytes.
        name: the file's name, which tells Parquet from CSV and stands in messages.
        layout: sizes of the job; None for what the columns say.

    Raises:
        TraceFormatError, IncompleteTraceError, LayoutError: as :func:`read_table`.
    """
    import pyarrow as pa

    path = Path(name)
    return _parsed(path, _load(path, pa.BufferReader(content)), layout or TableLayout())


def _parsed(path: Path, table: pa.Table, layout: TableLayout) -> OpTable:
    try:
        return _from_columns(path, table, layout)
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path}: holds text that is no UTF-8 ({error})") from None


def _from_columns(path: Path, table: pa.Table, layout: TableLayout) -> OpTable:
    _check_columns(path, table, layout)
    columns = {name: _numbers(path, table, name) for name in ("step", *_TIMES)}
    columns |= {
        n: _numbers(path, table, n) for n in (*_PLACE, *_OPTIONAL) if n in table.schema.names
    }
    op, names = _operation_codes(path, table)
    if not set(_PLACE) <= set(columns):
        columns |= _places(path, columns["rank"], layout)
    return _sorted_table(path, columns, op, names, layout)


def _load(path: Path, file: Any) -> pa.Table:
    """The columns of interest of a file, given by path or opened, as an Arrow table."""
    import pyarrow as pa

    try:
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            from pyarrow import csv

            tab = csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            return csv.read_csv(file, parse_options=tab)
        from pyarrow import parquet

        opened = parquet.ParquetFile(file)
        wanted = [n for n in (*_NEEDED, *_PLACE, *_OPTIONAL) if n in opened.schema_arrow.names]
        return opened.read(columns=wanted)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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
            "with dp_size and pp_size (--meta, or meta-NAME.yaml beside the table)"
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
        values = _values(column.cast(kind))
    except pa.ArrowInvalid as error:
        raise TraceFormatError(
            f"{path}: column {name} must hold {'seconds' if name in _TIMES else 'whole numbers'}, "
            f"found {column.type} ({str(error).partition(chr(10))[0]})"
        ) from error
    if name in _TIMES and not np.isfinite(values).all():
        raise TraceFormatError(f"{path}: column {name} holds values that are not finite")
    most: float = _MOST_RANKS if name in _PLACE else _MOST_NUMBER
    most = _MOST_SECONDS if name in _TIMES else most
    if ((values <= -most) | (values >= most)).any():
        raise TraceFormatError(f"{path}: column {name} holds numbers of {most:g} and more")
    if name == "duration" and (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0])
        raise TraceFormatError(f"{path}: duration of row {row} is negative ({values[row]} s)")
    if name in _PLACE and (values < 0).any():
        raise TraceFormatError(f"{path}: column {name} holds negative numbers")
    return values


def _operation_codes(path: Path, table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Code of each row's operation type, and the types that occur."""
    import pyarrow as pa

    column = table.column("optype")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = _whole(column.unify_dictionaries())
    if column.null_count:
        raise TraceFormatError(f"{path}: column optype has {column.null_count} empty rows")
    used, code = np.unique(_values(column.indices), return_inverse=True)
    names = column.dictionary.to_pylist()
    return code.astype(np.int32), [str(names[i]) for i in used]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; combining several chunks may give chunks again."""
    import pyarrow as pa

    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _values(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """The numbers of a column without holes; unlike ``to_numpy`` it does not load pandas."""
    import pyarrow as pa

    array = _whole(column) if isinstance(column, pa.ChunkedArray) else column
    numbers = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())
    return numbers[array.offset : array.offset + len(array)]


def _places(path: Path, rank: np.ndarray, layout: TableLayout) -> dict[str, np.ndarray]:
    """Place of each worker from the global rank: tensor ranks first, then data, then stages."""
    inner = max(layout.tp, 1) * max(layout.sp, 1)
    stage = rank // (inner * layout.dp)
    if (rank < 0).any() or (stage >= layout.pp).any():
        raise LayoutError(
            f"{path}: rank {int(rank.max())} lies outside of dp {layout.dp} x pp {layout.pp} x "
            f"tp {max(layout.tp, 1)}; correct the layout or add columns dp_rank and stage"
        )
    return {"dp_rank": rank // inner % layout.dp, "stage": stage}


def _sorted_table(
    path: Path,
    columns: dict[str, np.ndarray],
    op: np.ndarray,
    names: list[str],
    layout: TableLayout,
) -> OpTable:
    layout, problems = _completed(path, layout, columns)
    kept, incomplete = _complete_steps(columns)
    problems += incomplete
    columns = {name: values[kept] for name, values in columns.items()}
    op = op[kept]
    dp, stage = columns["dp_rank"], columns["stage"]
    start = np.rint(columns["start_ts"] * 1e9).astype(np.int64)
    end = start + np.rint(columns["duration"] * 1e9).astype(np.int64)
    steps, step = np.unique(columns["step"], return_inverse=True)
    place = (step * layout.dp + dp) * layout.pp + stage
    order = np.lexsort((end, start, place))
    operations = tuple(operation(name) for name in names)
    problems += [
        f"operation {o.name!r} is unknown; taken for work of its worker alone"
        for o in operations
        if not o.known
    ]
    unknown = np.full(len(op), -1)
    return OpTable(
        source=str(path),
        step=steps[step[order]],
        dp=dp[order].astype(np.int32),
        stage=stage[order].astype(np.int32),
        rank=columns.get("rank", unknown)[order].astype(np.int32),
        op=op[order],
        role=np.array([o.role for o in operations], np.int32)[op[order]],
        chunk=_chunks(columns, layout, unknown)[order].astype(np.int32),
        micro_batch=columns.get("mb_id", unknown)[order].astype(np.int32),
        start_ns=start[order],
        end_ns=end[order],
        slot=np.cumsum(np.diff(place[order], prepend=place[order[:1]]) != 0),
        operations=operations,
        layout=layout,
        problems=tuple(problems),
    )


def _complete_steps(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Rows of the steps that hold all workers, and what was left out."""
    width = int(columns["stage"].max()) + 1
    worker = columns["dp_rank"] * width + columns["stage"]
    steps, step = np.unique(columns["step"], return_inverse=True)
    workers, worker = np.unique(worker, return_inverse=True)
    seen = np.bincount(step * len(workers) + worker, minlength=len(steps) * len(workers)) > 0
    count = seen.reshape(len(steps), -1).sum(axis=1)
    complete = count == count.max()
    if complete.all():
        return np.ones(len(step), bool), []
    left = ", ".join(str(s) for s in steps[~complete][:5])
    return complete[step], [f"{int((~complete).sum())} steps lack workers and are left out: {left}"]


def _chunks(columns: dict[str, np.ndarray], layout: TableLayout, unknown: np.ndarray) -> np.ndarray:
    """Model chunk of each row within its stage: stated, or from its number in the model."""
    if "mc" in columns:
        return columns["mc"]
    if "gmc" in columns:
        return np.where(columns["gmc"] < 0, -1, columns["gmc"] // layout.pp)
    return unknown


def _completed(
    path: Path, layout: TableLayout, columns: dict[str, np.ndarray]
) -> tuple[TableLayout, list[str]]:
    """The layout with its gaps filled from the columns, and what was not recorded."""
    problems = []
    seen = {}
    for name, column in (("dp", "dp_rank"), ("pp", "stage")):
        values = columns[column]
        seen[name] = int(values.max()) + 1
        stated = getattr(layout, name)
        if stated and seen[name] > stated:
            raise LayoutError(
                f"{path}: column {column} goes up to {seen[name] - 1}, but the layout states "
                f"{name}_size {stated}; correct the layout"
            )
        size, found = stated or seen[name], len(np.unique(values))
        if found < size:
            problems.append(f"{found} of {size} {name} ranks recorded; the others are left out")
    missing = {name: size for name, size in seen.items() if not getattr(layout, name)}
    return replace(layout, **missing), problems
