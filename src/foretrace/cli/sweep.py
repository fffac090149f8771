"""``foretrace sweep``: which layout of a model is the fastest on so many GPUs, and which fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.extrapolate.candidates import Candidates
    from foretrace.replay.extrapolate.sweep import Outcome, Target
    from foretrace.replay.layout import Layout

_Values = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Values to try; all that fit if left out.")
]
_GIB = 2.0**30


def sweep_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Bundled model, or a .toml file.")],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Bundled cluster, or a .toml file.")
    ],
    gpus: Annotated[int, typer.Option(min=1, help="Ranks of the job.")],
    *,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.")] = None,
    layout: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="A layout; what is not tried stays as it says."),
    ] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.")] = None,
    tp: _Values = None,
    cp: _Values = None,
    pp: _Values = None,
    virtual: _Values = None,
    ep: _Values = None,
    etp: _Values = None,
    micro_batch: _Values = None,
    zero: _Values = None,
    recompute: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="none, selective, operations, full.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Operands of products: bf16, fp8.")] = None,
    efficiency: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Correction of the models, fitted to your runs."),
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(metavar="FIT.json", help="A fit of 'foretrace calibrate'.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to print.")] = 10,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; one per CPU by default.")
    ] = None,
    executor: Annotated[
        str,
        typer.Option("--executor", metavar="dask://HOST:PORT", help="Let a dask cluster do it."),
    ] = "",
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw step time against memory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Search the layouts of a model on so many GPUs; those that do not fit are left out."""
    from foretrace.cli.terminal import print_json
    from foretrace.replay.cluster import load_cluster
    from foretrace.replay.extrapolate.candidates import candidates, choices
    from foretrace.replay.extrapolate.sweep import Target
    from foretrace.replay.model import load_model

    shape, machine = load_model(model), load_cluster(cluster)
    given = {"seq": seq, "global_batch": global_batch, "precision": precision}
    base = _base(layout, given, shape.seq)
    asked = {
        "tp": tp, "cp": cp, "pp": pp, "virtual": virtual, "ep": ep, "etp": etp,
        "micro_batch": micro_batch, "zero": zero,
    }  # fmt: skip
    values: dict[str, Any] = {
        name: _numbers(name, text) for name, text in asked.items() if text is not None
    }
    if recompute is not None:
        values["recompute"] = recompute.split(",")
    tried = {**choices(shape, machine, gpus, base), **values}
    found = candidates(shape, machine, gpus, base, tried)
    target = Target(shape, machine, *_corrections(efficiency, fit))
    outcomes = _run(target, found.layouts, jobs, executor, show=not as_json)
    if figure:
        from foretrace.analysis.layouts import pareto_figure

        pareto_figure(outcomes).savefig(figure, dpi=150)
    if as_json:
        print_json(sweep_json(found, outcomes))
        return
    _print(target, gpus, found, outcomes, top)


def _base(file: Path | None, given: dict[str, Any], seq: int) -> dict[str, Any]:
    """Values of the layout that all candidates share."""
    from foretrace.cli.extrapolate import read_layout_file
    from foretrace.replay.extrapolate.candidates import SEARCHED

    base = {"seq": seq, **(read_layout_file(file) if file else {})}
    base |= {key: value for key, value in given.items() if value is not None}
    if "global_batch" not in base:
        raise LayoutError("give the sequences of a step: --global-batch N")
    return {key: value for key, value in base.items() if key not in (*SEARCHED, "dp", "layers")}


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        option = name.replace("_", "-")
        raise LayoutError(f"--{option} {text}: expected numbers such as 1,2,4") from None


def _corrections(efficiency: Path | None, fit: Path | None) -> tuple[Any, Any]:
    from foretrace.cli.extrapolate import read_efficiency

    if fit:
        from foretrace.replay.costs.collectives.fit_file import read_fit
    return read_efficiency(efficiency) if efficiency else None, read_fit(fit) if fit else None


def _run(
    target: Target, layouts: tuple[Layout, ...], jobs: int | None, executor: str, show: bool
) -> list[Outcome]:
    from foretrace.replay.extrapolate.sweep import sweep

    with _progress(show=show and sys.stderr.isatty()) as watch:
        if not executor:
            return sweep(target, layouts, jobs=jobs, watch=watch)
        from foretrace.traces.importers.cluster import connected

        with connected(executor) as client:
            return sweep(target, layouts, executor=client.get_executor(), watch=watch)


@contextmanager
def _progress(show: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error; nothing where nobody looks."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("layouts"), BarColumn(), MofNCompleteColumn(), Left())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def sweep_json(found: Candidates, outcomes: list[Outcome]) -> dict[str, Any]:
    """What ``foretrace sweep --json`` writes; scripts rely on these keys."""
    import msgspec

    from foretrace.replay.extrapolate.sweep import pareto

    front = {id(one) for one in pareto(outcomes)}
    return {
        "invalid": found.invalid,
        "pruned": dict(found.pruned),
        "layouts": [
            {
                "layout": msgspec.structs.asdict(one.layout),
                "step_ns": round(one.step_ns),
                "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
                "mfu": one.mfu,
                "bubble": one.bubble,
                "compute_ns": round(one.compute_ns),
                "exposed_ns": {kind: round(ns) for kind, ns in one.exposed_ns.items()},
                "memory_bytes": None if one.memory_bytes is None else round(one.memory_bytes),
                "pareto": id(one) in front,
            }
            for one in outcomes
        ],
    }


def _print(target: Target, gpus: int, found: Candidates, outcomes: list[Outcome], top: int) -> None:
    from foretrace.analysis.layouts import layout_name
    from foretrace.cli.terminal import duration, print_line, print_table

    pruned = sum(found.pruned.values())
    why = ", ".join(f"{count:,} mostly for {term}" for term, count in found.pruned.items())
    print_line(
        f"{target.model.name} on {gpus:,} GPUs of {target.cluster.name}: "
        f"{len(outcomes):,} layouts predicted"
    )
    print_line(f"{pruned:,} do not fit the memory" + (f": {why}" if why else ""))
    print_line(f"{found.invalid:,} combinations cannot be")
    if not outcomes:
        return
    print_table(
        ("layout", "step", "tokens/s/GPU", "MFU", "memory", "compute", "exposed", "bubble"),
        [
            (
                layout_name(one),
                duration(one.step_ns),
                f"{one.tokens_per_s_per_gpu:,.0f}",
                f"{one.mfu:.1%}",
                "?" if one.memory_bytes is None else f"{one.memory_bytes / _GIB:.1f} GiB",
                f"{one.compute_ns / one.step_ns:.0%}",
                _exposed(one),
                f"{one.bubble:.1%}",
            )
            for one in outcomes[:top]
        ],
    )


def _exposed(one: Outcome) -> str:
    """Share of the step with nothing but communication, and its largest kind."""
    whole = sum(one.exposed_ns.values()) / one.step_ns
    if whole < 0.0005:
        return "0%"
    kind = max(one.exposed_ns, key=lambda name: one.exposed_ns[name])
    return f"{whole:.0%} ({kind})"
