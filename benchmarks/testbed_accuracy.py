"""Predict changed jobs, write the predictions down, then run the jobs and compare.

Real torch.distributed jobs over gloo, each rank in its own network namespace, links shaped with a
token bucket, kernels that are waits. Three jobs and a run of single operations are recorded;
predictions from these go to a file; only then the changed jobs run. Needs root and takes about
five minutes::

    python benchmarks/testbed_accuracy.py [--out FOLDER] [--only TEXT]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from testbed import namespaces
from testbed.interventions import INTERVENTIONS, RANKS, RECORDED, SINGLE, Intervention
from testbed.launch import run
from testbed.namespaces import Plan, network
from testbed.prediction import predict_all, read_predictions, write_predictions
from testbed.table import Row, summary, table

RECORDED_STEPS, SINGLE_STEPS, MEASURED_STEPS = 10, 4, 10


def main() -> int:
    """Run everything; 0 if the bars hold or nothing can run here."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, help="where trace sets and predictions are kept")
    arguments.add_argument("--only", default="", help="interventions whose names hold this")
    given = arguments.parse_args()
    reason = namespaces.why_not()
    if reason:
        print(f"skipped: {reason}")
        return 0
    namespaces.end_on_signals()
    wanted = tuple(one for one in INTERVENTIONS if given.only in one.name)
    folder = given.out or Path(tempfile.mkdtemp(prefix="foretrace-testbed-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} is not empty; predictions are never written over others")
        return 2
    with network(RANKS) as plan:
        rows = _rows(plan, folder, wanted)
    print(table(rows))
    print(summary(rows))
    return 0


def _rows(plan: Plan, folder: Path, wanted: tuple[Intervention, ...]) -> list[Row]:
    """Record, predict, then measure."""
    run(plan, SINGLE, SINGLE_STEPS, folder / f"{SINGLE.kind}.trace")
    for name, job in RECORDED.items():
        steps = run(plan, job, RECORDED_STEPS, folder / f"{name}.trace")
        _say(f"recorded {name}: {len(steps)} steps")
    path = folder / "predictions.json"
    digest = write_predictions(path, folder, predict_all(folder, wanted))
    _say(f"predictions in {path}, sha256 {digest}")
    rows = []
    for one, said in zip(wanted, read_predictions(path), strict=True):
        rows.append(Row(said, run(plan, one.changed, MEASURED_STEPS)))
        _say(f"{one.name}: measured {rows[-1].measured_ms:.1f} ms")
    return rows


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
