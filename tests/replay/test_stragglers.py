"""Slowdown and its attribution: by hand, by properties, and on the published real tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.replay.op_tables import Job, fixed_gap, read_job, row, varied, write_table

from foretrace.cli import app
from foretrace.replay import stragglers
from foretrace.replay.stragglers import Blame, Charge, find_stragglers
from foretrace.traces.optable.table import OpTable, read_table

TABLES = ("AR", "ST")


def blame_of(path: Path, job: Job) -> Blame:
    return find_stragglers(read_job(path, job))


def slowdowns(charges: tuple[Charge[Any], ...]) -> dict[Any, float]:
    return {charge.part: charge.slowdown for charge in charges}


def saved(charges: tuple[Charge[Any], ...]) -> dict[Any, int]:
    return {charge.part: charge.saved_ns for charge in charges}


# --- by hand ----------------------------------------------------------------------------------


@pytest.fixture
def two_ranks(tmp_path: Path) -> OpTable:
    """Two data-parallel ranks, two micro-batches, no stages; times in microseconds.

    Forward 10 and 20, backward 20 and 40, reduction 5 once both are there: the step takes 125.
    Ideal: forward 15, backward 30, reduction 5, so 95.
    """
    rows = []
    for dp, slow in ((0, 1), (1, 2)):
        at = 0.0
        for name, us in (("forward", 10), ("forward", 10), ("backward", 20), ("backward", 20)):
            rows.append(row(f"{name}-compute", at, at + us * slow, dp_rank=dp))
            at += us * slow
        rows.append(row("grads-reduce-scatter", at, 125, dp_rank=dp))
    return read_table(write_table(tmp_path / "t.parquet", rows))


def test_one_slow_rank_by_hand(two_ranks: OpTable) -> None:
    blame = find_stragglers(two_ranks)
    assert blame.measured_ns.tolist() == blame.actual_ns.tolist() == [125_000]
    assert blame.ideal_ns.tolist() == [95_000]
    assert blame.slowdown == pytest.approx(125 / 95)
    assert slowdowns(blame.dp_ranks) == pytest.approx({1: 125 / 95, 0: 1.0})
    assert slowdowns(blame.workers) == pytest.approx({(1, 0): 125 / 95, (0, 0): 1.0})
    assert slowdowns(blame.stages) == pytest.approx({0: 125 / 95})
    assert slowdowns(blame.operations) == pytest.approx(
        {
            "backward-compute": (2 * 15 + 2 * 40 + 5) / 95,
            "forward-compute": (2 * 20 + 2 * 30 + 5) / 95,
            "grads-reduce-scatter": 1.0,
        }
    )
    assert saved(blame.dp_ranks) == {1: 30_000, 0: 0}
    assert saved(blame.operations) == {
        "backward-compute": 20_000,
        "forward-compute": 10_000,
        "grads-reduce-scatter": 0,
    }
    assert blame.held_out is None
    assert blame.problems == ("no step error: it takes two steps or more",)


def test_lists_are_worst_first(two_ranks: OpTable) -> None:
    blame = find_stragglers(two_ranks)
    for charges in (blame.workers, blame.dp_ranks, blame.stages, blame.operations):
        order = [charge.slowdown for charge in charges]
        assert order == sorted(order, reverse=True)


def test_movement_is_ideal_at_its_median_and_work_at_its_mean(tmp_path: Path) -> None:
    """Reductions of 4, 4 and 40: the ideal is 4. Optimizers of 1, 1 and 10: the ideal is 4."""
    rows = []
    for step, (moves, works) in enumerate(((4, 1), (4, 1), (40, 10))):
        rows += [
            row("grads-reduce-scatter", 0, moves, step=step),
            row("optimizer", moves, moves + works, step=step),
        ]
    blame = find_stragglers(read_table(write_table(tmp_path / "t.parquet", rows)))
    assert blame.ideal_ns.tolist() == [8_000] * 3
    assert blame.actual_ns.tolist() == [5_000, 5_000, 50_000]


# --- properties -------------------------------------------------------------------------------


def test_an_even_job_has_no_slowdown(tmp_path: Path) -> None:
    blame = blame_of(tmp_path, Job(dp=2, pp=3, duration=lambda name, *_: 1000 + 7 * len(name)))
    every = (blame.workers, blame.dp_ranks, blame.stages, blame.operations)
    assert blame.slowdown == 1
    assert {charge.slowdown for charges in every for charge in charges} == {1.0}
    assert {charge.saved_ns for charges in every for charge in charges} == {0}


def slow_worker(dp: int, stage: int) -> Callable[[str, int, int, int, int], int]:
    def duration(name: str, step: int, d: int, s: int, mb: int) -> int:
        slow = "compute" in name and (d, s) == (dp, stage)
        return varied(name, 0, 0, 0, mb) * (3 if slow else 1)

    return duration


@pytest.mark.parametrize(("dp", "stage"), [(0, 0), (1, 2), (2, 1)])
def test_the_slow_worker_is_found(tmp_path: Path, dp: int, stage: int) -> None:
    blame = blame_of(tmp_path, Job(dp=3, pp=3, duration=slow_worker(dp, stage)))
    assert blame.workers[0].part == (dp, stage)
    assert blame.dp_ranks[0].part == dp
    assert blame.stages[0].part == stage
    assert blame.workers[0].saved_ns == max(charge.saved_ns for charge in blame.workers)
    assert blame.workers[0].slowdown <= blame.slowdown * 1.2
    assert blame.workers[0].slowdown > 1.1 > blame.workers[1].slowdown


def test_the_order_of_rows_and_the_clock_do_not_matter(tmp_path: Path) -> None:
    rows = Job(dp=2, pp=2, steps=3, duration=varied, gap=fixed_gap).simulate()
    want = find_stragglers(read_table(write_table(tmp_path / "a.parquet", rows)))
    moved = [r | {"start_ts": r["start_ts"] + 1000.0 * r["step"]} for r in rows]
    moved = np.random.default_rng(5).permutation(np.array(moved, object)).tolist()
    got = find_stragglers(read_table(write_table(tmp_path / "b.parquet", moved)))
    assert got.workers == want.workers
    assert got.operations == want.operations
    assert got.held_out is not None
    assert want.held_out is not None
    np.testing.assert_array_equal(got.held_out.replayed_ns, want.held_out.replayed_ns)


def test_a_job_twice_as_slow_has_the_same_slowdown(tmp_path: Path) -> None:
    want = blame_of(tmp_path, Job(dp=2, pp=2, duration=varied))
    got = blame_of(tmp_path, Job(dp=2, pp=2, duration=lambda *a: 2 * varied(*a)))
    np.testing.assert_array_equal(got.actual_ns, 2 * want.actual_ns)
    assert got.slowdown == pytest.approx(want.slowdown, rel=1e-5)


def test_gaps_are_no_part_of_the_slowdown(tmp_path: Path) -> None:
    want = blame_of(tmp_path, Job(dp=2, pp=2, duration=varied))
    got = blame_of(tmp_path, Job(dp=2, pp=2, duration=varied, gap=fixed_gap))
    assert got.workers == want.workers
    assert (got.measured_ns > want.measured_ns).all()


def test_blocks_of_scenarios_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = read_job(tmp_path, Job(dp=3, pp=2, vpp=2, async_sends=True, duration=varied))
    want = find_stragglers(table)
    monkeypatch.setattr(stragglers, "BLOCK_BYTES", 1)
    assert find_stragglers(table).workers == want.workers


# --- real tables ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TABLES)
def real(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Blame, dict[str, Any], str]:
    """A published table, and what its own analyzer says of it."""
    folder = shared_data / "traces" / "megatron-straggler"
    name = request.param
    blame = find_stragglers(read_table(folder / f"trace-{name}.parquet"))
    return blame, json.loads((folder / f"result-{name}.json").read_text()), name


Real = tuple[Blame, dict[str, Any], str]


def test_real_steps_without_gaps(real: Real) -> None:
    blame, published, _ = real
    want = np.array([published["step_t_nodelay"][str(step)] for step in blame.step])
    np.testing.assert_allclose(blame.actual_ns / 1e9, want, rtol=0.001)
    ideal = np.array([published["step_t_noblk"][str(step)] for step in blame.step])
    np.testing.assert_allclose(blame.ideal_ns / 1e9, ideal, rtol=0.001)


def test_real_steps_that_were_held_out(real: Real) -> None:
    blame, published, name = real
    assert blame.held_out is not None
    steps = [str(step) for step in blame.held_out.step]
    measured = np.array([published["step_t_base"][step] for step in steps])
    np.testing.assert_allclose(blame.held_out.measured_ns / 1e9, measured, rtol=1e-5)
    base = np.array(list(published["step_t_base"].values()))
    theirs = np.abs(np.array(list(published["step_t_nodelay"].values())) - base).mean()
    assert theirs / base.mean() == pytest.approx({"AR": 0.0067, "ST": 0.0189}[name], abs=1e-4)
    assert blame.held_out.error < 0.5 * theirs / base.mean()


def test_real_slowdown_and_attribution(real: Real) -> None:
    blame, published, _ = real
    assert blame.slowdown == pytest.approx(published["blocking_slowdown"], rel=0.01)
    for charges, key in (
        (blame.dp_ranks, "dp_rank"),
        (blame.stages, "stage"),
        (blame.operations, "optype"),
    ):
        want = published[f"blocking_decompose_by_{key}"]
        got = {str(charge.part): charge.slowdown for charge in charges}
        assert got == pytest.approx(want, rel=0.01)
        ranks = [str(charge.part) for charge in charges]
        for worse in want:
            for better in want:
                if want[worse] > 1.01 * want[better]:
                    assert ranks.index(worse) < ranks.index(better)


def test_real_culprits(real: Real) -> None:
    """AR slowed one worker down on purpose; ST has a last stage with too much work."""
    blame, _, name = real
    if name == "AR":
        assert blame.workers[0].part == (0, 0)
        assert blame.workers[0].saved_ns > 0.95 * (blame.actual_ns - blame.ideal_ns).mean()
    else:
        assert blame.stages[0].part == 3
        assert {charge.part for charge in blame.workers[:2]} == {(0, 3), (1, 3)}


# --- command ----------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``foretrace stragglers`` and gives exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app.main(["stragglers", *map(str, args)])
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return call


def test_the_json_document(run: Run, tmp_path: Path) -> None:
    job = Job(dp=3, pp=3, duration=slow_worker(1, 2), gap=fixed_gap)
    path = write_table(tmp_path / "t.parquet", job.simulate())
    code, out, err = run(path, "--json")
    assert (code, err) == (0, "")
    got = json.loads(out)
    blame = find_stragglers(read_table(path))
    assert list(got)[:7] == [
        "slowdown", "step_error", "workers", "dp_ranks", "stages", "operations", "seconds",
    ]  # fmt: skip
    assert got["slowdown"] == blame.slowdown
    assert got["step_error"] == 0
    assert got["seconds"] > 0
    assert len(got["workers"]) == 9
    assert [(w["dp"], w["pp"]) for w in got["workers"]] == [c.part for c in blame.workers]
    assert [d["dp"] for d in got["dp_ranks"]] == [c.part for c in blame.dp_ranks]
    assert [s["stage"] for s in got["stages"]] == [c.part for c in blame.stages]
    assert [o["operation"] for o in got["operations"]] == [c.part for c in blame.operations]
    for rows in (got["workers"], got["dp_ranks"], got["stages"], got["operations"]):
        order = [r["slowdown"] for r in rows]
        assert order == sorted(order, reverse=True)
    assert got["measured_ms"] > got["actual_ms"] > got["ideal_ms"]


def test_the_text_names_the_worker_first(run: Run, tmp_path: Path) -> None:
    job = Job(dp=3, pp=3, duration=slow_worker(1, 2), gap=fixed_gap)
    code, out, err = run(write_table(tmp_path / "t.parquet", job.simulate()))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("t.parquet: dp 3 x pp 3, 2 steps, ")
    assert lines[2].startswith("look at dp 1, stage 2: alone it slows the ideal job ")
    assert max(map(len, lines)) <= 110
    assert any(line.startswith("(1 more that slow") for line in lines)


def test_the_text_names_a_stage_that_is_slow_everywhere(run: Run, tmp_path: Path) -> None:
    def duration(name: str, step: int, dp: int, stage: int, mb: int) -> int:
        return varied(name, 0, 0, 0, mb) * (3 if "compute" in name and stage == 1 else 1)

    job = Job(dp=3, pp=2, duration=duration)
    _, out, _ = run(write_table(tmp_path / "t.parquet", job.simulate()))
    assert "look at stage 1: " in out


def test_an_even_job_has_no_straggler(run: Run, tmp_path: Path) -> None:
    job = Job(steps=1, duration=lambda name, *_: 10_000)
    code, out, err = run(write_table(tmp_path / "t.parquet", job.simulate()))
    assert code == 0
    assert "no worker, stage or dp rank is a straggler by itself" in out
    assert "replay:" not in out
    assert "note: no step error: it takes two steps or more" in err


def test_errors_are_one_line(run: Run, tmp_path: Path) -> None:
    columns = ("step", "optype", "start_ts", "dp_rank")
    path = write_table(tmp_path / "t.parquet", Job().simulate(), columns)
    code, out, err = run(path)
    assert (code, out) == (2, "")
    assert err.startswith(f"foretrace: error: {path}: column duration, stage missing; found ")
    assert err.count("\n") == 1
    code, _, err = run(write_table(tmp_path / "u.parquet", Job().simulate()), "--meta", "nowhere")
    assert (code, err.count("\n")) == (2, 1)


def test_the_documented_json_is_what_it_writes(run: Run, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/stragglers.md").read_text()
    document = json.loads(text.partition("```json\n")[2].partition("```")[0])
    _, out, _ = run(write_table(tmp_path / "t.parquet", Job().simulate()), "--json")
    got = json.loads(out)
    assert list(got) == list(document)
    for key in ("workers", "dp_ranks", "stages", "operations"):
        assert list(got[key][0]) == list(document[key][0])
