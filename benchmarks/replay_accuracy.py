"""Replay of real recordings: against what was measured, and against wrong models on purpose.

Run: python benchmarks/replay_accuracy.py [--data DIR] [--percentiles 25 33 40 50]

Prints: the replay of three 8-rank jobs with its bars; each rank's waits, recovered after they
were cut out of the input; where the edges come from; which check catches which wrong model; and
steps predicted from the durations of other steps.

With --percentiles, also how the results move with the one number that was chosen by hand: the
percentile of the slack that the constants are taken from.

The sets are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).
Nothing is tuned per set: the same rules, percentiles and thresholds serve all of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _replay_checks import JOBS, RECOVERED, RealJob, checks, groups_used, off_layout
from _wrong_models import message_pairs, mutations, with_wrong_peers
from rich.console import Console
from rich.table import Table

from foretrace.replay.accuracy import Assessment, assess
from foretrace.replay.build import Recording, build_from_arrays, constants, read, slacks
from foretrace.replay.build.rules import RULES
from foretrace.replay.counterfactual import Recovery, recover_waits
from foretrace.replay.othersteps import from_other_steps, is_input
from foretrace.traces.errors import ForetraceError
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

STEPS = {
    "DLRM, rank 3 of 8, A100": "hta-dlrm-a100-rank3of8.json.gz",
    "NCCL metadata, A100": "hta-nccl-metadata-a100.json.gz",
    "one V100, ns clock": "hta-ns-resolution-v100.json.gz",
    "1 rank of several, V100": "hta-v100-216k.json.gz",
    "ResNet-50, one V100": "kineto-resnet50-v100.json.gz",
    "DDP, rank 0": "liplus-ddp-0.json.gz",
    "CPU only, rank 34 of 300": "hta-cpu-only-rank34of300.json.gz",
}
"""Recordings that hold at least three steps with the same task sequence."""

OTHER_STEPS_BAR = 0.03

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Result:
    """One 8-rank job, replayed.

    Attributes:
        job: what is known about it.
        recording: all ranks as arrays.
        assessment: its replay against the recording.
        recovered: each rank's waits after they were cut out.
    """

    job: RealJob
    recording: Recording
    assessment: Assessment
    recovered: list[Recovery]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--percentiles", type=float, nargs="*", default=[])
    options = parser.parse_args()
    traces = Path(options.data or ROOT.parent / "shared" / "data") / "traces"
    sources = [traces / job.source for job in JOBS.values()]
    sources += [traces / "single-rank" / name for name in STEPS.values()]
    missing = [str(p) for p in sources if not p.exists()]
    if missing:
        print(f"skipped: no traces at {', '.join(missing)}; give --data DIR")
        return
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as scratch:
        results = {name: measure(job, traces, Path(scratch)) for name, job in JOBS.items()}
        console.print(steps_table(results))
        console.print(checks_table(results))
        console.print(ranks_table(results))
        console.print(rules_table(results))
        console.print(mutations_table(results))
        console.print(other_steps_table(traces / "single-rank", Path(scratch)))
    if options.percentiles:
        console.print(sensitivity_table(results, options.percentiles))


def measure(job: RealJob, traces: Path, scratch: Path) -> Result:
    recording = imported(traces / job.source, scratch)
    build = build_from_arrays(recording)
    recovered = [recover_waits(recording, build, rank) for rank in recording.tables]
    return Result(job, recording, assess(build), recovered)


def imported(source: Path, scratch: Path) -> Recording:
    target = scratch / f"{source.parent.name}-{source.name}.trace"
    import_paths([str(source)], str(target))
    return read(TraceSet.open(str(target)))


def table(title: str, *columns: str, left: int = 1) -> Table:
    result = Table(title=title)
    for i, column in enumerate(columns):
        result.add_column(column, justify="left" if i < left else "right")
    return result


def steps_table(results: dict[str, Result]) -> Table:
    found = table(
        "Replay against measurement", "set", "measured ms", "replayed ms", "error %", "null %",
        "late %", "early %", "start error us", "clock residual us", "copied host %",
    )  # fmt: skip
    for name, result in results.items():
        a = result.assessment
        for s in a.steps:
            found.add_row(
                name,
                f"{s.measured_ns / 1e6:.2f}",
                f"{s.replayed_ns / 1e6:.2f}",
                f"{100 * s.error:+.3f}",
                f"{100 * s.null_error:+.3f}",
                f"{100 * s.unexplained:.3f}",
                f"{100 * s.unexplained_early:.3f}",
                f"{a.start_error_ns / 1e3:.1f}",
                f"{a.build.alignment.residual_ns / 1e3:.1f}",
                f"{100 * s.copied_host:.0f}",
            )
    return found


def checks_table(results: dict[str, Result]) -> Table:
    found = table("Checks", "set", "check", "found", "bar", "passed", left=2)
    for name, result in results.items():
        for check in checks(result.job, result.assessment):
            bar = replace(check, value=check.bar).text().removeprefix(check.name)
            value = check.text().removeprefix(check.name)
            found.add_row(name, check.name, value, bar, "yes" if check.passed else "NO")
        worst = max(result.recovered, key=lambda r: abs(r.error))
        passed = "yes" if abs(worst.error) <= RECOVERED else "NO"
        what = f"waits recovered, worst rank ({worst.rank})"
        bar = f"{100 * RECOVERED:.0f}%"
        found.add_row(name, what, f"{100 * worst.error:+.2f}%", bar, passed)
        graph = result.assessment.build.graph
        used, off = groups_used(graph), off_layout(graph, result.job.layout)
        ranks = len({r for group in used - off for r in group})
        found.add_row(
            name, "groups and ranks on the layout", f"{len(used - off)} groups, {ranks} ranks",
            f"{len(used)} groups, {len(result.recording.tables)} ranks", "NO" if off else "yes",
        )  # fmt: skip
    return found


def ranks_table(results: dict[str, Result]) -> Table:
    found = table(
        "Waiting of each rank: in collectives, and recovered after it was cut out", "set", "rank",
        "waiting ms", "replayed ms", "error %", "start error us", "stalls ms", "all waits ms",
        "recovered ms", "error %",
    )  # fmt: skip
    for name, result in results.items():
        for r, cut in zip(result.assessment.ranks, result.recovered, strict=True):
            found.add_row(
                name,
                str(r.rank),
                f"{r.waiting_ns / 1e6:.2f}",
                f"{r.replayed_waiting_ns / 1e6:.2f}",
                f"{100 * (r.replayed_waiting_ns / max(r.waiting_ns, 1) - 1):+.2f}",
                f"{r.start_error_ns / 1e3:.0f}",
                f"{r.stall_ns / 1e6:.1f}",
                f"{cut.measured_ns / 1e6:.2f}",
                f"{cut.recovered_ns / 1e6:.2f}",
                f"{100 * cut.error:+.2f}",
            )
    return found


def rules_table(results: dict[str, Result]) -> Table:
    found = table("Where the edges come from", "rule", "confidence", *results)
    counts = {name: r.assessment.build.origins.counts() for name, r in results.items()}
    for rule, info in RULES.items():
        if any(rule in count for count in counts.values()):
            row = [f"{count.get(rule, 0):,}" for count in counts.values()]
            found.add_row(info.words, f"{info.confidence:.1f}", *row)
    dropped = {name: r.assessment.build.dropped for name, r in results.items()}
    for why in sorted({why for counted in dropped.values() for why in counted}):
        row = [f"{counted.get(why, 0):,}" for counted in dropped.values()]
        found.add_row(f"set aside: {why}", "", *row)
    return found


def mutations_table(results: dict[str, Result]) -> Table:
    found = table("Wrong models, and the checks that notice", "without", *results, "caught", left=9)
    rows: dict[str, dict[str, str]] = {}
    for name, result in results.items():
        for what, caught in noticed(result).items():
            rows.setdefault(what, {})[name] = caught
    for what, by_set in rows.items():
        caught = "yes" if any(by_set.values()) else "NO"
        found.add_row(what, *(by_set.get(name, "-") or "nothing" for name in results), caught)
    return found


def noticed(result: Result) -> dict[str, str]:
    """Wrong model -> the checks that fail under it."""
    build = result.assessment.build
    found = {}
    for what, mutate in mutations(build.graph).items():
        try:
            graph = mutate(build.graph)
        except ForetraceError:
            found[what] = "tasks wait for each other"
            continue
        found[what] = failures(result.job, assess(replace(build, graph=graph)))
    pairs = message_pairs(build.graph)
    for other in pairs[1:]:
        wrong = assess(with_wrong_peers(result.recording, pairs[0], other))
        found[f"peers {pairs[0][1]} and {other[1]} swapped"] = failures(result.job, wrong)
    return found


def failures(job: RealJob, a: Assessment) -> str:
    return ", ".join(c.text() for c in checks(job, a) if not c.passed)


def other_steps_table(traces: Path, scratch: Path) -> Table:
    found = table(
        "Steps replayed with the durations of the other steps", "set", "steps", "mean |error| %",
        "mean of the other steps: |error| %", "worst error %", "inputs (waits on absent ranks)",
    )  # fmt: skip
    every, guesses = [], []
    for name, file in STEPS.items():
        graph = build_from_arrays(imported(traces / file, scratch)).graph
        steps = from_other_steps(graph)
        errors = [abs(s.error) for s in steps]
        guess = [abs(s.mean_error) for s in steps]
        worst = max(steps, key=lambda s: abs(s.error)).error
        every, guesses = every + errors, guesses + guess
        found.add_row(
            name, str(len(steps)), f"{100 * np.mean(errors):.2f}", f"{100 * np.mean(guess):.2f}",
            f"{100 * worst:+.2f}", f"{int(is_input(graph).sum()):,}",
        )  # fmt: skip
    found.add_row(
        "all steps", str(len(every)), f"{100 * np.mean(every):.2f}",
        f"{100 * np.mean(guesses):.2f}", "", f"bar: {100 * OTHER_STEPS_BAR:.0f}%",
    )  # fmt: skip
    return found


def sensitivity_table(results: dict[str, Result], percentiles: list[float]) -> Table:
    found = table(
        "What the percentile of the constants does", "set", "percentile", "error %", "late %",
        "early %", "start error us",
    )  # fmt: skip
    for name, result in results.items():
        for percentile in percentiles:
            slacks.PERCENTILE = percentile
            build = result.assessment.build
            graph = replace(build.graph, edge_delay_ns=np.zeros_like(build.graph.edge_delay_ns))
            graph, learnt = constants.with_constants(graph)
            again = assess(replace(build, graph=graph, constants=learnt))
            for s in again.steps:
                found.add_row(
                    name,
                    f"{percentile:.0f}",
                    f"{100 * s.error:+.3f}",
                    f"{100 * s.unexplained:.3f}",
                    f"{100 * s.unexplained_early:.3f}",
                    f"{again.start_error_ns / 1e3:.1f}",
                )
    return found


if __name__ == "__main__":
    main()
