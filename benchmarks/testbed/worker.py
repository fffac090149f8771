"""One job: forks its ranks, each into its namespace, and waits for them.

Run by :mod:`testbed.launch` as ``python -m testbed.worker TASK.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once here, not on every rank: optimizers load it
import torch.distributed as dist
from torch.distributed import distributed_c10d

from foretrace.collector import profile
from testbed.jobs import make_step
from testbed.namespaces import end_on_signals
from testbed.sizes import Job

_PORT = 29500
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_DIE_WITH_PARENT, _SET_TIMER_SLACK = 1, 29  # prctl
_TIMEOUT_S = 120
_WARM_STEPS = 2


def main(task: dict[str, Any]) -> int:
    """Fork and wait; the exit status is that of the first rank that failed."""
    end_on_signals()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    job = Job(**task["job"])
    ranks = {_fork(rank, task, job): rank for rank in range(job.ranks)}
    status = 0
    try:
        while ranks and not status:
            process, how = os.wait()
            ranks.pop(process, None)
            status = os.waitstatus_to_exitcode(how)
    finally:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return abs(status)


def _fork(rank: int, task: dict[str, Any], job: Job) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        _enter(f"/run/netns/{task['namespaces'][rank]}")
        _run(rank, task, job)
        code = 0
    except BaseException as error:
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _enter(namespace: str) -> None:
    """Move this process into a network namespace; it dies with its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(namespace).open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    libc.prctl(_SET_TIMER_SLACK, 1)
    # A rank holds next to no CPU; it must not queue behind whatever else the machine does.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _run(rank: int, task: dict[str, Any], job: Job) -> None:
    warnings.simplefilter("ignore")  # names of collectives that are about to change
    torch.set_num_threads(1)
    distributed_c10d.ProcessGroupGloo = _OneThread
    dist.init_process_group(
        "gloo", init_method=f"tcp://{task['address']}:{_PORT}", rank=rank, world_size=job.ranks,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )  # fmt: skip
    step = make_step(job)
    for _ in range(_WARM_STEPS):
        step()
    dist.barrier()
    ends = _recorded(step, task) if task["trace"] else _timed(step, task["steps"])
    (Path(task["out"]) / f"{rank}.json").write_text(json.dumps(ends))
    dist.barrier()
    dist.destroy_process_group()


class _OneThread(dist.ProcessGroupGloo):
    """Collectives of a group run one after another, as on a stream of a GPU.

    By default two threads carry them out, so that two share the links at a time; ``pg_options``
    are ignored for gloo.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._threads = 1
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_device(interface="eth")]
        super().__init__(store, rank, size, options)


def _timed(step: Any, steps: int) -> list[int]:
    """When each step ended, on the machine's monotonic clock, ns."""
    ends = [time.monotonic_ns()]
    for _ in range(steps):
        step()
        ends.append(time.monotonic_ns())
    return ends


def _recorded(step: Any, task: dict[str, Any]) -> list[int]:
    ends = []
    steps = task["steps"]
    with profile(task["trace"], wait=0, warmup=1, active=steps, detail=task["detail"]) as recorder:
        for _ in range(steps + 1):
            step()
            _demote("foretrace-")
            recorder.step()
            ends.append(time.monotonic_ns())
    return ends


def _demote(prefix: str) -> None:
    """Threads that are none of the job's get no better place on the CPU than anybody's."""
    for thread in threading.enumerate():
        if thread.name.startswith(prefix) and thread.native_id:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread.native_id, os.SCHED_OTHER, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
