"""Draw the picture of the README: the slowest step of the bundled sample, rank by rank.

Run it with ``make image`` after the sample or the figures have changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from foretrace.analysis.figures import timeline_figure
from foretrace.analysis.run import load_run, slowest_step

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[1] / "traces" / "sample"


def main() -> None:
    """Write ``step.png`` beside this file, from a trace set or the sample."""
    trace = sys.argv[1] if len(sys.argv) > 1 else str(next(SAMPLES.glob("*.trace")))
    run = load_run(trace)
    figure, _ = timeline_figure(run.measured, slowest_step(run.measured))
    figure.savefig(HERE / "step.png", dpi=130)


if __name__ == "__main__":
    main()
