"""Run a job in a network and get its step times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.namespaces import Plan, set_rate
from testbed.sizes import Job

_TIMEOUT_S = 300
_FOLDER = Path(__file__).resolve().parents[1]


def run(
    plan: Plan, job: Job, steps: int, trace: Path | None = None, detail: str = "full"
) -> NDArray[np.int64]:
    """Run a job for so many steps.

    Args:
        plan: the namespaces; at least as many ranks as the job has.
        job: what to run.
        steps: steps to measure.
        trace: where to record these steps, None for no recording.
        detail: of the recording.

    Returns:
        Time of each step, ns: from the moment the last rank ended the one before.

    Raises:
        RuntimeError: a rank failed.
    """
    set_rate(plan, job.mbit)
    with tempfile.TemporaryDirectory(prefix="foretrace-testbed-") as folder:
        task = {
            "job": asdict(job), "steps": steps, "trace": str(trace) if trace else "",
            "detail": detail, "out": folder, "address": plan.address(0),
            "namespaces": [plan.namespace(r) for r in range(job.ranks)],
        }  # fmt: skip
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(task))
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed.worker", str(path)],
            cwd=_FOLDER,
            env=os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        try:
            status = process.wait(_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if status:
            raise RuntimeError(f"the {job.kind} job ended with status {status}")
        ends = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(job.ranks)]
    return step_times(np.array(ends, np.int64))


def step_times(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Time of each step from the ends of all ranks' steps, shape ``(ranks, steps + 1)``, ns."""
    return np.diff(ends.max(axis=0))
