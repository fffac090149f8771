"""Schedules of the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.replay.schedule.named import named_schedule
from foretrace.replay.schedule.order import Phase, Schedule
from foretrace.replay.schedule.table import read_schedule
from foretrace.traces.errors import LayoutError

HEAD = "rank,phase,micro_batch,stage,beside\n"


def written(schedule: Schedule) -> str:
    columns = (schedule.rank, schedule.phase, schedule.micro_batch, schedule.stage, schedule.beside)
    return HEAD + "".join(
        f"{r},{Phase(p).name.lower()},{m},{s},{int(b)}\n"
        for r, p, m, s, b in zip(*columns, strict=True)
    )


@pytest.mark.parametrize("name", ["zbv", "dualpipe"])
def test_a_written_schedule_is_read_again(tmp_path: Path, name: str) -> None:
    schedule = named_schedule(name, 4, 8)
    path = tmp_path / "mine.csv"
    path.write_text(written(schedule))
    read = read_schedule(path)
    assert (read.ranks, read.stages, read.micro_batches) == (4, schedule.stages, 8)
    for column in ("rank", "phase", "micro_batch", "stage", "beside"):
        assert np.array_equal(getattr(read, column), getattr(schedule, column))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "expected a CSV head"),
        (HEAD + "0,forward,0,0,\n", "has 0 backwards in stage 0"),
        (HEAD + "0,forward,0,0,\n0,forward,0,0,\n0,backward,0,0,\n", "has 2 forwards"),
        (HEAD + "0,forward,0,0,\n0,input,0,0,\n", "both the gradients"),
        (HEAD + "0,forward,x,0,\n", "line 2: micro_batch 'x'"),
        (HEAD + "0,sideways,0,0,\n", "line 2: phase 'sideways'"),
        (HEAD + "1,forward,0,0,\n1,backward,0,0,\n", "without gaps"),
        (HEAD + "0,backward,0,0,\n0,forward,0,0,\n", "never ends"),
        (HEAD + "0,forward,0,0,1\n", "only two operations"),
        (
            HEAD + "0,forward,0,0,\n0,backward,0,0,\n0,forward,1,0,\n0,backward,1,0,\n"
            "1,forward,1,1,\n1,backward,1,1,\n1,forward,0,1,\n1,backward,0,1,\n",
            "never ends",
        ),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(LayoutError, match=message):
        read_schedule(path)
