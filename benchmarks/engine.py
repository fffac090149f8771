"""How fast the replay is: one pass, many scenarios at once, slack and sensitivity, memory.

Run: python benchmarks/engine.py [--tasks 5000000] [--scenarios 64] [--repeat 5]

The graph is a job of 64 ranks with four lanes each: every task follows its lane, and waits for a
task of some other lane not far back, as launches, stream waits and rendezvous do: two edges a task.
All times are of compiled and warm code on one thread; the best of ``--repeat`` runs, since other
work on the machine can only make a run longer.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from foretrace.replay.boundedby import bounded_by
from foretrace.replay.engine import counts_from_start, is_sorted, replay, replay_all, replay_each
from foretrace.replay.graph import Collectives, EdgeKind, JobGraph, Lanes, StepMarks, TaskKind
from foretrace.replay.kernels import longest_path
from foretrace.replay.scenario import parse
from foretrace.replay.sensitivity import sensitivity
from foretrace.replay.slack import slack
from foretrace.replay.whatif import outcomes

RANKS, LANES = 64, 4
SCENARIO_TASKS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--scenarios", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    console = Console(width=120)
    warm_up()
    graph = job(options.tasks)
    console.print(memory(graph))  # first: what earlier runs have freed would hide its growth
    console.print(one_pass(graph, options.repeat))
    del graph
    gc.collect()
    console.print(many(job(SCENARIO_TASKS), options.scenarios, options.repeat))


def job(tasks: int, seed: int = 0) -> JobGraph:
    """A job of so many tasks and twice as many edges, in topological order."""
    random = np.random.default_rng(seed)
    lanes = RANKS * LANES
    number = np.arange(tasks)
    lane = (number % lanes).astype(np.int32)
    other = number - random.integers(1, 2 * lanes, tasks)
    pred = np.stack([number - lanes, np.where(other % lanes == lane, other + 1, other)], axis=1)
    kinds = np.array([TaskKind.HOST, TaskKind.CALL, TaskKind.KERNEL, TaskKind.COMM], np.int8)
    edges = np.array([EdgeKind.LAUNCH, EdgeKind.EVENT, EdgeKind.RENDEZVOUS], np.int8)
    first = 2 * lanes  # tasks that nothing precedes
    count = np.where(number < first, 0, 2)
    ptr = np.zeros(tasks + 1, np.int64)
    np.cumsum(count, out=ptr[1:])
    kind = np.stack([
        np.full(tasks, EdgeKind.STREAM, np.int8), edges[random.integers(0, 3, tasks)]
    ], axis=1)  # fmt: skip
    none = np.zeros(0, np.int64)
    i32 = np.zeros(tasks, np.int32)
    ends = np.array([0]), np.array([tasks - 1])
    return JobGraph(
        rank=(lane // LANES).astype(np.int32),
        lane=lane,
        kind=kinds[lane % LANES],
        dur_ns=random.integers(0, 50_000, tasks),
        name=(number % 1000).astype(np.int32),
        event=number,
        collective=i32 - 1,
        step=i32,
        measured_start_ns=number,
        measured_end_ns=number.copy(),
        pred_ptr=ptr,
        pred=pred[first:].reshape(-1),
        edge_kind=kind[first:].reshape(-1),
        edge_delay_ns=random.integers(0, 2_000, 2 * (tasks - first)),
        names=tuple(f"kernel {i}" for i in range(1000)),
        lanes=Lanes(
            (np.arange(lanes) // LANES).astype(np.int32),
            (np.arange(lanes) % LANES - 1).astype(np.int32),
            np.arange(lanes),
        ),
        collectives=Collectives(none.astype(np.int8), none.astype(np.int32), none,
                                none.astype(np.float32)),
        groups=(),
        steps=StepMarks(np.zeros(1, np.int32), np.zeros(1, np.int32), *ends),
    )  # fmt: skip


def warm_up() -> None:
    """Compile everything that is measured."""
    graph = job(4 * RANKS * LANES)
    timeline = replay(graph)
    replay_all(graph, {"a": graph.dur_ns, "b": graph.dur_ns})
    slack(timeline)
    sensitivity(timeline)
    bounded_by(timeline)


def one_pass(graph: JobGraph, repeat: int) -> Table:
    """The engine beside one numpy pass over the same arrays."""
    from_start = counts_from_start(graph)
    engine = best(repeat, lambda: longest_path(
        graph.dur_ns, graph.pred_ptr, graph.pred, from_start, graph.edge_delay_ns
    ))  # fmt: skip
    same_traffic = best(repeat, numpy_pass(graph))
    whole = best(repeat, lambda: replay(graph))
    timeline = replay(graph)
    table = Table(title=f"one pass: {len(graph):,} tasks, {len(graph.pred):,} edges")
    for column in ("", "ms", "million tasks/s", "times numpy"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {
        "engine (compiled loop)": engine,
        "numpy: gather, add, reduce, add over the same arrays": same_traffic,
        "replay(): check of the order, loop, ends": whole,
        "check of the order alone": best(repeat, lambda: is_sorted(graph)),
        "slack of every task": best(repeat, lambda: slack(timeline)),
        "derivatives by kind": best(repeat, lambda: sensitivity(timeline)),
        "derivatives by rank": best(repeat, lambda: sensitivity(timeline, "rank")),
    }
    for name, seconds in rows.items():
        table.add_row(
            name, f"{1e3 * seconds:.1f}", f"{len(graph) / seconds / 1e6:.1f}",
            f"{seconds / same_traffic:.2f}",
        )  # fmt: skip
    return table


def numpy_pass(graph: JobGraph) -> Callable[[], object]:
    """What numpy needs to touch the same memory once, without any order: not a replay.

    Ends are gathered by source, delays added, the latest taken by task, durations added; the
    buffers are allocated beforehand.
    """
    some = np.diff(graph.pred_ptr) > 0
    first = graph.pred_ptr[:-1][some]
    dur = graph.dur_ns[some]
    end, gathered = graph.dur_ns.copy(), np.empty_like(graph.pred)
    start, done = np.empty_like(dur), np.empty_like(dur)

    def run() -> None:
        np.take(end, graph.pred, out=gathered)
        np.add(gathered, graph.edge_delay_ns, out=gathered)
        np.maximum.reduceat(gathered, first, out=start)
        np.add(start, dur, out=done)

    return run


def memory(graph: JobGraph) -> Table:
    """Bytes a task, counted and seen by the kernel."""
    n = len(graph)
    arrays = [getattr(graph, f.name) for f in fields(graph)]
    held = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
    read = sum(
        a.nbytes
        for a in (graph.dur_ns, graph.pred_ptr, graph.pred, graph.edge_kind, graph.edge_delay_ns)
    )
    before = reset_peak()
    timeline = replay(graph)
    added = peak() - before
    result = timeline.start_ns.nbytes + timeline.end_ns.nbytes + timeline.bound.nbytes
    table = Table(title=f"memory, bytes a task ({len(graph.pred) / n:.0f} edges a task)")
    for column in ("what", "bytes a task"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, size in (
        ("the job graph, all columns", held),
        ("of it what the engine reads", read),
        ("what a replay gives: start, end, bound", result),
        ("peak of a replay() above the graph, by the operating system", added),
        ("what the engine reads and that peak together", read + added),
        ("all columns and that peak together", held + added),
    ):
        table.add_row(name, f"{size / n:.1f}")
    return table


def many(graph: JobGraph, count: int, repeat: int) -> Table:
    """Scenarios over one graph."""
    random = np.random.default_rng(1)
    costs = {
        f"scenario {i}": (graph.dur_ns * random.uniform(0.5, 1.5)).astype(np.int64)
        for i in range(count)
    }
    asked = [
        replace(parse(f"rank:{i % RANKS},kernel:*{i % 10}=x0.5"), name=f"{i}") for i in range(count)
    ]

    def one_by_one() -> None:
        for name, cost in costs.items():
            replay(graph, cost, name)

    def dropped() -> None:
        for _ in replay_each(graph, costs.items()):
            pass

    def answered() -> None:
        for outcome in outcomes(graph, asked):
            bounded_by(outcome.timeline)

    table = Table(title=f"{count} scenarios over {len(graph):,} tasks, {len(graph.pred):,} edges")
    for column in ("", "s", "ms a scenario", "million tasks/s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, run in (
        ("replay_all: several at once, all timelines kept", lambda: replay_all(graph, costs)),
        ("replay_each: several at once, timelines dropped", dropped),
        ("one after the other, timelines dropped", one_by_one),
        ("what-ifs from text to step times and bounds", answered),
    ):
        seconds = best(max(repeat // 2, 1), run)
        table.add_row(
            name, f"{seconds:.2f}", f"{1e3 * seconds / count:.1f}",
            f"{len(graph) * count / seconds / 1e6:.1f}",
        )  # fmt: skip
    return table


def best(repeat: int, run: Callable[[], Any]) -> float:
    """Seconds of the quickest of some runs."""
    took = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        took.append(time.perf_counter() - begin)
    return min(took)


def reset_peak() -> int:
    """Forget the highest resident size so far; the present one, bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> int:
    """Highest resident size since the reset, bytes."""
    return status("VmHWM")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (text for text in lines if text.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
