"""Jobs whose overlap slows their work: bare work by hand, what-ifs, and when rates are used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.replay.machine import Op
from tests.replay.real import SOURCES
from tests.replay.test_rates import Task, job_of
from tests.replay.traces import COMM as COMM_STREAM
from tests.replay.traces import RankTrace
from tests.replay.transforms.jobs import MB, ran, transform

from foretrace.replay.build import build_graph
from foretrace.replay.costs import interference_check
from foretrace.replay.costs.interference import DEFAULT, Interference
from foretrace.replay.costs.interference_check import cross_validate, fit_model
from foretrace.replay.costs.interference_choice import Choice, choose
from foretrace.replay.costs.interference_collectives import MIN_EACH, collective_pairs, fit_phi
from foretrace.replay.costs.interference_job import shared_job
from foretrace.replay.costs.interference_sharing import read_rank_kernels, sharing_of
from foretrace.replay.engine import replay
from foretrace.replay.graph import EdgeKind, JobGraph, TaskKind
from foretrace.replay.rates import Sharing
from foretrace.replay.scenario import parse
from foretrace.replay.timeline import measured, step_windows
from foretrace.replay.whatif import evaluate
from foretrace.traces.errors import GraphError
from foretrace.traces.store import TraceSet, TraceSetWriter

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_tn"
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
KERNELS = 12
ALONE_US, BESIDE_US = 20.0, 41.2
"""A product of one wave on 108 multiprocessors takes two beside a collective that holds 24, and
3% longer on top (``epsilon``)."""


def recorded(
    path: Path,
    beside: list[bool],
    slow_us: float = BESIDE_US,
    device: str = "NVIDIA A100-SXM4-80GB",
) -> TraceSet:
    """One rank; in each step twelve products, beside a collective or in front of it."""
    trace = RankTrace(groups=[(0,)])
    for step, overlaps in enumerate(beside):
        begin = 2_000 * step
        took = slow_us if overlaps else ALONE_US
        first = begin + 5
        until = first + took * KERNELS
        arrives = begin if overlaps else until
        call = trace.call("launch", arrives, 5)
        ring = trace.work(RING, arrives, until - begin + 100, COMM_STREAM, call)
        ring.values |= {"grid": "[24, 1, 1]", "block": "[512, 1, 1]"}
        trace.operation("all_reduce", ring, call, group=0, seq=step)
        for i in range(KERNELS):
            row = trace.kernel(GEMM, first + 5 * i, first + took * i, took)
            row.values |= {"grid": "[108, 1, 1]", "block": "[128, 1, 1]"}
        last = max(arrives + 5, first + 5 * KERNELS)
        call = trace.call("cudaDeviceSynchronize", last, ring.end + 3 - last)
        trace.mark(step, begin, call.end + 10)
    tables = trace.tables(1)
    info = msgspec.structs.replace(tables.info, device_name=device)
    writer = TraceSetWriter(path)
    writer.write_rank(replace(tables, info=info))
    writer.finish()
    return TraceSet.open(path)


def test_bare_work_and_what_ifs_by_hand(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.trace", [True])
    graph = build_graph(trace)
    choice = choose(trace, graph, "on")
    assert (choice.used, choice.reason) == (True, "asked for")
    assert choice.job is not None
    kernels = np.flatnonzero(graph.kind == TaskKind.KERNEL)
    assert choice.job.graph.dur_ns[kernels].tolist() == [20_000] * KERNELS
    again = choice.job.replay()
    assert np.abs(again.start_ns - replay(graph).start_ns).max() <= KERNELS
    # Without the collective each product takes its time alone; the plain replay leaves it slow.
    (alone,) = evaluate(graph, [parse("comm=0")], choice.job)
    took = (alone.timeline.end_ns - alone.timeline.start_ns)[kernels]
    assert took.tolist() == [20_000] * KERNELS
    (plain,) = evaluate(graph, [parse("comm=0")])
    assert plain.step_ns[0] - alone.step_ns[0] == pytest.approx(KERNELS * 21_200, abs=KERNELS)
    # A collective that ends after six products leaves the others alone.
    (half,) = evaluate(graph, [parse(f"comm={5 + 6 * BESIDE_US}us")], choice.job)
    took = (half.timeline.end_ns - half.timeline.start_ns)[kernels]
    assert took.tolist()[:5] == [41_200] * 5
    assert took.tolist()[7:] == [20_000] * 5


def test_rates_are_used_where_they_fit_unseen_steps_better(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.trace", [True, False, True, False])
    graph = build_graph(trace)
    choice = choose(trace, graph, "auto")
    assert choice.used
    assert choice.held is not None
    assert (choice.held.by, choice.held.folds, choice.held.kernels) == ("step", 4, 2 * KERNELS)
    # Elsewhere a product took 20 us in two of three steps; here it took 41.2.
    assert choice.held.kernel_error == (
        pytest.approx(21.2 / 41.2, abs=1e-3),
        pytest.approx(0, abs=1e-3),
    )
    assert choice.held.step_error[1] < 0.01 < choice.held.step_error[0]
    assert "held-out steps" in choice.reason


def test_rates_are_not_used_where_overlap_costs_nothing(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.trace", [True, False, True, False], slow_us=ALONE_US)
    choice = choose(trace, build_graph(trace), "auto")
    assert not choice.used
    assert choice.job is None
    assert choice.held is not None
    assert choice.held.kernel_error[0] < choice.held.kernel_error[1]
    assert "held-out steps" in choice.reason


def test_why_rates_are_not_used(tmp_path: Path) -> None:
    few = recorded(tmp_path / "few.trace", [True, False])
    assert why(few) == "kernels that ran wholly beside communication: 12, too few to tell"
    unknown = recorded(tmp_path / "unknown.trace", [True, False, True], device="Abacus 3")
    assert "no known GPU type" in why(unknown)
    with pytest.raises(GraphError, match="no known GPU type"):
        choose(unknown, build_graph(unknown), "on")
    assert choose(few, build_graph(few), "off") == Choice(used=False, reason="switched off")


def why(trace: TraceSet) -> str:
    choice = choose(trace, build_graph(trace), "auto")
    assert not choice.used
    return choice.reason


def test_held_out_steps_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold's own durations reach neither its donors nor its constants."""
    trace = recorded(tmp_path / "a.trace", [True, False, True, False])
    graph, found = build_graph(trace), read_rank_kernels(trace, [0])
    last = graph.step == 3
    other = graph.dur_ns.copy()
    other[last & (graph.kind == TaskKind.KERNEL)] *= 50
    changed = graph.with_durations(other)
    assert fit_model(graph, found, ~last) == fit_model(changed, found, ~last)
    pairs = found[0].pairs
    assert len(pairs) == 2 * KERNELS
    given: list[set[int]] = []

    def spy(graph: JobGraph, found: object, seen: np.ndarray) -> Interference:
        given.append(set(graph.step[seen].tolist()) & {0, 1, 2, 3})
        return DEFAULT

    monkeypatch.setattr(interference_check, "fit_model", spy)
    cross_validate(graph, found)
    assert given == [{0, 1, 2, 3} - {fold} for fold in range(4)]


def test_a_faster_network_takes_more_of_the_memory(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.trace", [True])
    graph = build_graph(trace)
    sharing = sharing_of(graph, read_rank_kernels(trace, [0]), DEFAULT)
    comm = np.flatnonzero(graph.kind == TaskKind.COMM)
    sharing = replace(sharing, moves=np.where(graph.kind == TaskKind.COMM, 0.1, 0.0))
    job = shared_job(measured(graph), sharing)
    dur = job.graph.dur_ns.copy()
    dur[comm] //= 2
    twice = job.sharing_of(job.graph.with_durations(dur))
    assert twice.moves[comm].tolist() == pytest.approx([0.2])
    assert job.sharing_of(job.graph) is job.sharing
    same = job.sharing_of(job.graph.with_durations(job.graph.dur_ns.copy()))
    for column in ("row", "evicted", "holds", "moves", "disturbed"):
        assert (getattr(same, column) == getattr(job.sharing, column)).all()


def test_new_operations_take_what_their_originals_did(tmp_path: Path) -> None:
    """Split buckets hold and disturb as the buckets did; without slowdown nothing changes."""
    program = [Op("work", 40)]
    for size in (10, 20):
        program += [Op("kernel", 60), Op("collective", 30 + 5 * size), Op("kernel", 300)]
    program += [Op("await"), Op("kernel", 25), Op("sync")]
    graph = ran(tmp_path, [program, program], [10 * MB, 20 * MB]).graph
    comm, n = graph.kind == TaskKind.COMM, len(graph)
    row = np.where(graph.kind == TaskKind.KERNEL, 0, -1).astype(np.int32)
    holds, moves = np.where(comm, 1, 0), np.where(comm, 0.25, 0.0)
    sharing = Sharing(row, np.array([[1.0, 2.0]]), np.full(n, -1.0), holds, moves, 1.0 + 0.5 * comm)
    job = shared_job(replay(graph), sharing)
    after = transform("buckets", split=2)(job.graph)
    new = job.sharing_of(after)
    members = after.kind == TaskKind.COMM
    assert int(members.sum()) == 2 * int(comm.sum())
    assert (new.holds[members] == 1).all()
    assert (new.disturbed[members] == 1.5).all()
    assert ((new.row >= 0) == (after.kind == TaskKind.KERNEL)).all()
    # Half the bytes, but the latency of a whole operation: a little less of the bandwidth.
    assert (new.moves[members] > 0.15).all()
    assert (new.moves[members] < 0.25).all()
    flat = replace(sharing, table=np.ones((1, 1)), disturbed=np.ones(n))
    same = shared_job(replay(graph), flat)
    split = transform("buckets", split=2)(same.graph)
    assert (same.replay(split).start_ns == replay(split).start_ns).all()
    slow, plain = job.replay(after), replay(after.with_durations(after.dur_ns))
    assert (slow.end_ns >= plain.end_ns).all()


@pytest.mark.parametrize("name", ["a800"])
def test_real_job_gives_its_times_back(shared_data: Path, tmp_path: Path, name: str) -> None:
    from foretrace.traces.importers import import_paths

    import_paths([shared_data / "traces" / SOURCES[name]], tmp_path / "r.trace", jobs=1)
    trace = TraceSet.open(tmp_path / "r.trace")
    graph = build_graph(trace)
    found = read_rank_kernels(trace, trace.ranks)
    model = fit_model(graph, found)
    # 392 all-gathers and 390 reduce-scatters beside computation, each seen alone as well.
    assert 0.0 < model.phi < 0.1
    plain = replay(graph)
    exact = shared_job(plain, sharing_of(graph, found, model)).replay()
    assert np.abs(exact.start_ns - plain.start_ns).max() < 1_000
    job = shared_job(measured(graph), sharing_of(graph, found, model))
    bare, slow = job.graph.dur_ns.sum(), graph.dur_ns.sum()
    assert bare < slow
    real, again = step_windows(measured(graph)).dur_ns, step_windows(job.replay()).dur_ns
    assert np.abs(again / real - 1).max() < 0.01
    held = cross_validate(graph, found)
    assert held is None or held.by == "rank"


@pytest.mark.parametrize(("each", "phi"), [(MIN_EACH, 0.25), (MIN_EACH - 1, 0.02)])
def test_phi_is_what_collectives_lose_beside_computation(each: int, phi: float) -> None:
    """Transfers of 40 us alone and of 50 us beside a kernel, as many of each; one partly beside."""
    tasks: list[Task] = []
    spans: list[tuple[int, int]] = []
    for number in range(2 * each + 1):
        at, beside = 1_000 * number, number % 2 == 0
        took = 50 if beside else 40
        tasks += [(TaskKind.ARRIVE, 0, 0, number), (TaskKind.COMM, took, 0, number)]
        spans += [(at, at), (at + 10, at + 10 + took)]
        if beside:
            tasks.append((TaskKind.KERNEL, 100, 0, -1))
            spans.append((at, at + (100 if number < 2 * each else 30)))
    meet = [
        (i, i + 1, EdgeKind.RENDEZVOUS, 0) for i, t in enumerate(tasks) if t[0] == TaskKind.ARRIVE
    ]
    graph = job_of(tasks, meet)
    start, end = 1_000 * np.array(spans, np.int64).T
    pairs = collective_pairs(replace(graph, measured_start_ns=start, measured_end_ns=end))
    assert pairs.slowdown.tolist() == [1.25] * each
    assert pairs.alone == each
    assert fit_phi(pairs, 0.02) == phi
