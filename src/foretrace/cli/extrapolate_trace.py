"""A recorded job as the source of ``foretrace extrapolate``: what was recognised, and its lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.traces.errors import LayoutError

if TYPE_CHECKING:
    from foretrace.replay.cluster import Cluster
    from foretrace.replay.extrapolate.predict import Prediction
    from foretrace.replay.layout import Layout
    from foretrace.replay.workload.recognise.pipeline import PipelineRecording
    from foretrace.replay.workload.recognise.recorded import Recognised
    from foretrace.traces.store import TraceSet

_SIZES = ("tp", "cp", "pp", "dp", "ep", "etp", "virtual")


def is_trace_set(source: str) -> bool:
    """Whether the source is a folder with a trace set, rather than a model's name or file."""
    return source.endswith(".trace") or (Path(source) / "manifest.json").is_file()


def recorded_command(
    source: str, machine: Cluster, given: dict[str, Any], rest: tuple[Path | None, int | None],
    perfetto: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Predict a step of a recorded job.

    Args:
        source: the trace set.
        machine: what it would run on.
        given: options of the layout by name, None where left out.
        rest: layout file, and ranks asked for.
        perfetto: file for the timeline.
        as_json: print JSON.

    Raises:
        LayoutError: nothing was recognised, or the layout does not fit.
    """
    from foretrace.cli.extrapolate import (
        layout_of,
        prediction_json,
        print_prediction,
        write_timeline,
    )
    from foretrace.cli.terminal import print_json, print_line
    from foretrace.replay.workload.recognise.pipeline import is_pipeline_recording
    from foretrace.replay.workload.recognise.recorded import recognise
    from foretrace.traces.store import TraceSet

    trace = TraceSet.open(source)
    if is_pipeline_recording(trace):
        pipeline_command(trace, given, as_json)
        return
    found = recognise(trace)
    file, gpus = rest
    split = layout_of(found.model, file, given, gpus, recorded_layout(found, given, gpus))
    result = predict_recorded(found, split, machine)
    if perfetto:
        write_timeline(perfetto, result, found.model, machine.name)
    own_ns = round_trip_ns(found, machine)
    if as_json:
        print_json(prediction_json(result) | {"recognised": recognised_json(found, own_ns)})
        return
    for line in recognised_lines(found, own_ns):
        print_line(line)
    print_prediction(found.model, split, machine.name, result)


def recorded_layout(found: Recognised, given: dict[str, Any], gpus: int | None) -> dict[str, Any]:
    """The recorded layout's values, without those that options or their numbers make moot.

    With other data-parallel ranks each of them keeps its micro-batches; other stages hold even
    numbers of layers.

    Args:
        found: the recorded job.
        given: options by name, None where left out.
        gpus: ranks asked for.
    """
    import msgspec

    values: dict[str, Any] = msgspec.structs.asdict(found.layout)
    new = values | {key: value for key, value in given.items() if value is not None}
    changed = {key for key in new if new[key] != values[key]}
    if changed & {"pp", "virtual", "schedule"}:
        values["layers"] = ()
        if values["schedule"] == "interleaved":
            values["schedule"] = "1f1b"
    if gpus is not None and given.get("dp") is None:
        del values["dp"]
        new["dp"] = gpus // (new["tp"] * new["cp"] * new["pp"])
    if new["dp"] != found.layout.dp:
        values["shard"] = 0
        values["global_batch"] = found.layout.micro_batches * new["micro_batch"] * new["dp"]
    return values


def predict_recorded(found: Recognised, layout: Layout, cluster: Cluster) -> Prediction:
    """Predict a step of a recorded job under a layout."""
    from foretrace.replay.costs.device import gpu_of_device
    from foretrace.replay.extrapolate.predict import predict
    from foretrace.replay.workload.recognise.times import recorded_prices
    from foretrace.replay.workload.recognise.transfer import under

    workload, times = under(found, layout, cluster.gpu)
    same = gpu_of_device(found.device).name == cluster.gpu.name
    prices = recorded_prices(found, same)
    return predict(found.model, workload, layout, cluster, measured=(times, prices))


def round_trip_ns(found: Recognised, cluster: Cluster) -> float | None:
    """The step that the workload gives under its own layout; None for another GPU type."""
    from foretrace.replay.costs.device import gpu_of_device

    if gpu_of_device(found.device).name != cluster.gpu.name:
        return None
    return predict_recorded(found, found.layout, cluster).step_ns


def recognised_json(found: Recognised, own_ns: float | None) -> dict[str, Any]:
    """What was recognised, for scripts."""
    report, layout, model = found.report, found.layout, found.model
    return {
        "ranks": report.ranks,
        "steps": report.steps,
        "layers": list(report.layers),
        "micro_batches": layout.micro_batches,
        "schedule": layout.schedule,
        "schedule_fits": report.schedule_fits,
        "layout": {key: getattr(layout, key) for key in _SIZES},
        "model": {
            key: getattr(model, key)
            for key in ("hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "seq")
        },
        "occurrences": list(report.occurrences),
        "explained": report.explained,
        "measured_step_ns": round(found.step_ns),
        "own_layout_step_ns": None if own_ns is None else round(own_ns),
    }


def recognised_lines(found: Recognised, own_ns: float | None) -> list[str]:
    """What was recognised, for people."""
    from foretrace.cli.terminal import duration

    report, layout, model = found.report, found.layout, found.model
    each = ", ".join(str(n) for n in report.layers)
    split = " · ".join(f"{k} {getattr(layout, k)}" for k in _SIZES if getattr(layout, k) > 1)
    groups = ", ".join(f"{count} {kind}" for kind, count in report.groups.items()) or "none"
    ahead, back = report.occurrences
    lines = [
        f"recognised in {report.ranks} ranks and {report.steps} steps of {found.device}:",
        f"  {sum(report.layers)} layers, on pipeline ranks: {each}; hidden {model.hidden:,}, "
        f"MLP {model.ffn:,}{' gated' if model.gated else ''}",
        f"  {model.heads} heads of {model.width}, {model.kv} of keys; vocabulary {model.vocab:,}",
        f"  {layout.micro_batches} micro-batches of {layout.micro_batch} x {layout.seq:,} tokens, "
        f"{layout.schedule} ({report.schedule_fits:.0%} of passes in its order)",
        f"  {split or 'one rank'}; groups: {groups}; ZeRO {layout.zero}, recomputed: "
        f"{layout.recompute}",
        f"  a layer was seen {ahead:,} times forward ({report.operations[0]} operations), "
        f"{back:,} times backward ({report.operations[1]})",
        "  device time:",
        *(f"    {share:6.1%} {name}" for name, share in report.explained.items()),
    ]
    measured = f"  measured step {duration(found.step_ns)}"
    if own_ns is not None:
        measured += (
            f"; the workload under this layout gives {duration(own_ns)} "
            f"({own_ns / found.step_ns - 1:+.1%})"
        )
    return [*lines, measured]


def pipeline_command(trace: TraceSet, given: dict[str, Any], as_json: bool) -> None:
    """A recording of passes alone: run its stages in the order of a schedule, print the totals.

    Raises:
        LayoutError: an option that such a recording cannot answer.
    """
    from foretrace.cli.terminal import duration, print_json, print_line, print_table
    from foretrace.replay.workload.recognise.pipeline import (
        rank_totals,
        read_pipeline,
        replay_pipeline,
    )

    other = sorted(k for k, v in given.items() if v is not None and k not in _PIPELINE_OPTIONS)
    if other:
        raise LayoutError(
            f"--{other[0].replace('_', '-')}: the recording holds passes and nothing inside them; "
            "only --virtual, --schedule and --global-batch (micro-batches) can change"
        )
    found = read_pipeline(trace)
    own = rank_totals(*replay_pipeline(found))
    virtual, batches = given["virtual"] or 1, given["global_batch"] or 0
    asked = rank_totals(*replay_pipeline(found, given["schedule"] or "", virtual, batches))
    if as_json:
        print_json(_pipeline_json(found, own.tolist(), asked.tolist()))
        return
    print_line(
        f"recognised: {found.ranks} pipeline ranks, {found.micro_batches} micro-batches, "
        f"{found.schedule} ({found.fits:.0%} of the passes in its order), {found.steps} steps"
    )
    rows = zip(found.forward_ns, found.backward_ns, found.total_ns, own, asked, strict=True)
    print_table(
        ("rank", "forward", "backward", "measured", "replayed", "error", "predicted"),
        [
            (f"{r}", duration(f), duration(b), duration(t), duration(o), f"{o / t - 1:+.1%}",
             duration(a))
            for r, (f, b, t, o, a) in enumerate(rows)
        ],
    )  # fmt: skip


_PIPELINE_OPTIONS = ("virtual", "schedule", "global_batch")


def _pipeline_json(found: PipelineRecording, own: list[int], asked: list[int]) -> dict[str, Any]:
    return {
        "ranks": found.ranks,
        "micro_batches": found.micro_batches,
        "schedule": found.schedule,
        "measured_ns": [round(ns) for ns in found.total_ns.tolist()],
        "replayed_ns": own,
        "predicted_ns": asked,
    }
