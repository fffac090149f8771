"""Operation tables: reading them, and the job graph against a simulator and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from tests.replay.op_tables import (
    COLUMNS,
    Job,
    fixed_gap,
    read_job,
    row,
    varied,
    write_table,
)

from foretrace.replay.engine import replay
from foretrace.replay.graph import TaskKind
from foretrace.replay.optable.gaps import gaps_ns, replay_held_out
from foretrace.replay.optable.graph import OpGraph, build_graph, build_issued_graph
from foretrace.replay.timeline import step_windows
from foretrace.replay.wavefront import ends_of_many
from foretrace.traces.errors import (
    GraphError,
    IncompleteTraceError,
    LayoutError,
    TraceFormatError,
)
from foretrace.traces.optable.layout import TableLayout, layout_beside, read_layout
from foretrace.traces.optable.operations import Role, operation
from foretrace.traces.optable.table import read_table

# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role", "reported", "moves"),
    [
        ("forward-compute", Role.FORWARD, "forward-compute", False),
        ("backward_compute", Role.BACKWARD, "backward_compute", False),
        ("forward-send", Role.SEND, "forward-pp-comm", True),
        ("backward-recv", Role.RECV, "backward-pp-comm", True),
        ("params-all-gather", Role.GATHER, "params-all-gather", True),
        ("grads-reduce-scatter", Role.REDUCE, "grads-reduce-scatter", True),
        ("grads-all-reduce", Role.REDUCE, "grads-all-reduce", True),
        ("embedding-grads-all-reduce", Role.ENDS, "embedding-grads-all-reduce", True),
        ("layernorm-grads-all-reduce", Role.LOCAL, "layernorm-grads-all-reduce", True),
        ("optimizer-clip-main-grad", Role.ALL, "optimizer-clip-main-grad", True),
        ("optimizer", Role.LOCAL, "optimizer", False),
    ],
)
def test_operations_are_known_by_name(name: str, role: Role, reported: str, moves: bool) -> None:
    op = operation(name)
    assert (op.role, op.reported, op.moves, op.known) == (role, reported, moves, True)


def test_an_unknown_operation_is_local_work_and_said_so(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path / "t.parquet", [row("frobnicate", 0, 5)]))
    assert not operation("frobnicate").known
    assert operation("frobnicate").role is Role.LOCAL
    assert any("frobnicate" in problem for problem in table.problems)


# --- reading ----------------------------------------------------------------------------------


def test_rows_are_sorted_and_in_nanoseconds(tmp_path: Path) -> None:
    job = Job(duration=varied)
    rows = job.simulate()
    table = read_table(write_table(tmp_path / "a.parquet", rows))
    shuffled = np.random.default_rng(3).permutation(np.array(rows, object)).tolist()
    again = read_table(write_table(tmp_path / "b.parquet", shuffled))
    want = sorted((r["step"], r["dp_rank"], r["stage"], r["start_ns"], r["end_ns"]) for r in rows)
    for got in (table, again):
        columns = (got.step, got.dp, got.stage, got.start_ns, got.end_ns)
        assert [tuple(map(int, r)) for r in zip(*columns, strict=True)] == want
    assert table.layout == TableLayout(dp=2, pp=2)
    assert table.problems == ()


def test_csv_and_text_columns_read_the_same(tmp_path: Path) -> None:
    rows = Job(duration=varied).simulate()
    binary = read_table(write_table(tmp_path / "t.parquet", rows))
    columns = {name: [r[name] for r in rows] for name in COLUMNS}
    pacsv.write_csv(pa.table(columns), tmp_path / "t.csv")
    columns["optype"] = pa.array(columns["optype"]).dictionary_encode()
    pq.write_table(pa.table(columns), tmp_path / "d.parquet", row_group_size=7)
    for other in (read_table(tmp_path / "t.csv"), read_table(tmp_path / "d.parquet")):
        assert [o.name for o in other.operations] != []
        names = np.array([o.name for o in other.operations])[other.op]
        assert names.tolist() == np.array([o.name for o in binary.operations])[binary.op].tolist()
        np.testing.assert_array_equal(other.start_ns, binary.start_ns)
        np.testing.assert_array_equal(other.end_ns, binary.end_ns)


def test_the_place_comes_from_the_rank_and_the_layout(tmp_path: Path) -> None:
    rows = Job(dp=2, pp=2).simulate()
    for r in rows:
        r["rank"] = 2 * (r["stage"] * 2 + r["dp_rank"])  # tp 2: even ranks recorded
    columns = ("rank", "step", "optype", "start_ts", "duration")
    path = write_table(tmp_path / "trace-X.parquet", rows, columns)
    with pytest.raises(IncompleteTraceError, match=r"dp_rank, stage missing; found .*--meta"):
        read_table(path)
    (tmp_path / "meta-X.yaml").write_text("dp_size: 2\npp_size: 2\ntp_size: 2\n")
    table = read_table(path)
    assert sorted(set(zip(table.stage.tolist(), table.dp.tolist(), strict=True))) == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip
    assert (table.rank == 2 * (table.stage * 2 + table.dp)).all()
    (tmp_path / "meta-X.yaml").write_text("dp_size: 2\npp_size: 1\ntp_size: 2\n")
    with pytest.raises(LayoutError, match="rank 6 lies outside of dp 2 x pp 1 x tp 2"):
        read_table(path)


@pytest.mark.parametrize("gone", ["step", "optype", "start_ts", "duration", "stage"])
def test_a_missing_column_is_one_clear_error(tmp_path: Path, gone: str) -> None:
    columns = [name for name in COLUMNS if name != gone]
    path = write_table(tmp_path / "t.parquet", Job().simulate(), columns)
    with pytest.raises(IncompleteTraceError, match=rf"t\.parquet: column {gone} missing; found"):
        read_table(path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("duration", -1.0, "duration of row 0 is negative"),
        ("start_ts", float("nan"), "start_ts holds values that are not finite"),
        ("start_ts", None, "start_ts has 1 empty rows"),
        ("optype", None, "optype has 1 empty rows"),
        ("stage", -1, "stage holds negative numbers"),
    ],
)
def test_bad_values_are_one_clear_error(
    tmp_path: Path, column: str, value: object, message: str
) -> None:
    rows = Job().simulate()
    rows[0][column] = value
    with pytest.raises(TraceFormatError, match=message):
        read_table(write_table(tmp_path / "t.parquet", rows))


def test_what_is_no_table_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TraceFormatError, match="cannot be read as an operation table"):
        read_table(tmp_path / "junk.parquet")
    with pytest.raises(IncompleteTraceError, match="no such file"):
        read_table(tmp_path / "absent.parquet")
    rows = Job().simulate()
    for r in rows:
        r["start_ts"] = "soon"
    with pytest.raises(TraceFormatError, match="start_ts must hold seconds, found string"):
        read_table(write_table(tmp_path / "t.parquet", rows))
    empty = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})
    pq.write_table(empty, tmp_path / "e.parquet")
    with pytest.raises(IncompleteTraceError, match="holds no rows"):
        read_table(tmp_path / "e.parquet")


def test_steps_that_lack_workers_are_left_out(tmp_path: Path) -> None:
    rows = [r for r in Job(steps=3).simulate() if (r["step"], r["dp_rank"]) != (1, 1)]
    table = read_table(write_table(tmp_path / "t.parquet", rows))
    assert np.unique(table.step).tolist() == [0, 2]
    assert table.problems == ("1 steps lack workers and are left out: 1",)


# --- layout -----------------------------------------------------------------------------------


def test_layouts_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    yaml = tmp_path / "meta-run.yaml"
    yaml.write_text(
        "---\ntrial_name: AR  # a word\ndp_size: 4\n'pp_size': 2 # stages\ntp_size: \"8\"\n"
        "dsp_size: 2\nvpp_size: 1\nworld_size: 128\nother: [1, 2]\n"
    )
    want = TableLayout(dp=4, pp=2, tp=8, sp=2, vpp=1, world=128)
    assert read_layout(yaml) == want
    json = tmp_path / "meta.json"
    json.write_text('{"dp_size": 4, "pp_size": 2, "job": {"tp_size": 3}}')
    assert read_layout(json) == TableLayout(dp=4, pp=2)
    assert want.ranks == 128
    assert TableLayout(dp=4, pp=2, tp=2).ranks == 16
    assert layout_beside(tmp_path / "trace-run.parquet") == yaml
    assert layout_beside(tmp_path / "run.csv") == yaml
    assert layout_beside(tmp_path / "other.parquet") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\n", "states no layout"),
        ("dp_size: 0\npp_size: 2\n", "dp_size is 0"),
        ("{nonsense", "is no JSON"),
    ],
)
def test_bad_layouts_are_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text(text)
    with pytest.raises(LayoutError, match=message):
        read_layout(path)


def test_a_layout_that_contradicts_the_table_is_an_error(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", Job(dp=3, pp=2).simulate())
    (tmp_path / "meta-t.yaml").write_text("dp_size: 2\npp_size: 2\n")
    with pytest.raises(LayoutError, match="dp_rank goes up to 2, but the layout states dp_size 2"):
        read_table(path)
    (tmp_path / "meta-t.yaml").write_text("dp_size: 8\npp_size: 2\n")
    assert "3 of 8 dp ranks recorded" in read_table(path).problems[0]


# --- graph ------------------------------------------------------------------------------------


def lengths(job: OpGraph) -> list[int]:
    return [int(ns) for ns in step_windows(replay(job.graph)).dur_ns]


def test_two_stages_by_hand(tmp_path: Path) -> None:
    """One micro-batch over two stages; times in microseconds.

    Stage 0: forward 0-10, send 12-15 (posted at 12, the peer was waiting), backward 30-50.
    Stage 1: receive posted at 0, forward 16-20, backward 20-24, send 25-28.
    """
    rows = [
        row("forward-compute", 0, 10, stage=0),
        row("forward-send", 12, 15, stage=0),
        row("backward-recv", 15, 28, stage=0),
        row("backward-compute", 30, 50, stage=0),
        row("forward-recv", 0, 15, stage=1),
        row("forward-compute", 16, 20, stage=1),
        row("backward-compute", 20, 24, stage=1),
        row("backward-send", 25, 28, stage=1),
    ]
    job = build_graph(read_table(write_table(tmp_path / "t.parquet", rows)))
    names = [job.table.operations[i].name for i in job.table.op]
    took = dict(zip(zip(job.table.stage.tolist(), names, strict=True), job.exec_ns, strict=True))
    assert took[0, "forward-send"] == took[1, "forward-recv"] == 3_000
    assert took[0, "backward-recv"] == took[1, "backward-send"] == 3_000
    assert lengths(job) == [10_000 + 3_000 + 4_000 + 4_000 + 3_000 + 20_000]
    fit = np.ones(len(job.table), bool)
    issued = build_issued_graph(job.table, fit)
    gap = dict(zip(zip(job.table.stage.tolist(), names, strict=True), gaps_ns(issued), strict=True))
    assert gap[0, "forward-send"] == 2_000
    assert gap[0, "backward-recv"] == 0
    assert gap[0, "backward-compute"] == 2_000
    assert gap[1, "forward-compute"] == 1_000
    assert gap[1, "backward-send"] == 1_000


def test_collectives_wait_for_the_last_member(tmp_path: Path) -> None:
    rows = [
        row("forward-compute", 0, 10, dp_rank=0),
        row("grads-reduce-scatter", 10, 37, dp_rank=0),
        row("forward-compute", 0, 30, dp_rank=1),
        row("grads-reduce-scatter", 30, 36, dp_rank=1),
    ]
    job = build_graph(read_table(write_table(tmp_path / "t.parquet", rows)))
    assert sorted(job.exec_ns.tolist()) == [6_000, 7_000, 10_000, 30_000]
    assert lengths(job) == [37_000]
    kinds = np.bincount(job.graph.kind, minlength=len(TaskKind))
    assert kinds[TaskKind.COMM] == kinds[TaskKind.ARRIVE] == 2
    assert kinds[TaskKind.JOIN] == 1
    assert job.graph.groups == ((0, 1),)


JOBS = {
    "pipeline": Job(dp=2, pp=3, duration=varied),
    "one stage": Job(dp=3, pp=1, duration=varied),
    "one dp rank": Job(dp=1, pp=2, micro_batches=5, duration=varied),
    "alone": Job(dp=1, pp=1, duration=varied),
    "chunks": Job(dp=2, pp=2, vpp=2, async_sends=True, duration=varied),
    "more chunks": Job(dp=2, pp=4, vpp=3, micro_batches=6, async_sends=True, duration=varied),
}


@pytest.mark.parametrize("name", JOBS)
def test_without_gaps_the_replay_is_the_simulation(tmp_path: Path, name: str) -> None:
    """Waits are cut out of the table and come back to the nanosecond, operation by operation."""
    job = JOBS[name]
    table = read_job(tmp_path, job)
    issued = build_issued_graph(table, np.ones(len(table), bool))
    timeline = replay(issued.graph)
    begin = np.minimum.reduceat(table.start_ns, np.searchsorted(table.step, np.unique(table.step)))
    shift = begin[np.searchsorted(np.unique(table.step), table.step)]
    np.testing.assert_array_equal(timeline.start_ns[issued.entry_task] + shift, table.start_ns)
    np.testing.assert_array_equal(timeline.end_ns[issued.exec_task] + shift, table.end_ns)
    assert lengths(issued) == [job.step_ns(step) for step in range(job.steps)]
    data = build_graph(table)
    assert data.matches.unmatched == 0
    assert all(free <= real for free, real in zip(lengths(data), lengths(issued), strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_the_wavefront_is_the_engine(tmp_path: Path, name: str) -> None:
    job = build_graph(read_job(tmp_path, JOBS[name]))
    factors = np.array([0, 1, 2, 3, 5])

    def durations(a: int, b: int) -> np.ndarray:
        return np.asarray(job.graph.dur_ns[a:b, None] * factors)

    ends = ends_of_many(job.graph, job.level_ptr, durations, len(factors))
    for i, factor in enumerate(factors):
        np.testing.assert_array_equal(
            ends[:, i], replay(job.graph, job.graph.dur_ns * factor).end_ns
        )


def test_every_compute_has_its_transfers(tmp_path: Path) -> None:
    """With two chunks a stage of four receives for all forwards but the model's first part."""
    job = Job(dp=1, pp=4, vpp=2, steps=1, micro_batches=4, async_sends=True, duration=varied)
    data = build_graph(read_job(tmp_path, job))
    table, compute = data.table, data.matches.compute
    assert (compute[np.isin(table.role, (Role.SEND, Role.RECV))] >= 0).all()
    sends = np.flatnonzero(table.role == Role.SEND)
    assert (table.end_ns[compute[sends]] == table.start_ns[sends]).all()
    recvs = np.flatnonzero(table.role == Role.RECV)
    assert (table.start_ns[compute[recvs]] == table.end_ns[recvs]).all()


def test_transfers_without_their_other_side_are_counted_not_fatal(tmp_path: Path) -> None:
    rows = [
        r
        for r in Job(dp=2, pp=2, duration=varied).simulate()
        if not (r["optype"] == "forward-send" and r["dp_rank"] == 1 and r["step"] == 0)
    ]
    data = build_graph(read_table(write_table(tmp_path / "t.parquet", rows)))
    assert data.matches.unmatched == 3
    assert "3 transfers lack their other side" in data.matches.problems[0]
    lone = (data.table.role == Role.RECV) & (data.matches.peer < 0)
    assert lone.sum() == 3
    assert (data.exec_ns[lone] < 100_000).all(), "waiting is not taken for the transfer"


def test_contradicting_rows_are_one_clear_error(tmp_path: Path) -> None:
    """Each data-parallel rank reaches the two collectives in the other order."""
    rows = [
        row("params-all-gather", 0, 5, dp_rank=0),
        row("grads-reduce-scatter", 6, 9, dp_rank=0),
        row("grads-reduce-scatter", 0, 5, dp_rank=1),
        row("params-all-gather", 6, 9, dp_rank=1),
    ]
    table = read_table(write_table(tmp_path / "t.parquet", rows))
    with pytest.raises(GraphError, match=r"t\.parquet: the order of the operations contradicts"):
        build_graph(table)


# --- gaps -------------------------------------------------------------------------------------


def test_constant_gaps_are_recovered_on_other_steps(tmp_path: Path) -> None:
    job = Job(dp=2, pp=3, steps=4, duration=varied, gap=fixed_gap)
    held_out = replay_held_out(read_job(tmp_path, job))
    assert held_out is not None
    assert held_out.step.tolist() == [1, 3]
    assert held_out.measured_ns.tolist() == [job.step_ns(1), job.step_ns(3)]
    assert held_out.replayed_ns.tolist() == held_out.measured_ns.tolist()
    assert held_out.error == 0
    assert held_out.meetings == ()


def test_held_out_steps_are_not_looked_at(tmp_path: Path) -> None:
    """Other starts of the same work on the held-out steps change nothing in the replay."""

    def slow_every_second(name: str, step: int, dp: int, stage: int, mb: int) -> int:
        return fixed_gap(name, step, dp, stage, mb) + 40_000 * (step % 2)

    plain = Job(dp=2, pp=2, steps=4, duration=varied, gap=fixed_gap)
    slow = Job(dp=2, pp=2, steps=4, duration=varied, gap=slow_every_second)
    (tmp_path / "slow").mkdir()
    want = replay_held_out(read_job(tmp_path, plain))
    got = replay_held_out(read_job(tmp_path / "slow", slow))
    assert want is not None
    assert got is not None
    assert got.replayed_ns.tolist() == want.replayed_ns.tolist()
    assert got.error > 0.05


def test_a_meeting_that_no_row_shows_is_inferred(tmp_path: Path) -> None:
    """The last stage reduces its loss over the data-parallel ranks; nobody recorded it."""
    job = Job(dp=3, pp=2, steps=8, duration=varied, gap=fixed_gap, loss_meets=True)
    table = read_job(tmp_path, job)
    held_out = replay_held_out(table)
    assert held_out is not None
    assert held_out.meetings == ("the dp ranks of stage 1",)
    assert held_out.error < 0.005
    without = Job(dp=3, pp=2, steps=8, duration=varied, gap=fixed_gap)
    held_out = replay_held_out(read_job(tmp_path, without))
    assert held_out is not None
    assert held_out.meetings == ()


def test_one_step_has_no_held_out(tmp_path: Path) -> None:
    assert replay_held_out(read_job(tmp_path, Job(steps=1))) is None
