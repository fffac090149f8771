"""``foretrace extrapolate``: a training step on a layout and cluster that nobody ran."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.extrapolate.predict import Prediction
    from foretrace.replay.layout import Layout
    from foretrace.replay.model import Model

_Count = Annotated[int | None, typer.Option(min=1)]
_GIB = 2.0**30


def extrapolate_command(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN.trace", help="Bundled model, a .toml file, or a recorded job."
        ),
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Bundled cluster, or a .toml file.")
    ],
    *,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Ranks; gives dp where it is left out.")
    ] = None,
    layout: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="A layout; the options below change it."),
    ] = None,
    seq: _Count = None,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.")] = None,
    micro_batch: _Count = None,
    tp: _Count = None,
    cp: _Count = None,
    pp: _Count = None,
    dp: _Count = None,
    ep: _Count = None,
    etp: _Count = None,
    virtual: Annotated[int | None, typer.Option(min=1, help="Stages of a pipeline rank.")] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.csv", help="Pipeline schedule.")
    ] = None,
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage; 3 is FSDP.")] = None,
    shard: Annotated[
        int | None, typer.Option(min=0, help="Ranks of one sharded copy (HSDP); 0 for all.")
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="none, selective, operations or full.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Operands of products: bf16, fp8.")] = None,
    efficiency: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Correction of the models, fitted to your runs."),
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(metavar="FIT.json", help="A fit of 'foretrace calibrate'.")
    ] = None,
    jitter: Annotated[
        str | None,
        typer.Option(
            metavar="SIGMA|FILE.json",
            help="Relative standard deviation of an execution: its cost is a line of its own.",
        ),
    ] = None,
    loads: Annotated[
        str | None,
        typer.Option(
            metavar="ZIPF|FILE.json", help="Uneven experts: an exponent, or tokens of each."
        ),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timeline for Perfetto.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="8..16384", help="Predict so many GPUs each; dp comes and goes."),
    ] = None,
    strong: Annotated[
        bool, typer.Option("--strong", help="With --scale the global batch stays as it is.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the curve of --scale.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Predict a training step: its time, what it is made of, whether it fits, how sure that is."""
    from foretrace.cli.extrapolate_trace import is_trace_set, recorded_command
    from foretrace.cli.terminal import print_json
    from foretrace.replay.cluster import load_cluster
    from foretrace.replay.extrapolate.predict import predict
    from foretrace.replay.model import load_model
    from foretrace.replay.workload.describe import describe

    machine = load_cluster(cluster)
    given = {
        "seq": seq, "global_batch": global_batch, "micro_batch": micro_batch, "tp": tp, "cp": cp,
        "pp": pp, "dp": dp, "ep": ep, "etp": etp, "virtual": virtual, "schedule": schedule,
        "zero": zero, "shard": shard, "recompute": recompute, "precision": precision,
    }  # fmt: skip
    if (strong or figure) and not scale:
        raise LayoutError("--strong and --figure go with --scale")
    if is_trace_set(workload):
        if efficiency or fit or scale:
            raise LayoutError("--efficiency, --fit and --scale take a model, not a recorded job")
        recorded_command(workload, machine, given, (layout, gpus), perfetto, as_json)
        return
    from foretrace.replay.costs.collectives.fit_file import read_fit

    model = load_model(workload)
    split = layout_of(model, layout, given, gpus)
    correction = read_efficiency(efficiency) if efficiency else None
    calibration = read_fit(fit) if fit else None
    if scale:
        from foretrace.cli.scaling import scaling_command
        from foretrace.replay.extrapolate.sweep import Target

        target = Target(model, machine, correction, calibration)
        scaling_command(target, split, (scale, strong), figure, as_json)
        return
    result = predict(
        model, describe(model, split), split, machine, efficiency=correction,
        calibration=calibration, brief=perfetto is None,
            jitter=read_jitter(jitter) if jitter else None,
            loads=read_loads(loads, model, split.ep) if loads else None,
    )  # fmt: skip
    if perfetto:
        write_timeline(perfetto, result, model, machine.name)
    if as_json:
        jittered = {"jitter_ns": round(result.jitter_ns)} if jitter else {}
        print_json(prediction_json(result) | jittered)
    else:
        print_prediction(model, split, machine.name, result)


def write_timeline(path: Path, result: Prediction, model: Model, cluster: str) -> None:
    """Write a predicted step for Perfetto."""
    from foretrace.replay.perfetto import viewer_arrays
    from foretrace.traces.exporters.perfetto import write_perfetto

    about = {"model": model.name, "cluster": cluster}
    write_perfetto(path, *viewer_arrays([result.timeline]), metadata=about)


def layout_of(
    model: Model, file: Path | None, given: dict[str, Any], gpus: int | None,
    base: dict[str, Any] | None = None,
) -> Layout:  # fmt: skip
    """The layout of a file and options; ``dp`` and the batch follow where they are left out.

    Args:
        model: the model.
        file: a layout file.
        given: options by name, None where left out.
        gpus: ranks asked for.
        base: values of a recorded layout that file and options change.

    Raises:
        LayoutError: no layout file, numbers that contradict each other.
    """
    import msgspec

    from foretrace.replay.layout import Layout, check_layout

    values = dict(base or {}) | (read_layout_file(file) if file else {})
    values |= {key: value for key, value in given.items() if value is not None}
    values.setdefault("seq", model.seq)
    each = 1
    for key in ("tp", "cp", "pp"):
        each *= int(values.get(key, 1))
    if gpus is not None:
        if "dp" not in values:
            if gpus % each:
                raise LayoutError(
                    f"--gpus {gpus} is no multiple of tp x cp x pp = {each}; change one of them"
                )
            values["dp"] = gpus // each
        if each * int(values["dp"]) != gpus:
            raise LayoutError(
                f"--gpus {gpus}, but tp x cp x pp x dp = {each * int(values['dp'])}: drop --gpus "
                "or one of the others"
            )
    one = int(values.get("dp", 1)) * int(values.get("micro_batch", 1))
    values.setdefault("global_batch", one * max(4 * int(values.get("pp", 1)), 1))
    try:
        layout = msgspec.convert(values, Layout)
    except msgspec.ValidationError as error:
        raise LayoutError(f"{file or 'layout'}: {error}") from error
    check_layout(model, layout)
    return layout


def read_layout_file(path: Path) -> dict[str, Any]:
    """Values of a layout file.

    Raises:
        LayoutError: it cannot be read.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as a layout: {error}") from error


def read_efficiency(path: Path) -> Any:
    """An efficiency file.

    Raises:
        LayoutError: it cannot be read.
    """
    import msgspec

    from foretrace.replay.extrapolate.times import Efficiency

    try:
        return msgspec.json.decode(path.read_bytes(), type=Efficiency)
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(f"{path}: cannot be read as an efficiency file: {error}") from error


def read_jitter(text: str) -> Any:
    """Jitter from one number for all computations, or from a file.

    Raises:
        LayoutError: neither.
    """
    import msgspec

    from foretrace.replay.extrapolate.jitter import Jitter

    try:
        sigma = float(text)
        return Jitter(matrix=sigma, attention=sigma, memory=sigma, source="given")
    except ValueError:
        pass
    try:
        return msgspec.json.decode(Path(text).read_bytes(), type=Jitter)
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(f"--jitter {text}: neither a number nor a file of it: {error}") from error


def read_loads(text: str, model: Model, ep: int) -> Any:
    """Loads of expert-parallel ranks from a Zipf exponent, or from a file of counts.

    Raises:
        LayoutError: neither, or the model has no experts.
    """
    import msgspec

    from foretrace.replay.workload.loads import rank_loads, zipf_counts

    if not model.experts:
        raise LayoutError(f"--loads {text}: {model.name} has no experts")
    try:
        return rank_loads(zipf_counts(model.experts, float(text)), ep)
    except ValueError:
        pass
    try:
        counts = msgspec.json.decode(Path(text).read_bytes(), type=list[float])
    except (OSError, msgspec.DecodeError) as error:
        raise LayoutError(f"--loads {text}: neither a number nor a list: {error}") from error
    if len(counts) != model.experts:
        raise LayoutError(f"--loads {text}: {len(counts)} counts for {model.experts} experts")
    return rank_loads(counts, ep)


def prediction_json(result: Prediction) -> dict[str, Any]:
    """What ``foretrace extrapolate --json`` writes; scripts rely on these keys."""
    memory = result.memory
    return {
        "step_ns": round(result.step_ns),
        "low_ns": round(result.low_ns),
        "high_ns": round(result.high_ns),
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
        "mfu": result.mfu,
        "bubble": result.bubble,
        "exposed_ns": {kind: round(ns) for kind, ns in result.account.exposed_ns.items()},
        "memory_bytes": round(memory.peak_bytes) if memory else None,
        "fits": memory.fits if memory else None,
        "origin": result.origin,
    }


def print_prediction(model: Model, layout: Layout, cluster: str, result: Prediction) -> None:
    """Print a prediction for people."""
    from foretrace.cli.terminal import duration, print_line, print_table

    split = " · ".join(
        f"{key} {getattr(layout, key)}"
        for key in ("tp", "cp", "pp", "dp", "ep", "etp", "virtual")
        if getattr(layout, key) > 1
    )
    print_line(
        f"{model.name} on {layout.gpus:,} GPUs of {cluster}: {split or 'one GPU'}, "
        f"{layout.global_batch:,} x {layout.seq:,} tokens a step, {layout.schedule}"
    )
    low, high = duration(result.low_ns), duration(result.high_ns)
    print_line(f"step {duration(result.step_ns)} (nine of ten between {low} and {high})")
    if result.jitter_ns:
        share = result.jitter_ns / result.step_ns
        print_line(f"jitter adds {duration(result.jitter_ns)} ({share:.1%}) to the mean step")
    print_line(
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {result.mfu:.1%}, "
        f"bubble {result.bubble:.1%}"
    )
    step = result.account.step_ns
    rows = [("computation", result.account.compute_ns)]
    names = {
        "tp": "tensor-parallel communication", "cp": "context-parallel communication",
        "pp": "transfers between stages", "ep": "all-to-all of experts",
        "etp": "communication inside experts", "edp": "gradients of experts",
        "dp": "data-parallel gradients", "shard": "sharded parameters and gradients",
        "replica": "gradients between copies", "world": "norm of gradients",
    }  # fmt: skip
    rows += [(f"exposed: {names[kind]}", ns) for kind, ns in result.account.exposed_ns.items()]
    rows.append(("idle: bubbles, waiting", result.account.idle_ns))
    print_table(
        ("mean over ranks", "time", "share"),
        [(name, duration(ns), f"{ns / step:.1%}") for name, ns in rows if ns > 0.0005 * step],
    )
    if result.memory:
        fits = "fits" if result.memory.fits else "does NOT fit"
        print_line(
            f"memory: {result.memory.peak_bytes / _GIB:.1f} GiB at the peak of stage "
            f"{result.memory.stage}, {fits} ({result.memory.limit_bytes / _GIB:.1f} GiB usable)"
        )
    shares = ", ".join(f"{share:.0%} {name}" for name, share in result.origin.items())
    print_line(f"the prediction rests on: {shares}")
