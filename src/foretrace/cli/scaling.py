"""``foretrace extrapolate --scale``: a scaling curve and what breaks it first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.replay.extrapolate.scaling import Point
    from foretrace.replay.extrapolate.sweep import Target
    from foretrace.replay.layout import Layout

PARTS = {
    "compute": "computation", "bubble": "pipeline bubbles",
    "tp": "tensor-parallel communication", "cp": "context-parallel communication",
    "pp": "transfers between stages", "ep": "all-to-all of experts",
    "etp": "communication inside experts", "edp": "gradients of experts",
    "dp": "data-parallel gradients", "shard": "sharded parameters and gradients",
    "replica": "gradients between copies", "world": "norm of gradients",
}  # fmt: skip
"""Parts of a step in words."""


def scaling_command(
    target: Target, layout: Layout, scale: tuple[str, bool], figure: Path | None, as_json: bool
) -> None:
    """Predict every size, print the curve.

    Args:
        target: model and machine.
        layout: the layout at its own size.
        scale: text of ``--scale``, and whether the global batch stays as it is.
        figure: file for the curve.
        as_json: write JSON.
    """
    from foretrace.cli.terminal import print_json
    from foretrace.replay.extrapolate.scaling import curve, first_break, scaled, sizes

    points = curve(target, scaled(layout, sizes(scale[0]), scale[1]))
    if figure:
        from foretrace.analysis.layouts import scaling_figure

        scaling_figure(points).savefig(figure, dpi=150)
    if as_json:
        broken = first_break(points)
        print_json(
            {
                "points": [_point_json(point) for point in points],
                "breaks_at": broken and broken.outcome.layout.gpus,
                "breaks_on": broken and broken.cause,
            }
        )
        return
    _print(points, scale[1])


def _point_json(point: Point) -> dict[str, Any]:
    one = point.outcome
    return {
        "gpus": one.layout.gpus,
        "dp": one.layout.dp,
        "global_batch": one.layout.global_batch,
        "step_ns": round(one.step_ns),
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "efficiency": point.efficiency,
        "grew_most": point.cause,
        "grew_by": point.share,
    }


def _print(points: list[Point], strong: bool) -> None:
    from foretrace.cli.terminal import duration, print_line, print_table
    from foretrace.replay.extrapolate.scaling import LOST, first_break

    print_table(
        ("GPUs", "batch", "step", "tokens/s/GPU", "efficiency", "grew most", "by"),
        [
            (
                f"{point.outcome.layout.gpus:,}",
                f"{point.outcome.layout.global_batch:,}",
                duration(point.outcome.step_ns),
                f"{point.outcome.tokens_per_s_per_gpu:,.0f}",
                f"{point.efficiency:.1%}",
                PARTS.get(point.cause, "") if point.share >= 0.0005 else "",
                f"{point.share:.1%}" if point.share >= 0.0005 else "",
            )
            for point in points
        ],
    )
    broken = first_break(points)
    kind = "strong" if strong else "weak"
    if broken is None:
        print_line(f"{kind} scaling holds: no size loses {LOST:.0%} of the first one's throughput")
    else:
        print_line(
            f"{kind} scaling breaks at {broken.outcome.layout.gpus:,} GPUs on "
            f"{PARTS[broken.cause]} ({broken.share:.1%} of the first size's step)"
        )
