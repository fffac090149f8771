"""A real job in real namespaces, predicted; and nothing left behind, even after a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import namespaces
from testbed.prediction import step_ms
from testbed.sizes import Job

from foretrace.replay.build import build_graph
from foretrace.replay.transforms.network import Network
from foretrace.replay.transforms.shard import gradient_bytes
from foretrace.traces.store import TraceSet

REASON = namespaces.why_not()
pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(REASON), reason=REASON)]
BENCHMARKS = Path(namespaces.__file__).resolve().parents[1]

HOLD = """
import time
from testbed.namespaces import end_on_signals, network
end_on_signals()
with network(2):
    print("made", flush=True)
    time.sleep(60)
"""


def ours(process: int) -> list[str]:
    return [n for n in namespaces.existing() if n.startswith(f"{namespaces.PREFIX}-{process}-")]


def test_a_real_job_is_recorded_and_predicted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from testbed.launch import run

    job = Job("ddp", 2, mbit=50.0, layers=4, forward_ms=2.0, backward_ms=4.0)
    with namespaces.network(2) as plan:
        steps = run(plan, job, 3, tmp_path / "ddp.trace")
        assert len(ours(os.getpid())) == 3
    assert not ours(os.getpid())
    assert steps.shape == (3,)
    # Both ranks wait so long in every step, whatever else the machine does.
    assert (steps > 4 * 6 * 1_000_000).all()
    graph = build_graph(TraceSet.open(str(tmp_path / "ddp.trace")))
    assert gradient_bytes(graph) == 4 * job.layers * job.parameters
    slower = Network(bandwidth=0.5, per_operation="0us")(graph)
    assert step_ms(slower) > step_ms(graph)


def test_a_job_that_fails_is_an_error_and_leaves_nothing_behind() -> None:
    from testbed.launch import run

    with pytest.raises(RuntimeError, match="no-such-kind job ended"), namespaces.network(2) as plan:
        run(plan, Job("no-such-kind", 2), 3)
    assert not ours(os.getpid())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_behind(how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=BENCHMARKS, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    assert len(ours(process.pid)) == 3
    process.send_signal(how)
    process.wait()
    process.stdout.close()
    if how == signal.SIGKILL:  # nobody can clean up then; the next one does
        with namespaces.network(1):
            pass
    assert not ours(process.pid)
