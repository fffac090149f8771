"""Where a report's numbers come from, and what is missing from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath

from foretrace import __version__
from foretrace.analysis.groups import ranks_text
from foretrace.analysis.run import Run
from foretrace.traces.manifest import RankInfo

MOST_SOURCES = 16


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts about the record.

    Attributes:
        name: name of the trace set.
        subtitle: ranks, devices and steps in one line.
        facts: label and value pairs.
        sources: rank and the file it came from; only the first of many.
        dropped: reason, count and example of what is not in the tables.
        warnings: what a reader must know before anything else.
    """

    name: str
    subtitle: str
    facts: list[tuple[str, str]]
    sources: list[tuple[int, str]]
    dropped: list[tuple[str, int, str]]
    warnings: list[str]


def provenance(run: Run) -> Provenance:
    """Gather where the run comes from."""
    trace = run.trace
    infos = [trace.info(rank) for rank in trace.ranks]
    devices = Counter(i.device_name for i in infos if i.device_name)
    steps = len(run.assessment.steps)
    world = max((i.world_size for i in infos), default=0)
    of_world = f" of {world}" if world > len(infos) else ""
    device = ", ".join(f"{name} ({count})" if len(devices) > 1 else name
                       for name, count in devices.most_common(3))  # fmt: skip
    plural = "" if len(infos) == 1 else "s"
    subtitle = f"{len(infos)}{of_world} rank{plural}"
    subtitle += f" · {device}" if device else ""
    subtitle += f" · {steps} step{'' if steps == 1 else 's'}"
    missing = trace.missing_ranks
    warnings = list(trace.problems)
    if missing:
        warnings.append(
            f"Not recorded: ranks {ranks_text(missing)}. Waiting for them looks like the execution "
            "of collectives."
        )
    return Provenance(
        name=PurePath(str(trace.path)).name,
        subtitle=subtitle,
        facts=_facts(run, infos),
        sources=[(i.rank, i.source) for i in infos if i.source][:MOST_SOURCES],
        dropped=_dropped(run, infos),
        warnings=warnings,
    )


def _facts(run: Run, infos: list[RankInfo]) -> list[tuple[str, str]]:
    alignment = run.assessment.build.alignment
    residual = alignment.residual_ns
    hosts = sorted({i.host for i in infos if i.host})
    versions: dict[str, set[str]] = {}
    for info in infos:
        for name, version in info.versions.items():
            versions.setdefault(name, set()).add(version)
    candidates = [
        ("hosts", f"{len(hosts)}: {', '.join(hosts[:8])}" if hosts else ""),
        ("backend", ", ".join(sorted({i.backend for i in infos if i.backend}))),
        ("detail", ", ".join(sorted({i.detail for i in infos if i.detail}))),
        ("layout", ", ".join(f"{k} {v}" for k, v in infos[0].layout.items()) if infos else ""),
        ("labels", ", ".join(f"{k}={v}" for k, v in infos[0].labels.items()) if infos else ""),
        ("rank numbers from", ", ".join(sorted({i.rank_from for i in infos if i.rank_from}))),
        ("events", f"{sum(sum(i.counts.values()) for i in infos):,}"),
        ("tasks in the job graph", f"{len(run.graph):,} with {len(run.graph.pred):,} dependencies"),
        (
            "clocks",
            f"aligned on {alignment.anchors:,} collectives, ends then agree within "
            f"{residual / 1e3:.1f} µs (median)"
            if residual >= 0
            else "not aligned: no collectives to compare",
        ),
        (
            "device start error",
            f"{run.assessment.start_error_ns / 1e3:.1f} µs in the median, replayed against "
            "measured",
        ),
        ("versions", "; ".join(f"{k} {', '.join(sorted(v))}" for k, v in versions.items())),
        ("made by", f"foretrace {__version__}"),
    ]
    return [(label, value) for label, value in candidates if value]


def _dropped(run: Run, infos: list[RankInfo]) -> list[tuple[str, int, str]]:
    total: Counter[str] = Counter()
    example: dict[str, str] = {}
    for info in infos:
        for item in info.dropped:
            total[item.reason] += item.count
            example.setdefault(item.reason, item.example)
    for reason, count in run.assessment.build.dropped.items():
        total[f"edge left out: {reason}"] += count
    return [(reason, count, example.get(reason, "")) for reason, count in total.most_common()]
