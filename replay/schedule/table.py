"""A schedule of the user's own, from a CSV table.

One line an operation, in the order in which its rank runs it::

    rank,phase,micro_batch,stage
    0,forward,0,0
    0,backward,0,0

``phase`` is ``forward``, ``backward``, ``input`` or ``weight``. A column ``beside`` with 1 marks
an operation that runs together with the one before it.
"""

from __future__ import annotations

import csv
from pathlib import Path

from foretrace.replay.schedule.order import Op, Phase, Schedule, check, schedule_of
from foretrace.traces.errors import LayoutError

_COLUMNS = {"rank", "phase", "micro_batch", "stage"}
_PHASES = {phase.name.lower(): phase for phase in Phase}


def read_schedule(path: str | Path) -> Schedule:
    """Read and check a table.

    Raises:
        LayoutError: naming the line that cannot be read, or what the schedule lacks.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as a schedule: {error}") from error
    rows = csv.DictReader(text.splitlines())
    if _COLUMNS - set(rows.fieldnames or ()):
        raise LayoutError(f"{path}: expected a CSV head with {', '.join(sorted(_COLUMNS))}")
    orders: dict[int, list[Op]] = {}
    for row in rows:
        where = f"{path}: line {rows.line_num}"
        rank, batch, stage = (
            _whole(row[key], key, where) for key in ("rank", "micro_batch", "stage")
        )
        phase = _PHASES.get((row["phase"] or "").strip().lower())
        if phase is None:
            raise LayoutError(f"{where}: phase {row['phase']!r}, expected {', '.join(_PHASES)}")
        order = orders.setdefault(rank, [])
        beside = (row.get("beside") or "0").strip() == "1"
        if beside and (not order or order[-1][3]):
            raise LayoutError(f"{where}: only two operations of a rank can run together")
        order.append((phase, batch, stage, beside))
    if sorted(orders) != list(range(len(orders))) or not orders:
        raise LayoutError(f"{path}: ranks go from 0 on without gaps, found {sorted(orders)}")
    ops = [op for order in orders.values() for op in order]
    stages, batches = (max(op[at] for op in ops) + 1 for at in (2, 1))
    schedule = schedule_of(Path(path).stem, stages, batches, (orders[r] for r in sorted(orders)))
    check(schedule)
    return schedule


def _whole(text: str | None, key: str, where: str) -> int:
    if text is None or not text.strip().isdigit():
        raise LayoutError(f"{where}: {key} {text!r} is not a number from 0 up")
    return int(text)
