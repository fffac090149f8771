"""Replay of the real 8-rank GPU sets against their recordings, and the counterfactual check.

Run: python benchmarks/replay_accuracy.py [--data DIR] [--percentiles 25 33 40 50]

With --percentiles, also how the results move with the one number that was chosen by hand: the
percentile of the slack that the constants are taken from.

The sets are read from DIR (default: FORETRACE_DATA, else ../shared/data beside the project).
Nothing is tuned per set: the same rules, percentiles and thresholds serve all three.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from foretrace.replay.accuracy import Assessment, assess
from foretrace.replay.build import build_from_arrays, constants, read
from foretrace.replay.counterfactual import Recovery, recover_waits
from foretrace.traces.importers import import_paths
from foretrace.traces.store import TraceSet

SETS = {
    "A800 2x2x2": "megatron-tp2pp2dp2-a800/kineto",
    "A100 tp8": "megatron-tp8-a100/kineto",
    "V100 DLRM": "dlrm-8xv100/dlrm_kineto.tar.gz",
}
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETRACE_DATA"))
    parser.add_argument("--percentiles", type=float, nargs="*", default=[])
    options = parser.parse_args()
    data = options.data or ROOT.parent / "shared" / "data"
    sets = {name: Path(data) / "traces" / where for name, where in SETS.items()}
    missing = [str(p) for p in sets.values() if not p.exists()]
    if missing:
        print(f"skipped: no traces at {', '.join(missing)}; give --data DIR")
        return
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as scratch:
        results = {name: measure(path, Path(scratch)) for name, path in sets.items()}
    console.print(steps_table({name: a for name, (a, _) in results.items()}))
    console.print(ranks_table(results))
    if options.percentiles:
        console.print(sensitivity_table(results, options.percentiles))


def sensitivity_table(
    results: dict[str, tuple[Assessment, list[Recovery]]], percentiles: list[float]
) -> Table:
    table = Table(title="What the percentile of the constants does")
    for column in ("set", "percentile", "error %", "late %", "early %", "start error us"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, (a, _) in results.items():
        for percentile in percentiles:
            constants.PERCENTILE = percentile
            graph, found = constants.with_constants(a.build.graph)
            again = assess(replace(a.build, graph=graph, constants=found))
            for s in again.steps:
                table.add_row(
                    name,
                    f"{percentile:.0f}",
                    f"{100 * s.error:+.3f}",
                    f"{100 * s.unexplained:.3f}",
                    f"{100 * s.unexplained_early:.3f}",
                    f"{again.start_error_ns / 1e3:.1f}",
                )
    return table


def measure(source: Path, scratch: Path) -> tuple[Assessment, list[Recovery]]:
    target = scratch / f"{source.parent.name}.trace"
    import_paths([str(source)], str(target))
    recording = read(TraceSet.open(str(target)))
    build = build_from_arrays(recording)
    recovered = [recover_waits(recording, build, rank) for rank in recording.tables]
    return assess(build), recovered


def steps_table(results: dict[str, Assessment]) -> Table:
    table = Table(title="Replay against measurement")
    for column in (
        "set", "measured ms", "replayed ms", "error %", "null %", "late %", "early %",
        "start error us", "clock residual us", "copied host %",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, a in results.items():
        for s in a.steps:
            table.add_row(
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
    return table


def ranks_table(results: dict[str, tuple[Assessment, list[Recovery]]]) -> Table:
    table = Table(title="Waiting of each rank: in collectives, and recovered after it was cut out")
    for column in (
        "set", "rank", "waiting ms", "replayed ms", "error %", "start error us", "stalls ms",
        "all waits ms", "recovered ms", "error %",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, (a, recovered) in results.items():
        for r, cut in zip(a.ranks, recovered, strict=True):
            table.add_row(
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
    return table


if __name__ == "__main__":
    main()
